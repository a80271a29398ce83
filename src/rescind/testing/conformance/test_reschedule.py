"""reschedule: a job moves on to its next need, under its worker's lease."""

from datetime import timedelta

import pytest

from rescind.errors import JobCancelled, UnknownDependency
from rescind.state import State
from rescind.testing import Harness


async def test_a_rescheduled_job_is_claimed_by_who_serves_its_new_need(harness: Harness) -> None:
    held = await harness.running(input="page")
    moved = await harness.reschedule(held, "print")
    assert (moved.need, moved.state, moved.lease_id) == ("print", State.READY, None)
    assert await harness.claim("work") == []
    again = await harness.claim_one("print")
    assert (again.id, again.input, again.attempt) == (held.id, "page", 2)


async def test_a_rescheduled_job_may_wait_for_a_time(harness: Harness) -> None:
    held = await harness.running()
    moved = await harness.reschedule(held, available_at=harness.now() + timedelta(minutes=5))
    assert moved.state is State.AWAITING_FUTURE
    assert await harness.claim("next") == []
    await harness.advance(301)
    assert (await harness.claim_one("next")).id == held.id


async def test_a_rescheduled_job_may_wait_for_its_children(harness: Harness) -> None:
    held = await harness.running()
    children = [await harness.submit("child") for _ in range(2)]
    moved = await harness.reschedule(held, wait_for=tuple(child.id for child in children))
    assert moved.state is State.PENDING_JOBS
    for child in children:
        assert await harness.claim("next") == []
        await harness.complete_unheld(child.id)
    assert (await harness.claim_one("next")).id == held.id


async def test_a_new_step_has_all_its_attempts_before_it(harness: Harness) -> None:
    held = await harness.running(max_attempts=2)
    await harness.fail(held)
    moved = await harness.reschedule(await harness.claim_one())
    assert moved.failures == 0


async def test_the_singleton_key_is_the_one_the_new_step_gives(harness: Harness) -> None:
    held = await harness.running(singleton_key="printer")
    assert (await harness.reschedule(held, singleton_key="press")).singleton_key == "press"
    again = await harness.claim_one("next")
    assert (await harness.reschedule(again, "last")).singleton_key is None


async def test_a_job_being_cancelled_cannot_be_rescheduled(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id)
    with pytest.raises(JobCancelled) as caught:
        await harness.reschedule(held)
    assert str(caught.value) == f"job {held.id} is cancelled and cannot be rescheduled"
    assert (await harness.get(held.id)).cancelling


async def test_a_refused_reschedule_leaves_the_lease_in_place(harness: Harness) -> None:
    held = await harness.running(singleton_key="printer")
    await harness.submit(singleton_key="printer")
    with pytest.raises(UnknownDependency):
        await harness.reschedule(held, wait_for=("nobody",))
    assert await harness.get(held.id) == held
    assert await harness.claim() == []
    assert (await harness.complete(held)).state is State.COMPLETED
