"""cancel: what it does to a job, what it answers, and whom it believes."""

import pytest

from rescind.engine import Selector
from rescind.errors import CannotCancelError, JobNotFoundError, LeaseLost
from rescind.job import CancelOutcome, Outcome
from rescind.lease import Rung
from rescind.state import State, TaskStatus
from rescind.testing import Harness


async def test_a_waiting_job_is_cancelled_at_once(harness: Harness) -> None:
    # Given
    job = await harness.submit()
    # When
    answer = await harness.cancel(job.id, by="ann", reason="typo")
    # Then
    assert (answer.outcome, answer.changed, answer.error) == (CancelOutcome.SUCCESS, True, None)
    assert answer.job == await harness.get(job.id)
    assert answer.job.state is State.CANCELLED
    assert (answer.job.cancelled_by, answer.job.cancel_reason, answer.job.last_error) == (
        "ann",
        "typo",
        "typo",
    )
    assert answer.job.cancelled_at == answer.job.cancel_requested_at
    assert answer.job.rung is Rung.PENDING


async def test_a_cancelled_job_is_never_handed_out(harness: Harness) -> None:
    job = await harness.submit()
    await harness.cancel(job.id)
    assert await harness.claim() == []
    await harness.sweep()
    assert await harness.claim() == []


async def test_a_delayed_job_stays_cancelled_when_its_time_comes(harness: Harness) -> None:
    job = await harness.submit(delay_seconds=60)
    await harness.cancel(job.id)
    await harness.advance(61)
    assert await harness.claim() == []
    assert (await harness.get(job.id)).state is State.CANCELLED


async def test_a_blocked_job_stays_cancelled_when_its_dependency_ends(harness: Harness) -> None:
    first = await harness.submit("elsewhere")
    job = await harness.submit(wait_for=[first.id])
    await harness.cancel(job.id)
    await harness.complete_unheld(first.id)
    assert await harness.claim() == []
    assert (await harness.get(job.id)).state is State.CANCELLED


async def test_a_running_job_is_asked_to_stop_and_keeps_its_lease(harness: Harness) -> None:
    held = await harness.running()
    answer = await harness.cancel(held.id, by="ann", reason="too slow")
    assert (answer.outcome, answer.changed) == (CancelOutcome.SUCCESS, True)
    assert answer.job is not None
    assert answer.job.cancelling and answer.job.cancel_requested
    assert answer.job.lease == held.lease
    assert answer.job.cancelled_at is None and answer.job.cancelled_by is None


async def test_a_running_job_may_still_finish_with_the_request_on_record(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id, by="ann")
    done = await harness.complete(held, "the answer")
    assert (done.outcome, done.output, done.cancel_requested_by) == (Outcome.COMPLETED, "the answer", "ann")
    assert done.receipt is not None and done.receipt.stopped_at is None


async def test_a_failure_after_the_request_is_a_cancel_and_is_not_retried(harness: Harness) -> None:
    held = await harness.running(max_attempts=5)
    await harness.cancel(held.id, reason="enough")
    stopped = await harness.fail(held, "interrupted", retry_seconds=0)
    assert (stopped.outcome, stopped.failures, stopped.last_error) == (Outcome.CANCELLED, 0, "enough")
    assert await harness.claim() == []


async def test_a_lapsed_lease_after_the_request_is_a_cancel(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id)
    await harness.advance(61)
    assert (await harness.get(held.id)).state is State.CANCELLED
    assert await harness.claim() == []
    job = await harness.get(held.id)
    assert (job.rung, job.stopped_at) == (Rung.LAPSED, held.lease_expires_at)


async def test_cancelling_again_succeeds_and_changes_nothing(harness: Harness) -> None:
    job = await harness.submit()
    first = await harness.cancel(job.id, by="ann", reason="typo")
    again = await harness.cancel(job.id, by="bob", reason="me too")
    assert (again.outcome, again.changed, again.error) == (CancelOutcome.ALREADY_CANCELLED, False, None)
    assert again.job == first.job
    assert await harness.verbs(job.id) == ["submit", "cancel"]


