"""fail: try again later, or not at all."""

from datetime import timedelta

from rescind.job import Outcome
from rescind.state import State
from rescind.testing import Harness


async def test_a_failure_with_attempts_left_waits_for_its_retry(harness: Harness) -> None:
    held = await harness.running(max_attempts=2)
    waiting = await harness.fail(held, "it broke", retry_seconds=30)
    assert (waiting.state, waiting.failures, waiting.last_error) == (State.AWAITING_FUTURE, 1, "it broke")
    assert waiting.lease_id is None
    assert await harness.claim() == []
    await harness.advance(31)
    assert (await harness.claim_one()).attempt == 2


async def test_a_retry_may_be_at_once(harness: Harness) -> None:
    held = await harness.running()
    assert (await harness.fail(held, retry_seconds=0)).state is State.READY
    assert (await harness.claim_one()).attempt == 2


async def test_the_last_attempt_ends_the_job(harness: Harness) -> None:
    await harness.submit(max_attempts=3)
    for _ in range(2):
        assert (await harness.fail(await harness.claim_one(), retry_seconds=0)).outcome is None
    after = await harness.fail(await harness.claim_one(), "again", retry_seconds=0)
    assert after.outcome is Outcome.FAILED
    assert (after.failures, after.attempt, after.last_error) == (3, 3, "again")
    assert await harness.claim() == []


async def test_a_permanent_failure_ends_the_job_at_the_first_attempt(harness: Harness) -> None:
    held = await harness.running(max_attempts=10)
    failed = await harness.fail(held, "no such page", retry_seconds=None)
    assert (failed.outcome, failed.last_error) == (Outcome.FAILED, "no such page")
    assert failed.archived_at == failed.finished_at is not None


async def test_without_a_limit_a_job_may_fail_again_and_again(harness: Harness) -> None:
    await harness.submit(max_attempts=None)
    for number in range(1, 8):
        after = await harness.fail(await harness.claim_one(), retry_seconds=0)
        assert (after.state, after.failures) == (State.READY, number)


async def test_lapses_and_failures_count_together(harness: Harness) -> None:
    await harness.submit(max_attempts=2)
    await harness.claim_one()
    await harness.advance(61)
    held = await harness.claim_one()
    assert (await harness.fail(held, retry_seconds=0)).outcome is Outcome.FAILED


async def test_the_retry_is_counted_from_the_failure(harness: Harness) -> None:
    held = await harness.running()
    await harness.advance(40)
    waiting = await harness.fail(held, retry_seconds=10)
    assert waiting.available_at - held.available_at > timedelta(seconds=50)


async def test_the_history_keeps_the_error(harness: Harness) -> None:
    held = await harness.running()
    await harness.fail(held, "it broke")
    last = (await harness.history(held.id))[-1]
    assert (last.verb, last.reason, last.state) == ("fail", "it broke", State.READY)
