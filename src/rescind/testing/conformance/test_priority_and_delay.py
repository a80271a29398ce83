"""Which job is next: higher priority first, then older; never before its time."""

from datetime import timedelta

from rescind.state import State
from rescind.testing import Harness


async def test_the_most_urgent_job_comes_first(harness: Harness) -> None:
    jobs = {priority: await harness.submit(priority=priority) for priority in (0, 9, -3, 5)}
    assert [job.id for job in await harness.claim()] == [jobs[p].id for p in (9, 5, 0, -3)]


async def test_among_equals_the_older_comes_first(harness: Harness) -> None:
    ids = [(await harness.submit(priority=1)).id for _ in range(4)]
    assert [(await harness.claim_one()).id for _ in ids] == ids


async def test_priority_counts_over_all_needs_of_a_worker(harness: Harness) -> None:
    await harness.submit("a", priority=1)
    urgent = await harness.submit("b", priority=2)
    assert (await harness.claim_one("a", "b")).id == urgent.id


async def test_a_delayed_job_waits_for_its_time(harness: Harness) -> None:
    job = await harness.submit(delay_seconds=60)
    assert job.state is State.AWAITING_FUTURE
    await harness.advance(55)
    assert await harness.claim() == []
    await harness.advance(6)
    assert (await harness.get(job.id)).state is State.READY
    assert (await harness.claim_one()).id == job.id


async def test_a_job_may_be_given_a_moment(harness: Harness) -> None:
    job = await harness.submit(available_at=harness.now() + timedelta(hours=1))
    assert await harness.claim() == []
    await harness.advance(3601)
    assert (await harness.claim_one()).id == job.id


async def test_a_delay_counts_from_the_moment_given(harness: Harness) -> None:
    moment = harness.now() + timedelta(hours=1)
    job = await harness.submit(available_at=moment, delay_seconds=60)
    assert job.available_at == moment + timedelta(seconds=60)


async def test_a_moment_in_the_past_means_now(harness: Harness) -> None:
    job = await harness.submit(available_at=harness.now() - timedelta(days=1))
    assert (await harness.claim_one()).id == job.id


async def test_a_delayed_job_of_high_priority_overtakes_once_its_time_has_come(harness: Harness) -> None:
    await harness.submit()
    urgent = await harness.submit(priority=9, delay_seconds=60)
    await harness.advance(61)
    assert (await harness.claim_one()).id == urgent.id


async def test_many_delayed_jobs_come_due_together(harness: Harness) -> None:
    await harness.submit_many(600, delay_seconds=60)
    await harness.advance(61)
    claimed: set[str] = set()
    while jobs := await harness.claim(limit=250):
        claimed |= {job.id for job in jobs}
    assert len(claimed) == 600


async def test_jobs_nobody_serves_do_not_delay_others(harness: Harness) -> None:
    await harness.submit_many(300, need="unserved", priority=9)
    mine = await harness.submit("served")
    assert (await harness.claim_one("served")).id == mine.id