async def test_asking_a_running_job_again_never_overwrites_the_first_requester(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id, by="ann", reason="first")
    again = await harness.cancel(held.id, by="bob", reason="second")
    assert again.changed is False
    assert again.job is not None and (again.job.cancel_requested_by, again.job.cancel_reason) == (
        "ann",
        "first",
    )


async def test_an_archived_cancel_is_still_a_success(harness: Harness) -> None:
    job = await harness.submit()
    await harness.cancel(job.id)
    await harness.sweep()
    again = await harness.cancel(job.id)
    assert (again.outcome, again.changed) == (CancelOutcome.ALREADY_CANCELLED, False)


async def test_a_completed_job_cannot_be_cancelled_and_the_error_says_how_it_ended(harness: Harness) -> None:
    held = await harness.running()
    await harness.complete(held)
    answer = await harness.cancel(held.id)
    assert (answer.outcome, answer.changed) == (CancelOutcome.INVALID_STATUS, False)
    assert isinstance(answer.error, CannotCancelError)
    assert answer.error.status is TaskStatus.Completed
    assert str(answer.error) == f"cannot cancel job {held.id}: it is completed"
    assert answer.job == await harness.get(held.id)


async def test_a_failed_job_cannot_be_cancelled(harness: Harness) -> None:
    held = await harness.running()
    await harness.fail(held, retry_seconds=None)
    answer = await harness.cancel(held.id)
    assert isinstance(answer.error, CannotCancelError)
    assert answer.error.status is TaskStatus.Failed


async def test_a_purged_job_cannot_be_cancelled_and_is_called_archived(harness: Harness) -> None:
    held = await harness.running()
    await harness.complete(held)
    await harness.advance(31 * 86_400)
    await harness.sweep()
    answer = await harness.cancel(held.id)
    assert isinstance(answer.error, CannotCancelError)
    assert answer.error.status is TaskStatus.Archived


async def test_an_unknown_job_is_not_found(harness: Harness) -> None:
    answer = await harness.cancel("nobody")
    assert (answer.outcome, answer.changed, answer.job) == (CancelOutcome.NOT_FOUND, False, None)
    assert isinstance(answer.error, JobNotFoundError)


async def test_force_ends_a_running_job_now_and_fences_its_worker_off(harness: Harness) -> None:
    held = await harness.running()
    answer = await harness.cancel(held.id, force=True, by="root")
    assert answer.changed and answer.job is not None
    assert (answer.job.state, answer.job.rung, answer.job.lease_id) == (State.CANCELLED, Rung.FORCED, None)
    with pytest.raises(LeaseLost):
        await harness.complete(held, "too late")
    with pytest.raises(LeaseLost):
        await harness.extend(held)
    assert (await harness.get(held.id)).output is None


async def test_force_after_a_request_changes_the_job_and_keeps_the_first_requester(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id, by="ann", reason="please")
    forced = await harness.cancel(held.id, by="root", reason="now", force=True)
    assert forced.changed and forced.job is not None
    assert forced.job.state is State.CANCELLED
    assert (forced.job.cancelled_by, forced.job.cancel_reason) == ("ann", "please")
    last = (await harness.history(held.id))[-1]
    assert (last.verb, last.actor, last.reason) == ("force_cancel", "root", "now")


async def test_forcing_twice_changes_once(harness: Harness) -> None:
    held = await harness.running()
    answers = [await harness.cancel(held.id, force=True) for _ in range(2)]
    assert [answer.changed for answer in answers] == [True, False]


async def test_force_cannot_change_how_a_finished_job_ended(harness: Harness) -> None:
    held = await harness.running()
    await harness.complete(held)
    answer = await harness.cancel(held.id, force=True)
    assert isinstance(answer.error, CannotCancelError)
    assert (await harness.get(held.id)).outcome is Outcome.COMPLETED


async def test_running_only_asks_a_running_job(harness: Harness) -> None:
    held = await harness.running()
    answer = await harness.cancel(held.id, running_only=True)
    assert answer.changed and answer.job is not None and answer.job.cancelling


