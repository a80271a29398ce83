"""Moves without a lease: an operator completes or reschedules a job that nobody is working on."""

from datetime import timedelta

import pytest

from rescind.errors import DependencyCycle, JobCancelled, JobNotFoundError, NotAvailable, UnknownDependency
from rescind.job import Outcome
from rescind.state import State
from rescind.testing import Harness


async def test_an_unheld_job_is_completed_with_an_output(harness: Harness) -> None:
    job = await harness.submit()
    done = await harness.complete_unheld(job.id, {"by": "hand"})
    assert (done.outcome, done.output, done.attempt) == (Outcome.COMPLETED, {"by": "hand"}, 0)
    assert await harness.claim() == []
    last = (await harness.history(job.id))[-1]
    assert (last.verb, last.actor) == ("complete_unheld", "operator")


async def test_completing_a_blocked_job_ends_its_waiting(harness: Harness) -> None:
    first = await harness.submit("elsewhere")
    job = await harness.submit(wait_for=[first.id])
    done = await harness.complete_unheld(job.id)
    assert (done.outcome, done.wait_for) == (Outcome.COMPLETED, ())
    await harness.complete_unheld(first.id)
    assert await harness.get(job.id) == done


async def test_completing_an_unheld_job_releases_its_dependents(harness: Harness) -> None:
    job = await harness.submit("elsewhere")
    behind = await harness.submit(wait_for=[job.id])
    await harness.complete_unheld(job.id)
    assert (await harness.claim_one()).id == behind.id


async def test_a_job_whose_time_has_not_come_is_left_alone(harness: Harness) -> None:
    job = await harness.submit(delay_seconds=60)
    for move in (harness.complete_unheld(job.id), harness.reschedule_unheld(job.id)):
        with pytest.raises(NotAvailable):
            await move
    assert (await harness.get(job.id)).state is State.AWAITING_FUTURE


async def test_a_running_job_is_left_alone(harness: Harness) -> None:
    held = await harness.running()
    for move in (harness.complete_unheld(held.id), harness.reschedule_unheld(held.id)):
        with pytest.raises(NotAvailable) as caught:
            await move
        assert caught.value.state is State.ACTIVE
    assert await harness.get(held.id) == held


async def test_a_cancelled_job_stays_cancelled(harness: Harness) -> None:
    job = await harness.submit()
    await harness.cancel(job.id)
    for move in (harness.complete_unheld(job.id), harness.reschedule_unheld(job.id)):
        with pytest.raises(JobCancelled):
            await move
    assert (await harness.get(job.id)).state is State.CANCELLED


async def test_an_unknown_job_is_not_found(harness: Harness) -> None:
    for move in (harness.complete_unheld("nobody"), harness.reschedule_unheld("nobody")):
        with pytest.raises(JobNotFoundError):
            await move


async def test_an_unheld_job_moves_to_another_need(harness: Harness) -> None:
    job = await harness.submit()
    moved = await harness.reschedule_unheld(job.id, "other")
    assert (moved.need, moved.state) == ("other", State.READY)
    assert await harness.claim("work") == []
    assert (await harness.claim_one("other")).id == job.id


async def test_a_rescheduled_job_waits_for_what_it_is_told_now(harness: Harness) -> None:
    # Given a job that waits for one
    old, new = await harness.submit("elsewhere"), await harness.submit("elsewhere")
    job = await harness.submit(wait_for=[old.id])
    # When it is told to wait for another
    await harness.reschedule_unheld(job.id, "next", wait_for=(new.id,))
    await harness.complete_unheld(old.id)
    # Then the first one does not matter any more
    assert (await harness.get(job.id)).state is State.PENDING_JOBS
    await harness.complete_unheld(new.id)
    assert (await harness.claim_one("next")).id == job.id


async def test_a_rescheduled_job_may_wait_for_a_time(harness: Harness) -> None:
    job = await harness.submit()
    await harness.reschedule_unheld(job.id, available_at=harness.now() + timedelta(minutes=1))
    assert await harness.claim("next") == []
    await harness.advance(61)
    assert (await harness.claim_one("next")).id == job.id


async def test_a_lapsed_job_may_be_moved_and_its_old_holder_is_fenced_off(harness: Harness) -> None:
    silent = await harness.running()
    await harness.advance(61)
    moved = await harness.reschedule_unheld(silent.id)
    assert (moved.state, moved.lease_id) == (State.READY, None)


async def test_a_refused_reschedule_changes_nothing(harness: Harness) -> None:
    first = await harness.submit("elsewhere")
    job = await harness.submit(wait_for=[first.id])
    behind = await harness.submit(wait_for=[job.id])
    before = await harness.get(job.id)
    for wrong, refusal in (("nobody", UnknownDependency), (behind.id, DependencyCycle)):
        with pytest.raises(refusal):
            await harness.reschedule_unheld(job.id, wait_for=(wrong,))
    assert await harness.get(job.id) == before
    await harness.complete_unheld(first.id)
    assert (await harness.claim_one()).id == job.id
