"""wait_for: a job waits until others have ended, and may ask to be cancelled with them."""

from typing import Any

import pytest

from rescind.errors import DependencyCycle, UnknownDependency
from rescind.job import Outcome
from rescind.state import State
from rescind.testing import Harness


async def _end(harness: Harness, outcome: Outcome) -> str:
    """A job that has ended so."""
    held = await harness.running(need="first")
    if outcome is Outcome.COMPLETED:
        await harness.complete(held)
    elif outcome is Outcome.FAILED:
        await harness.fail(held, retry_seconds=None)
    else:
        await harness.cancel(held.id)
        await harness.acknowledge(held)
    return held.id


async def test_a_job_waits_until_all_others_have_ended(harness: Harness) -> None:
    first, second = await harness.submit("first"), await harness.submit("first")
    job = await harness.submit(wait_for=[first.id, second.id])
    assert job.state is State.PENDING_JOBS
    for other in (first, second):
        assert await harness.claim() == []
        await harness.complete_unheld(other.id)
    held = await harness.claim_one()
    assert (held.id, held.wait_for) == (job.id, ())
    assert held.unblocked_at is not None


async def test_a_job_named_twice_is_waited_for_once(harness: Harness) -> None:
    first = await harness.submit("first")
    job = await harness.submit(wait_for=[first.id, first.id])
    assert job.wait_for == (first.id,)
    await harness.complete_unheld(first.id)
    assert (await harness.claim_one()).id == job.id


async def test_one_job_may_hold_back_many(harness: Harness) -> None:
    first = await harness.submit("first")
    await harness.submit_many(20, wait_for=[first.id])
    await harness.complete(await harness.claim_one("first"))
    assert len(await harness.claim()) == 20


async def test_a_retry_of_the_dependency_frees_nobody(harness: Harness) -> None:
    held = await harness.running(need="first")
    await harness.submit(wait_for=[held.id])
    await harness.fail(held, retry_seconds=0)
    assert await harness.claim() == []


async def test_time_and_dependencies_must_both_be_met(harness: Harness) -> None:
    first = await harness.submit("first")
    job = await harness.submit(wait_for=[first.id], delay_seconds=60)
    await harness.complete_unheld(first.id)
    assert (await harness.get(job.id)).state is State.AWAITING_FUTURE
    await harness.advance(61)
    assert (await harness.claim_one()).id == job.id


@pytest.mark.parametrize("running", [False, True])
async def test_a_cancelled_dependency_frees_its_dependents_at_archival(
    harness: Harness, running: bool
) -> None:
    first = await (harness.running(need="first") if running else harness.submit("first"))
    job = await harness.submit(wait_for=[first.id])
    await harness.cancel(first.id, force=True)
    assert await harness.claim() == []
    await harness.sweep()
    assert (await harness.claim_one()).id == job.id


async def test_a_dependent_may_ask_to_be_cancelled_with_its_dependency(harness: Harness) -> None:
    first = await harness.submit("first")
    job = await harness.submit(wait_for=[first.id], on_dependency_cancelled="cancel")
    await harness.cancel(first.id)
    await harness.sweep()
    cancelled = await harness.get(job.id)
    assert (cancelled.outcome, cancelled.cancelled_by) == (Outcome.CANCELLED, f"job:{first.id}")
    assert cancelled.cancel_reason == f"job {first.id}, which it waited for, was cancelled"


async def test_a_failed_dependency_cancels_its_dependents_unless_told_otherwise(harness: Harness) -> None:
    held = await harness.running(need="first")
    strict = await harness.submit(wait_for=[held.id])
    lenient = await harness.submit(wait_for=[held.id], on_dependency_failed="release")
    await harness.fail(held, retry_seconds=None)
    assert (await harness.get(strict.id)).state is State.CANCELLED
    assert [job.id for job in await harness.claim()] == [lenient.id]


async def test_a_dependency_that_lapses_for_good_has_failed(harness: Harness) -> None:
    held = await harness.running(need="first", max_attempts=1)
    job = await harness.submit(wait_for=[held.id])
    await harness.advance(61)
    await harness.sweep()
    assert (await harness.get(job.id)).outcome is Outcome.CANCELLED


async def test_a_dependency_that_times_out_has_failed(harness: Harness) -> None:
    await harness.policy("first", activation_timeout_seconds=60)
    first = await harness.submit("first")
    job = await harness.submit(wait_for=[first.id])
    await harness.advance(61)
    await harness.sweep()
    assert (await harness.get(job.id)).outcome is Outcome.CANCELLED