async def test_running_only_refuses_a_waiting_job_and_leaves_it_alone(harness: Harness) -> None:
    job = await harness.submit()
    answer = await harness.cancel(job.id, running_only=True)
    assert isinstance(answer.error, CannotCancelError)
    assert answer.error.status is TaskStatus.Pending
    assert (await harness.get(job.id)).state is State.READY


async def test_the_receipt_tells_the_whole_cancel(harness: Harness) -> None:
    # Given a running job that was asked to stop
    held = await harness.running()
    await harness.cancel(held.id, by="ann", reason="typo")
    # When the heartbeat brings the request and the handler stops
    told = await harness.extend(held)
    seen = harness.now()
    stopped = await harness.acknowledge(held, acknowledged_at=seen)
    # Then all four times are there, in order
    receipt = stopped.receipt
    assert receipt is not None and receipt.delivered_at and receipt.acknowledged_at and receipt.stopped_at
    assert (receipt.by, receipt.reason, receipt.rung) == ("ann", "typo", Rung.FLAG)
    assert receipt.delivered_at == told.delivered_at
    assert receipt.requested_at <= receipt.delivered_at <= receipt.acknowledged_at <= receipt.stopped_at


async def test_many_ids_get_one_answer_each_in_order(harness: Harness) -> None:
    waiting = await harness.submit("elsewhere")
    held = await harness.running()
    done = await harness.submit("elsewhere")
    await harness.complete_unheld(done.id)
    ids = (done.id, "nobody", held.id, waiting.id)
    answers = await harness.cancel_many(Selector(ids=ids))
    assert tuple(answer.id for answer in answers) == ids
    assert [answer.outcome for answer in answers] == [
        CancelOutcome.INVALID_STATUS,
        CancelOutcome.NOT_FOUND,
        CancelOutcome.SUCCESS,
        CancelOutcome.SUCCESS,
    ]


async def test_an_id_named_twice_is_changed_once(harness: Harness) -> None:
    await harness.credit("ann", 100)
    job = await harness.submit(owner="ann", estimate=10)
    answers = await harness.cancel_many(Selector(ids=(job.id, job.id)))
    assert [answer.changed for answer in answers] == [True, False]
    assert await harness.verbs(job.id) == ["submit", "cancel"]
    assert await harness.balance("ann") == (100, 0)


async def test_by_need_touches_what_waits_and_leaves_what_runs(harness: Harness) -> None:
    held = await harness.running()
    ready = await harness.submit()
    later = await harness.submit(delay_seconds=60)
    blocked = await harness.submit(wait_for=[held.id])
    other = await harness.submit("elsewhere")
    answers = await harness.cancel_many(Selector(need="work"))
    assert {answer.id for answer in answers if answer.changed} == {ready.id, later.id, blocked.id}
    assert (await harness.get(held.id)).cancel_requested_at is None
    assert (await harness.get(other.id)).state is State.READY


async def test_by_need_with_running_touches_both(harness: Harness) -> None:
    held = await harness.running()
    ready = await harness.submit()
    answers = await harness.cancel_many(Selector(need="work", running=True))
    assert {answer.id for answer in answers if answer.changed} == {ready.id, held.id}
    assert (await harness.get(held.id)).cancelling


async def test_by_need_touches_a_job_whose_lease_has_lapsed(harness: Harness) -> None:
    held = await harness.running()
    await harness.advance(61)
    assert (await harness.get(held.id)).state is State.READY
    answers = await harness.cancel_many(Selector(need="work"))
    assert [(answer.id, answer.changed) for answer in answers] == [(held.id, True)]


async def test_by_need_leaves_finished_and_cancelled_jobs_out_of_the_answer(harness: Harness) -> None:
    for job in await harness.submit_many(2):
        await harness.complete_unheld(job.id)
    await harness.cancel((await harness.submit()).id)
    failed = await harness.running(max_attempts=1)
    await harness.advance(61)
    assert (await harness.get(failed.id)).state is State.FAILED
    assert [answer.id for answer in await harness.cancel_many(Selector(need="work")) if answer.changed] == []


