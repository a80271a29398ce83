"""singleton_key: at most one job of a key is out at a time, and the key passes on in order."""

import pytest

from rescind.errors import LeaseLost
from rescind.job import Outcome
from rescind.lease import Release
from rescind.state import State
from rescind.testing import Harness

KEY = "printer"


async def test_a_batch_of_claims_takes_one_job_of_a_key(harness: Harness) -> None:
    await harness.submit_many(3, singleton_key=KEY)
    await harness.submit_many(2, singleton_key="press")
    free = await harness.submit()
    claimed = await harness.claim()
    assert sorted(job.singleton_key or "" for job in claimed) == ["", "press", KEY]
    assert free.id in {job.id for job in claimed}
    assert await harness.claim() == []


async def test_the_key_is_one_over_all_needs(harness: Harness) -> None:
    await harness.submit("a", singleton_key=KEY)
    await harness.submit("b", singleton_key=KEY)
    assert len(await harness.claim("b", "a")) == 1
    assert await harness.claim("a", "b") == []


async def test_the_key_is_one_over_all_engines(harness: Harness) -> None:
    other = await harness.peer()
    await harness.submit_many(2, singleton_key=KEY)
    held = await harness.claim_one()
    assert await other.claim() == []
    await harness.complete(held)
    assert len(await other.claim()) == 1


@pytest.mark.parametrize("end", ["complete", "fail", "release", "reschedule", "cancel"])
async def test_the_key_passes_on_when_its_holder_ends(harness: Harness, end: str) -> None:
    # Given a holder and one behind it of higher rank than any retry
    held = await harness.running(singleton_key=KEY)
    behind = await harness.submit(singleton_key=KEY, priority=5)
    # When the holder lets go, in whichever way
    match end:
        case "complete":
            await harness.complete(held)
        case "fail":
            await harness.fail(held, retry_seconds=0)
        case "release":
            await harness.release(held)
        case "reschedule":
            await harness.reschedule(held)
        case "cancel":
            await harness.cancel(held.id)
            assert await harness.claim() == []
            await harness.acknowledge(held)
    # Then
    assert [job.id for job in await harness.claim()] == [behind.id]


async def test_the_key_passes_on_when_the_lease_of_its_holder_lapses(harness: Harness) -> None:
    await harness.running(singleton_key=KEY, max_attempts=1)
    behind = await harness.submit(singleton_key=KEY)
    await harness.advance(61)
    assert [job.id for job in await harness.claim()] == [behind.id]


async def test_the_key_passes_on_when_the_job_in_front_is_cancelled_while_it_waits(harness: Harness) -> None:
    front, behind = [await harness.submit(singleton_key=KEY) for _ in range(2)]
    await harness.cancel(front.id)
    assert (await harness.claim_one()).id == behind.id


async def test_those_behind_go_by_priority_then_age(harness: Harness) -> None:
    held = await harness.running(singleton_key=KEY)
    jobs = [await harness.submit(singleton_key=KEY, priority=priority) for priority in (0, 5, 1, 5)]
    order = [jobs[1].id, jobs[3].id, jobs[2].id, jobs[0].id]
    for expected in order:
        await harness.complete(held)
        held = await harness.claim_one()
        assert held.id == expected


async def test_a_more_urgent_job_overtakes_the_one_in_front_while_it_waits(harness: Harness) -> None:
    await harness.submit(singleton_key=KEY, priority=0)
    urgent = await harness.submit(singleton_key=KEY, priority=9)
    assert [job.id for job in await harness.claim()] == [urgent.id]


async def test_a_key_only_unserved_work_waits_for_blocks_nobody_else(harness: Harness) -> None:
    await harness.submit("unserved", singleton_key=KEY, priority=9)
    free = await harness.submit("served", singleton_key="press")
    assert [job.id for job in await harness.claim("served")] == [free.id]


async def test_delayed_and_blocked_jobs_do_not_hold_a_key(harness: Harness) -> None:
    first = await harness.submit("elsewhere")
    await harness.submit(singleton_key=KEY, delay_seconds=60, priority=9)
    await harness.submit(singleton_key=KEY, wait_for=[first.id], priority=9)
    ready = await harness.submit(singleton_key=KEY)
    assert [job.id for job in await harness.claim()] == [ready.id]
    await harness.advance(61)
    await harness.complete_unheld(first.id)
    assert [len(await harness.claim()), len(await harness.claim())] == [1, 0]


