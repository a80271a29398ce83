"""claim: which jobs it hands out, to whom, and under which lease."""

from datetime import timedelta

from rescind.engine import Claim
from rescind.lease import Complete
from rescind.state import State
from rescind.testing import Harness


async def test_a_claim_leases_the_job_to_the_worker(harness: Harness) -> None:
    # Given
    job = await harness.submit(input={"page": 7})
    before = harness.now()
    # When
    held = await harness.claim_one(worker="worker-9", lease_seconds=30)
    # Then
    assert (held.id, held.input, held.state) == (job.id, {"page": 7}, State.ACTIVE)
    assert (held.attempt, held.lease.worker, held.lease.token) == (1, "worker-9", 1)
    assert before + timedelta(seconds=30) <= held.lease.expires_at <= harness.now() + timedelta(seconds=30)
    assert held == await harness.get(job.id)


async def test_nothing_waiting_gives_nothing(harness: Harness) -> None:
    assert await harness.claim() == []


async def test_a_claim_takes_only_the_needs_it_names(harness: Harness) -> None:
    await harness.submit("other")
    mine = await harness.submit("mine")
    assert [job.id for job in await harness.claim("mine")] == [mine.id]


async def test_a_claim_serves_several_needs(harness: Harness) -> None:
    wanted = {(await harness.submit(need)).id for need in ("a", "b")}
    await harness.submit("c")
    assert {job.id for job in await harness.claim("a", "b")} == wanted


async def test_a_need_named_twice_is_served_once(harness: Harness) -> None:
    await harness.submit_many(3)
    claimed = await harness.claim("work", "work")
    assert sorted(job.id for job in claimed) == sorted({job.id for job in claimed})
    assert [job.attempt for job in claimed] == [1, 1, 1]


async def test_a_claim_takes_no_more_than_its_limit(harness: Harness) -> None:
    await harness.submit_many(5)
    assert len(await harness.claim(limit=2)) == 2
    assert len(await harness.claim(limit=9)) == 3


async def test_the_limit_holds_over_all_needs_together(harness: Harness) -> None:
    for need in ("a", "b", "c"):
        await harness.submit_many(2, need=need)
    assert len(await harness.claim("a", "b", "c", limit=3)) == 3


async def test_a_limit_of_nothing_takes_nothing(harness: Harness) -> None:
    await harness.submit()
    assert await harness.claim(limit=0) == []


async def test_a_leased_job_is_not_handed_out_again(harness: Harness) -> None:
    await harness.running()
    assert await harness.claim(worker="worker-2") == []


async def test_every_lease_has_its_own_id(harness: Harness) -> None:
    await harness.submit_many(20)
    assert len({job.lease_id for job in await harness.claim()}) == 20


async def test_a_lapsed_job_goes_to_the_next_claimer_with_a_new_lease(harness: Harness) -> None:
    # Given a worker that fell silent
    silent = await harness.running()
    await harness.advance(61)
    # When another one asks, and no sweep has passed
    held = await harness.claim_one(worker="worker-2")
    # Then
    assert (held.id, held.attempt, held.failures) == (silent.id, 2, 1)
    assert held.lease_id != silent.lease_id
    assert held.lease.token == 2


async def test_a_lapsed_last_attempt_is_not_handed_out(harness: Harness) -> None:
    silent = await harness.running(max_attempts=1)
    await harness.advance(61)
    assert await harness.claim() == []
    assert (await harness.get(silent.id)).state is State.FAILED


async def test_without_a_limit_a_job_may_lapse_again_and_again(harness: Harness) -> None:
    await harness.submit(max_attempts=None)
    for attempt in range(1, 6):
        assert (await harness.claim_one()).attempt == attempt
        await harness.advance(61)


async def test_a_claim_starts_progress_anew(harness: Harness) -> None:
    held = await harness.running()
    await harness.extend(held, progress=0.9, message="nearly")
    await harness.release(held)
    again = await harness.claim_one()
    assert (again.progress, again.progress_message) == (None, None)


async def test_older_jobs_come_first(harness: Harness) -> None:
    ids = [(await harness.submit()).id for _ in range(5)]
    assert [job.id for job in await harness.claim()] == ids


async def test_a_batch_is_claimed_in_the_order_it_was_submitted(harness: Harness) -> None:
    ids = [job.id for job in await harness.submit_many(5)]
    assert [(await harness.claim_one()).id for _ in ids] == ids


async def test_the_history_names_the_worker(harness: Harness) -> None:
    job = await harness.submit()
    await harness.claim_one(worker="worker-9")
    last = (await harness.history(job.id))[-1]
    assert (last.verb, last.actor, last.state) == ("claim", "worker-9", State.ACTIVE)


async def test_a_claim_can_ride_along_with_a_settlement(harness: Harness) -> None:
    # Given a worker with one job in hand and one waiting behind it

    held = await harness.running()
    waiting = await harness.submit()
    # When it completes the one and asks for more in the same breath
    wish = Claim(worker="worker-1", needs=("work",), limit=5, lease_seconds=60)
    settled = await harness.engine.settle([Complete(lease=held.lease, output=b"null")], wish)
    # Then
    assert [job.id for job in settled.claimed] == [waiting.id]
    assert [getattr(answer, "state", None) for answer in settled.answers] == [State.COMPLETED]


async def test_a_claim_alone_may_go_through_settle(harness: Harness) -> None:

    job = await harness.submit()
    wish = Claim(worker="worker-1", needs=("work",), limit=5, lease_seconds=60)
    settled = await harness.engine.settle([], wish)
    assert [each.id for each in settled.claimed] == [job.id]