async def test_a_completion_despite_a_cancel_request_counts_as_completed(harness: Harness) -> None:
    held = await harness.running(need="first")
    job = await harness.submit(wait_for=[held.id], on_dependency_cancelled="cancel")
    await harness.cancel(held.id)
    await harness.complete(held)
    assert (await harness.claim_one()).id == job.id


@pytest.mark.parametrize(
    ("outcome", "options", "state"),
    [
        (Outcome.COMPLETED, {}, State.READY),
        (Outcome.CANCELLED, {}, State.READY),
        (Outcome.CANCELLED, {"on_dependency_cancelled": "cancel"}, State.CANCELLED),
        (Outcome.FAILED, {}, State.CANCELLED),
        (Outcome.FAILED, {"on_dependency_failed": "release"}, State.READY),
    ],
)
async def test_a_dependency_that_has_ended_counts_as_if_it_ended_now(
    harness: Harness, outcome: Outcome, options: dict[str, Any], state: State
) -> None:
    first = await _end(harness, outcome)
    job = await harness.submit(wait_for=[first], **options)
    assert job.state is state
    assert job == await harness.get(job.id)
    assert bool(await harness.claim()) is (state is State.READY)


async def test_a_purged_dependency_still_counts_as_ended(harness: Harness) -> None:
    first = await _end(harness, Outcome.COMPLETED)
    await harness.advance(31 * 86_400)
    await harness.sweep()
    assert (await harness.submit(wait_for=[first])).state is State.READY


async def test_one_ended_and_one_open_dependency(harness: Harness) -> None:
    ended, open_ = await _end(harness, Outcome.COMPLETED), await harness.submit("elsewhere")
    job = await harness.submit(wait_for=[ended, open_.id])
    assert (job.state, job.wait_for) == (State.PENDING_JOBS, (open_.id,))


async def test_jobs_of_one_batch_may_wait_for_each_other_in_any_order(harness: Harness) -> None:
    specs = [harness.spec(id="last", wait_for=["first"]), harness.spec("first", id="first")]
    last, _ = await harness.engine.submit(specs)
    assert last.state is State.PENDING_JOBS
    await harness.complete(await harness.claim_one("first"))
    assert (await harness.claim_one()).id == "last"


async def test_a_circle_within_a_batch_is_refused_and_shown(harness: Harness) -> None:
    circle = [
        harness.spec(id="a", wait_for=["b"]),
        harness.spec(id="b", wait_for=["c"]),
        harness.spec(id="c", wait_for=["a"]),
    ]
    with pytest.raises(DependencyCycle) as caught:
        await harness.engine.submit([*circle, harness.spec(id="bystander")])
    assert set(caught.value.ids) == {"a", "b", "c"}
    assert caught.value.ids[0] == caught.value.ids[-1]
    assert await harness.jobs() == []


async def test_a_job_cannot_wait_for_itself(harness: Harness) -> None:
    with pytest.raises(DependencyCycle):
        await harness.submit(id="me", wait_for=["me"])
    held = await harness.running()
    with pytest.raises(DependencyCycle):
        await harness.reschedule(held, wait_for=(held.id,))


async def test_a_reschedule_cannot_close_a_circle(harness: Harness) -> None:
    # Given a running job, and a chain of two behind it
    held = await harness.running()
    middle = await harness.submit(wait_for=[held.id])
    last = await harness.submit(wait_for=[middle.id])
    # When it wants to wait for the end of the chain
    with pytest.raises(DependencyCycle) as caught:
        await harness.reschedule(held, wait_for=(last.id,))
    # Then it is shown the way round, and nothing has changed
    assert caught.value.ids == [held.id, last.id, middle.id, held.id]
    assert await harness.get(held.id) == held


async def test_unknown_ids_are_named(harness: Harness) -> None:
    known = await harness.submit()
    with pytest.raises(UnknownDependency) as caught:
        await harness.submit(wait_for=["nobody", known.id, "no-one"])
    assert caught.value.ids == ["nobody", "no-one"]
    assert str(caught.value) == "wait_for references unknown jobs: nobody, no-one"


async def test_a_dependent_that_is_metered_gets_its_reservation_back_with_the_cascade(
    harness: Harness,
) -> None:
    await harness.credit("ann", 10)
    first = await harness.submit("first")
    await harness.submit(wait_for=[first.id], on_dependency_cancelled="cancel", owner="ann", estimate=10)
    await harness.cancel(first.id)
    await harness.sweep()
    assert await harness.balance("ann") == (10, 0)


async def test_the_history_says_which_job_set_it_free(harness: Harness) -> None:
    first = await harness.submit("first")
    job = await harness.submit(wait_for=[first.id])
    await harness.complete_unheld(first.id)
    last = (await harness.history(job.id))[-1]
    assert (last.verb, last.actor, last.state) == ("unblock", f"job:{first.id}", State.READY)