async def test_a_forced_cancel_keeps_the_key_until_the_handler_is_reported_stopped(harness: Harness) -> None:
    # Given a handler that may still be running although its job is cancelled
    held = await harness.running(singleton_key=KEY)
    behind = await harness.submit(singleton_key=KEY)
    await harness.cancel(held.id, force=True)
    assert (await harness.get(held.id)).state is State.CANCELLED
    assert await harness.claim() == []
    await harness.sweep()
    assert await harness.claim() == []
    # When its worker says that it has ended, though too late to count
    with pytest.raises(LeaseLost):
        await harness.acknowledge(held)
    # Then the key is free
    assert (await harness.claim_one()).id == behind.id


async def test_a_forced_cancel_keeps_the_key_no_longer_than_the_lease(harness: Harness) -> None:
    held = await harness.running(singleton_key=KEY)
    behind = await harness.submit(singleton_key=KEY)
    await harness.cancel(held.id, force=True)
    await harness.advance(55)
    assert await harness.claim() == []
    await harness.advance(6)
    assert (await harness.claim_one()).id == behind.id


async def test_a_heartbeat_of_the_fenced_handler_does_not_free_the_key(harness: Harness) -> None:
    held = await harness.running(singleton_key=KEY)
    await harness.submit(singleton_key=KEY)
    await harness.cancel(held.id, force=True)
    with pytest.raises(LeaseLost):
        await harness.extend(held)
    assert await harness.claim() == []


async def test_the_cancel_of_metered_work_keeps_the_key_as_a_forced_one_does(harness: Harness) -> None:
    await harness.credit("ann", 10)
    held = await harness.running(singleton_key=KEY, owner="ann", estimate=5)
    await harness.submit(singleton_key=KEY)
    await harness.cancel(held.id)
    assert await harness.claim() == []


async def test_a_job_submitted_while_the_key_is_kept_waits_for_it_too(harness: Harness) -> None:
    held = await harness.running(singleton_key=KEY)
    await harness.cancel(held.id, force=True)
    await harness.submit(singleton_key=KEY)
    assert await harness.claim() == []
    await harness.advance(61)
    assert len(await harness.claim()) == 1


async def test_a_late_word_from_a_lapsed_holder_does_not_take_the_key_from_the_next(harness: Harness) -> None:
    silent = await harness.running(singleton_key=KEY, max_attempts=1)
    behind = await harness.submit(singleton_key=KEY)
    third = await harness.submit(singleton_key=KEY)
    await harness.advance(61)
    held = await harness.claim_one()
    assert held.id == behind.id
    with pytest.raises(LeaseLost):
        await harness.complete(silent)
    assert await harness.claim() == []
    assert (await harness.complete(held)).outcome is Outcome.COMPLETED
    assert (await harness.claim_one()).id == third.id


async def test_a_job_nobody_serves_is_in_nobodys_way(harness: Harness) -> None:
    # Given a more urgent job of the same key whose need no worker has
    await harness.submit("unserved", singleton_key=KEY, priority=9)
    served = await harness.submit("served", singleton_key=KEY)
    # When a worker asks for what it serves, then it gets it, and the key is taken for both
    held = await harness.claim_one("served")
    assert held.id == served.id
    assert await harness.claim("served", "unserved") == []
    await harness.complete(held)
    assert len(await harness.claim("unserved")) == 1


@pytest.mark.parametrize("word", ["fail", "acknowledge", "release"])
async def test_a_handler_that_was_given_up_keeps_its_key_until_it_ends(harness: Harness, word: str) -> None:
    # Given a holder whose handler would not stop
    held = await harness.running(singleton_key=KEY)
    behind = await harness.submit(singleton_key=KEY, priority=9)
    # When its worker settles without it
    match word:
        case "fail":
            await harness.fail(held, retry_seconds=0, still_running=True)
        case "release":
            await harness.settle(Release(lease=held.lease, still_running=True))
        case "acknowledge":
            await harness.cancel(held.id)
            await harness.acknowledge(held, still_running=True)
    # Then nobody gets the key, not even by another word that it still runs
    assert await harness.claim() == []
    with pytest.raises(LeaseLost):
        await harness.settle(Release(lease=held.lease, still_running=True))
    assert await harness.claim() == []
    # And its real end, refused as a settlement, sets the key free
    with pytest.raises(LeaseLost):
        await harness.release(held)
    assert [job.id for job in await harness.claim()] == [behind.id]
