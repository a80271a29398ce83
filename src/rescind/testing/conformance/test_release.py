"""release: a worker gives a job back untouched, as at shutdown."""

from rescind.job import Outcome
from rescind.lease import Rung
from rescind.state import State
from rescind.testing import Harness


async def test_a_released_job_is_ready_at_once_and_no_failure_is_counted(harness: Harness) -> None:
    held = await harness.running(max_attempts=1)
    back = await harness.release(held, "shutdown")
    assert (back.state, back.failures, back.attempt, back.lease_id) == (State.READY, 0, 1, None)
    again = await harness.claim_one()
    assert (again.id, again.attempt, again.lease.token) == (held.id, 2, 2)


async def test_a_job_may_be_released_more_often_than_it_may_fail(harness: Harness) -> None:
    await harness.submit(max_attempts=1)
    for _ in range(4):
        await harness.release(await harness.claim_one())
    assert (await harness.complete(await harness.claim_one())).outcome is Outcome.COMPLETED


async def test_releasing_a_job_being_cancelled_stops_it(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id, reason="typo")
    stopped = await harness.release(held, "shutdown")
    assert (stopped.outcome, stopped.last_error, stopped.rung) == (Outcome.CANCELLED, "typo", Rung.FLAG)
    assert await harness.claim() == []


async def test_the_history_keeps_why_it_was_released(harness: Harness) -> None:
    held = await harness.running()
    await harness.release(held, "SIGTERM")
    last = (await harness.history(held.id))[-1]
    assert (last.verb, last.actor, last.reason) == ("release", "worker-1", "SIGTERM")