async def test_by_owner_touches_that_owners_jobs_of_any_need(harness: Harness) -> None:
    hers = {(await harness.submit(owner="ann")).id, (await harness.submit("elsewhere", owner="ann")).id}
    await harness.submit(owner="bob")
    await harness.submit()
    answers = await harness.cancel_many(Selector(owner="ann"))
    assert {answer.id for answer in answers} == hers


async def test_need_and_owner_together_mean_both(harness: Harness) -> None:
    meant = await harness.submit(owner="ann")
    await harness.submit("elsewhere", owner="ann")
    await harness.submit(owner="bob")
    answers = await harness.cancel_many(Selector(need="work", owner="ann"))
    assert [answer.id for answer in answers] == [meant.id]


async def test_a_bulk_cancel_goes_page_by_page_and_meets_each_job_once(harness: Harness) -> None:
    # Given
    ids = {(await harness.submit(delay_seconds=60 * (number % 3))).id for number in range(7)}
    # When each page begins after the last id of the one before
    seen: list[str] = []
    while page := await harness.cancel_many(Selector(need="work"), limit=3, after=seen[-1] if seen else ""):
        assert len(page) <= 3
        seen.extend(answer.id for answer in page)
    # Then
    assert len(seen) == len(ids) and set(seen) == ids


async def test_a_dry_run_pages_too_although_nothing_changes_beneath_it(harness: Harness) -> None:
    ids = {job.id for job in await harness.submit_many(5)}
    seen: list[str] = []
    after = ""
    while page := await harness.cancel_many(Selector(need="work"), limit=2, after=after, dry_run=True):
        seen.extend(answer.id for answer in page)
        after = seen[-1]
    assert len(seen) == len(ids) and set(seen) == ids


async def test_a_dry_run_answers_what_would_happen_and_touches_nothing(harness: Harness) -> None:
    # Given
    held = await harness.running()
    ready = await harness.submit()
    done = await harness.submit("elsewhere")
    await harness.complete_unheld(done.id)
    before, events = await harness.jobs(), len(await harness.events())
    ids = (held.id, ready.id, done.id, "nobody")
    # When
    would = await harness.cancel_many(Selector(ids=ids), dry_run=True)
    # Then
    assert await harness.jobs() == before
    assert len(await harness.events()) == events
    did = await harness.cancel_many(Selector(ids=ids))
    assert [(each.outcome, each.changed) for each in would] == [(each.outcome, each.changed) for each in did]
    assert [each.job and each.job.state for each in would] == [each.job and each.job.state for each in did]


async def test_a_dry_run_says_what_it_would_cost(harness: Harness) -> None:
    await harness.policy(min_start_fee=3)
    await harness.credit("ann", 100)
    held = await harness.running(owner="ann", estimate=10)
    await harness.extend(held, work_started=True)
    would = (await harness.cancel_many(Selector(ids=(held.id,)), dry_run=True))[0]
    assert would.job is not None and (would.job.state, would.job.committed) == (State.CANCELLED, 3)
    assert await harness.balance("ann") == (90, 10)


async def test_the_history_names_who_cancelled_and_why(harness: Harness) -> None:
    job = await harness.submit()
    await harness.cancel(job.id, by="ann", reason="typo")
    last = (await harness.history(job.id))[-1]
    assert (last.verb, last.actor, last.reason, last.state) == ("cancel", "ann", "typo", State.CANCELLED)


async def test_a_cancel_needs_no_reason(harness: Harness) -> None:
    job = await harness.submit()
    answer = await harness.cancel(job.id, reason=None)
    assert answer.changed and answer.job is not None and answer.job.cancel_reason is None


async def test_a_forced_bulk_cancel_reaches_jobs_that_were_only_asked(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id, by="ann")
    (answer,) = await harness.cancel_many(Selector(need=held.need, running=True), force=True)
    assert answer.changed and answer.job is not None
    assert (answer.job.state, answer.job.cancelled_by) == (State.CANCELLED, "ann")
