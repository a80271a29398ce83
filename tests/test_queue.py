"""The queue as producers and operators hold it: what each call answers, refuses and leaves behind."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

import rescind
from rescind import (
    CannotCancelError,
    DuplicateJob,
    IdempotencyConflict,
    InvalidInput,
    JobNotFoundError,
    Queue,
    Settings,
    State,
    TaskStatus,
    connect,
)
from rescind.clock import SystemClock
from rescind.engine import Claim, Selector
from rescind.errors import StoreClosed
from rescind.job import CancelOutcome


async def test_connect_can_be_awaited_or_entered(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    queue = await connect(url)
    job = await queue.submit("mail")
    await queue.close()
    async with connect(url) as again:
        assert (await again.get(job.id)).need == "mail"


async def test_connect_takes_its_url_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESCIND_URL", f"sqlite://{tmp_path}/from-env.db")
    async with connect() as queue:
        await queue.submit("mail")
    assert (tmp_path / "from-env.db").exists()


async def test_connect_defaults_to_a_file_in_the_users_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RESCIND_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    async with connect() as queue:
        await queue.submit("mail")
    assert list(tmp_path.rglob("rescind.db"))


@pytest.mark.parametrize("url", ["jobs.db", "mysql://x/y", "sqlite:", "sqlite", Path("jobs.db")])
async def test_a_url_without_an_engine_says_what_to_write(url: Any) -> None:
    with pytest.raises(InvalidInput, match="sqlite:"):
        await connect(url)


async def test_a_queue_that_must_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(rescind.Unavailable, match="there is no queue at"):
        await connect(f"sqlite://{tmp_path}/typo.db", create=False)
    assert not list(tmp_path.iterdir())


async def test_a_closed_queue_says_so(tmp_path: Path) -> None:
    queue = await connect(f"sqlite://{tmp_path}/jobs.db")
    await queue.close()
    with pytest.raises(StoreClosed, match=r"jobs\.db"):
        await queue.submit("mail")


async def test_a_submitted_job_carries_what_was_said(queue: Queue) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    job = await queue.submit(
        "mail", {"to": "ann"}, id="mail-1", owner="ann", priority=3, available_at=later, by="user:ann"
    )
    assert job == await queue.get("mail-1")
    assert (job.input, job.owner, job.priority, job.submitted_by) == ({"to": "ann"}, "ann", 3, "user:ann")
    assert (job.state, job.status) == (State.AWAITING_FUTURE, TaskStatus.Pending)


async def test_bad_input_leaves_nothing_behind(queue: Queue) -> None:
    bad: list[dict[str, Any]] = [
        {"need": "mail", "id": "a/b"},
        {"need": "mail", "input": float("nan")},
        {"need": "mail", "input": object()},
        {"need": "mail", "input": "x" * 300_000},
        {"need": "x" * 54},
        {"need": "mail", "wait_for": ["nobody"]},
        {"need": "mail", "priority": 1.5},
        {"need": "mail", "colour": "red"},
        {"input": 1},
    ]
    for fields in bad:
        with pytest.raises(InvalidInput):
            await queue.submit_many([{"need": "fine"}, fields])
    assert await queue.count() == 0


async def test_an_id_is_never_reused(queue: Queue) -> None:
    await queue.submit("mail", id="one")
    await queue.cancel("one")
    await queue.sweep()
    with pytest.raises(DuplicateJob, match="one"):
        await queue.submit_many([{"need": "mail", "id": "two"}, {"need": "mail", "id": "one"}])
    with pytest.raises(JobNotFoundError):
        await queue.get("two")


async def test_an_idempotency_key_answers_with_the_job_it_made(queue: Queue) -> None:
    first = await queue.submit("mail", {"n": 1}, owner="ann", idempotency_key="k")
    again = await queue.submit("mail", {"n": 1}, owner="ann", idempotency_key="k")
    other_owner = await queue.submit("mail", {"n": 1}, owner="bob", idempotency_key="k")
    assert again.id == first.id != other_owner.id
    with pytest.raises(IdempotencyConflict, match=first.id):
        await queue.submit("mail", {"n": 2}, owner="ann", idempotency_key="k")


async def test_cancel_returns_the_job_and_whether_it_changed(queue: Queue) -> None:
    job = await queue.submit("mail")
    first = await queue.cancel(job.id, reason="duplicate", by="user:alice")
    second = await queue.cancel(job.id, reason="other", by="user:bob")
    assert (first.changed, second.changed) == (True, False)
    assert first.status == second.status == TaskStatus.Cancelled
    assert (second.last_error, second.cancelled_by) == ("duplicate", "user:alice")
    assert second.cancelled_at == first.cancelled_at is not None
    assert not second.cancel_requested


async def test_a_finished_job_cannot_be_cancelled_and_says_its_status(queue: Queue) -> None:
    job = await queue.submit("mail")
    await queue.complete_unheld(job.id, {"sent": True})
    with pytest.raises(CannotCancelError, match="completed") as caught:
        await queue.cancel(job.id)
    assert caught.value.status is TaskStatus.Completed
    assert (await queue.get(job.id)).output == {"sent": True}


async def test_request_cancellation_is_for_running_jobs(queue: Queue) -> None:
    job = await queue.submit("mail")
    with pytest.raises(CannotCancelError) as caught:
        await queue.request_cancellation(job.id)
    assert caught.value.status is TaskStatus.Pending
    assert (await queue.get(job.id)).status is TaskStatus.Pending


async def test_cancel_many_answers_each_id_and_raises_for_none(queue: Queue) -> None:
    waiting, done = [await queue.submit("mail") for _ in range(2)]
    await queue.complete_unheld(done.id)
    answers = await queue.cancel_many([waiting.id, done.id, "nobody", "not/an/id", waiting.id])
    assert {job_id: each.outcome for job_id, each in answers.items()} == {
        waiting.id: CancelOutcome.SUCCESS,
        done.id: CancelOutcome.INVALID_STATUS,
        "nobody": CancelOutcome.NOT_FOUND,
        "not/an/id": CancelOutcome.NOT_FOUND,
    }
    assert isinstance(answers[done.id].error, CannotCancelError)


async def test_cancel_many_answers_for_what_is_no_id_in_its_place(queue: Queue) -> None:
    job = await queue.submit("mail")
    strange: list[Any] = ["a\udce4", job.id, uuid.UUID(job.id), None, ["a"]]
    answers = await queue.cancel_many(strange)
    assert [each.outcome for each in answers.values()] == [
        CancelOutcome.NOT_FOUND,
        CancelOutcome.SUCCESS,
        *[CancelOutcome.NOT_FOUND] * 3,
    ]
    assert isinstance(answers["a\udce4"].error, JobNotFoundError)
    assert "pass str(id)" in str(answers[strange[2]].error)


@pytest.mark.parametrize("ids", ["abc", 5, None])
async def test_cancel_many_takes_a_list(queue: Queue, ids: Any) -> None:
    with pytest.raises(InvalidInput, match="ids must be a list of job ids, not"):
        await queue.cancel_many(ids)


BY_ID: dict[str, Callable[[Queue, Any], Coroutine[Any, Any, object]]] = {
    "get": lambda queue, job_id: queue.get(job_id),
    "history": lambda queue, job_id: queue.history(job_id),
    "wait": lambda queue, job_id: queue.wait(job_id, timeout=0),
    "cancel": lambda queue, job_id: queue.cancel(job_id),
    "request_cancellation": lambda queue, job_id: queue.request_cancellation(job_id),
    "complete_unheld": lambda queue, job_id: queue.complete_unheld(job_id),
    "reschedule_unheld": lambda queue, job_id: queue.reschedule_unheld(job_id, "mail"),
}


@pytest.mark.parametrize("call", BY_ID.values(), ids=BY_ID)
async def test_an_id_is_a_str_and_nothing_else(queue: Queue, call: Callable[[Queue, Any], Any]) -> None:
    job = await queue.submit("mail")
    for id in (uuid.UUID(job.id), None, 7, job.id.encode(), [job.id]):
        with pytest.raises(InvalidInput, match=r"is not a str: pass str\(id\)"):
            await call(queue, id)
    assert await queue.get(job.id) == job


@pytest.mark.parametrize("call", BY_ID.values(), ids=BY_ID)
async def test_a_text_that_is_no_id_names_no_job_and_the_store_is_not_asked(
    queue: Queue, call: Callable[[Queue, Any], Any]
) -> None:
    await queue.close()  # the store would complain
    for id in ("", "a/b", "a\udce4", "a\x00", "a" * 129):
        with pytest.raises(JobNotFoundError) as caught:
            await call(queue, id)
        assert caught.value.job_id == id


async def test_cancel_by_type_counts_pending_jobs_only(queue: Queue) -> None:
    await queue.submit_many([{"need": "old"}] * 2_500 + [{"need": "new"}])
    running = await queue.submit("old", priority=9)
    await _claim_one(queue, "old")
    assert await queue.cancel_by_type("old", dry_run=True) == 2_500
    assert await queue.count(status="cancelled") == 0
    assert await queue.cancel_by_type("old", reason="gone") == 2_500
    assert (await queue.get(running.id)).status is TaskStatus.Running
    assert await queue.cancel_by_type("old", running=True) == 1
    assert (await queue.get(running.id)).cancel_requested
    assert await queue.count(need="new", status="pending") == 1


async def test_cancel_by_owner_touches_only_that_owners_jobs(queue: Queue) -> None:
    await queue.submit_many([{"need": "a", "owner": "ann"}, {"need": "b", "owner": "ann"}, {"need": "a"}])
    assert await queue.cancel_by_owner("ann", "ann left", by="user:bob") == 2
    assert await queue.count(status="pending") == 1
    assert {(job.cancelled_by, job.last_error) for job in await queue.list(status="cancelled")} == {
        ("user:bob", "ann left")
    }


async def test_a_bulk_cancel_without_a_selector_is_refused(queue: Queue) -> None:
    await queue.submit("mail")
    with pytest.raises(InvalidInput, match="which jobs"):
        async for _ in queue.cancel_matching(Selector()):
            pass
    assert await queue.count(status="pending") == 1


async def test_a_list_is_newest_first_and_pages(queue: Queue) -> None:
    jobs = await queue.submit_many([{"need": "mail", "id": f"m{n}"} for n in range(5)])
    first = await queue.list(limit=3)
    rest = await queue.list(limit=3, after=first.next)
    assert [job.id for job in [*first, *rest]] == [job.id for job in reversed(jobs)]
    assert rest.next is None


async def test_a_list_is_narrowed_by_status_need_and_owner(queue: Queue) -> None:
    await queue.submit_many([{"need": "a", "owner": "ann"}, {"need": "b"}])
    await queue.cancel_by_type("b")
    assert [job.need for job in await queue.list(status=TaskStatus.Cancelled)] == ["b"]
    assert [job.need for job in await queue.list(owner="ann", need="a", status="pending")] == ["a"]
    assert len(await queue.list(status="archived")) == 0
    with pytest.raises(InvalidInput, match="no status 'gone'"):
        await queue.list(status="gone")


MISTAKES: dict[str, Callable[[Any], Coroutine[Any, Any, object]]] = {
    "after must be a text": lambda queue: queue.list(after=5),
    "limit must be a whole number from 1 to 1000": lambda queue: queue.list(limit="x"),
    "need must be a text": lambda queue: queue.list(need={"mail"}),
    "owner must be a text": lambda queue: queue.count(owner=3),
    "no status 5": lambda queue: queue.count(status=5),
    "timeout must be a number of seconds or None, not 'x'": lambda queue: queue.wait("one", timeout="x"),
    "timeout must be .* not nan": lambda queue: queue.wait("one", timeout=float("nan")),
    "singleton_key must be a text": lambda queue: queue.reschedule_unheld("one", "mail", singleton_key=""),
    "amount must be a whole number": lambda queue: queue.credit("ann", "5"),
    "by must be a text": lambda queue: queue.credit("ann", 5, by=7),
    "key must be a text": lambda queue: queue.credit("ann", 5, key=7),
}


@pytest.mark.parametrize(("words", "call"), MISTAKES.items(), ids=MISTAKES)
async def test_a_value_of_the_wrong_kind_is_named(
    queue: Queue, words: str, call: Callable[[Any], Coroutine[Any, Any, object]]
) -> None:
    job = await queue.submit("mail", id="one")
    with pytest.raises(InvalidInput, match=words):
        await call(queue)
    assert await queue.get("one") == job


async def test_history_names_every_actor(queue: Queue) -> None:
    job = await queue.submit("mail", by="user:ann")
    await queue.cancel(job.id, reason="No longer needed", by="user:alice")
    lines = [(event.verb, event.actor, event.reason) for event in await queue.history(job.id)]
    assert lines == [("submit", "user:ann", None), ("cancel", "user:alice", "No longer needed")]
    with pytest.raises(JobNotFoundError):
        await queue.history("nobody")


async def test_wait_returns_the_ended_job_or_times_out(queue: Queue) -> None:
    job = await queue.submit("mail")
    with pytest.raises(TimeoutError):
        await queue.wait(job.id, timeout=0.02)
    with pytest.raises(TimeoutError):  # the caller's own time is up, which is no mistake of theirs
        await queue.wait(job.id, timeout=-1)
    waiting = asyncio.create_task(queue.wait(job.id, timeout=30))
    await queue.cancel(job.id)
    assert (await waiting).status is TaskStatus.Cancelled


async def test_past_its_retention_a_job_is_archived_without_its_payload(
    queue: Queue, clock: SystemClock
) -> None:
    job = await queue.submit("mail", {"secret": 1})
    await queue.cancel(job.id)
    await queue.sweep()
    clock.shift(queue.settings.retention.total_seconds() + 1)
    swept = await queue.sweep()
    gone = await queue.get(job.id)
    assert (swept.purged, gone.status, gone.input) == (1, TaskStatus.Archived, None)
    assert len(await queue.history(job.id)) >= 3
    with pytest.raises(JobNotFoundError):
        await queue.cancel("nobody")


async def test_the_longest_retention_leads_to_no_day_before_the_calendar(queue: Queue) -> None:
    patient = Queue(queue.engine, Settings(retention_days=36_500))
    await patient.cancel((await patient.submit("mail")).id)
    swept = await patient.sweep()
    assert (swept.archived, swept.purged) == (1, 0)


async def test_a_purged_job_says_archived_when_cancelled(queue: Queue, clock: SystemClock) -> None:
    job = await queue.submit("mail")
    await queue.complete_unheld(job.id)
    clock.shift(queue.settings.retention.total_seconds() + 1)
    await queue.sweep()
    with pytest.raises(CannotCancelError) as caught:
        await queue.cancel(job.id)
    assert caught.value.status is TaskStatus.Archived


async def test_cancels_are_counted_by_need_and_outcome(queue: Queue) -> None:
    def counted(outcome: str) -> float:
        labels = {"task_type": "counted", "outcome": outcome}
        return REGISTRY.get_sample_value("rescind_cancel_requests_total", labels) or 0

    job = await queue.submit("counted")
    await queue.cancel(job.id)
    await queue.cancel(job.id)
    assert (counted("success"), counted("already_cancelled")) == (1, 1)
    assert REGISTRY.get_sample_value("rescind_tasks_cancelled_total", {"task_type": "counted"}) == 1


async def test_an_account_is_credited_once_per_key(queue: Queue) -> None:
    await queue.credit("ann", 100, key="invoice-1")
    await queue.credit("ann", 100, key="invoice-1")
    assert (await queue.account("ann")).available == 100
    with pytest.raises(IdempotencyConflict):
        await queue.credit("bob", 100, key="invoice-1")
    with pytest.raises(InvalidInput):
        await queue.credit("ann", 0)


async def _claim_one(queue: Queue, need: str) -> None:
    """A worker takes the most urgent job of a need and keeps it."""
    claim = Claim(worker="somebody", needs=(need,), limit=1, lease_seconds=60)
    assert await queue.engine.claim(claim)
