"""Answers that never arrive: a submit finds out whether it came in, and whatever else is said twice is
answered truthfully."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from rescind import Queue, TaskStatus, Worker, connect
from rescind.engine import Claim
from rescind.errors import DuplicateJob, InsufficientTokens, LeaseLost, Refused, Unavailable
from rescind.job import CancelOutcome
from rescind.lease import Complete, Fail
from rescind.settings import Settings
from rescind.state import State
from rescind.testing import Harness
from rescind.testing.engines import Existing
from tests.postgres.proxy import Moment, Proxy

MOMENTS: list[Moment] = ["before", "after"]
SUBMIT = "submit_jobs"


@asynccontextmanager
async def far_away(url: str) -> AsyncIterator[tuple[Proxy, Harness]]:
    """A harness whose connections can be broken."""
    async with Proxy(url) as proxy:
        harness = Harness(Existing(proxy.url), prefix="far")
        await harness.open()
        try:
            yield proxy, harness
        finally:
            await harness.close()


# Submitting


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_submit_whose_answer_is_lost_is_made_once(url: str, moment: Moment) -> None:
    async with far_away(url) as (proxy, harness):
        # Given a network that loses a request, or the answer to it
        proxy.lose(moment, SUBMIT)
        # When jobs are submitted
        jobs = await harness.submit_many(3, input={"to": "ann"}, owner="bob", priority=7)
        # Then they are there, once, and the answer is as always
        assert [job.id for job in jobs] == ["far-1", "far-2", "far-3"]
        assert sorted(await harness.jobs(), key=lambda job: job.id) == jobs
        assert len(proxy.executed(SUBMIT)) == 2


async def test_a_submit_survives_two_lost_answers_but_does_not_try_for_ever(url: str) -> None:
    async with far_away(url) as (proxy, harness):
        proxy.lose("before", SUBMIT)
        proxy.lose("after", SUBMIT)
        assert (await harness.submit(id="twice")).id == "twice"
        for _ in range(3):
            proxy.lose("before", SUBMIT)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await harness.submit(id="never")
        assert [job.id for job in await harness.jobs()] == ["twice"]


async def test_a_submit_that_comes_in_twice_at_once_is_still_our_own(harness: Harness, url: str) -> None:
    """The first try is under way in the server when its connection breaks; it ends after the second began."""
    async with far_away(url) as (proxy, far):
        await far.submit(id="first")
        async with held_up(url, "ann"):
            submitting = asyncio.ensure_future(far.submit(id="mine", owner="ann", estimate=1))
            while not proxy.executed(SUBMIT)[1:]:
                await asyncio.sleep(0.001)
            proxy.cut()
            while not proxy.executed(SUBMIT)[2:]:
                await asyncio.sleep(0.001)
        job = await submitting
        assert (job.id, job.estimate) == ("mine", 1)
        assert await harness.balance("ann") == (9, 1)


@asynccontextmanager
async def held_up(url: str, owner: str) -> AsyncIterator[None]:
    """Nobody can reserve from this account, which has 10 tokens, meanwhile."""
    connection = await asyncpg.connect(url)
    await connection.execute("SELECT pgwf.credit($1, 10, 'tester')", owner)
    async with connection.transaction():
        await connection.execute("SELECT 1 FROM pgwf.accounts FOR UPDATE")
        yield
    await connection.close()


async def test_a_metered_submit_whose_answer_is_lost_reserves_once(url: str) -> None:
    """The second try finds too little left in the account, since the first has taken it."""
    async with far_away(url) as (proxy, harness):
        await harness.credit("ann", 10)
        proxy.lose("after", SUBMIT)
        job = await harness.submit(owner="ann", estimate=10)
        assert await harness.balance("ann") == (0, 10)
        proxy.lose("after", SUBMIT)
        with pytest.raises(InsufficientTokens):
            await harness.submit(owner="ann", estimate=1)
        assert [each.id for each in await harness.jobs()] == [job.id]


async def test_a_batch_with_idempotency_keys_whose_answer_is_lost_is_answered_alike(url: str) -> None:
    async with far_away(url) as (proxy, harness):
        # Given a job that has a key already
        known = await harness.submit(id="known", idempotency_key="a")
        # When a batch with that key, a new key and none is submitted, and the answer is lost
        proxy.lose("after", SUBMIT)
        jobs = await harness.engine.submit(
            [
                harness.spec(id="x", idempotency_key="a"),
                harness.spec(id="y"),
                harness.spec(id="z", idempotency_key="b"),
            ]
        )
        # Then the answer is the one that was lost
        assert [job.id for job in jobs] == [known.id, "y", "z"]
        assert len(await harness.jobs()) == 3


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("by", "input", "age"), [("another", 1, 0), ("tester", 2, 0), ("tester", 1, 3600)])
async def test_a_job_that_was_there_before_is_not_taken_for_our_own(
    harness: Harness, url: str, moment: Moment, by: str, input: int, age: float
) -> None:
    # Given a job by another, with another input, or of an hour ago
    await harness.submit(id="taken", input=input, by=by)
    await harness.advance(age)
    async with far_away(url) as (proxy, far):
        # When one of the same id is submitted, and the answer, a refusal, is lost
        proxy.lose(moment, SUBMIT)
        # Then it is refused the second time
        with pytest.raises(DuplicateJob) as refused:
            await far.submit(id="taken", input=1)
        assert refused.value.job_id == "taken"
        with pytest.raises(Refused):
            await far.engine.submit([far.spec(id="new"), far.spec(id="taken", input=1)])
    assert len(await harness.jobs()) == 1


# Settling, claiming and cancelling


async def test_a_settlement_said_again_is_refused_with_what_came_of_it(url: str) -> None:
    async with far_away(url) as (proxy, harness):
        # Given settlements whose answer is lost
        await harness.submit_many(2)
        first, second = await harness.claim()
        said = [
            Complete(lease=first.lease, output=b"1"),
            Fail(lease=second.lease, error="no", retry_seconds=60),
        ]
        proxy.lose("after", "settle_jobs")
        with pytest.raises(Unavailable):
            await harness.engine.settle(said)
        # When they are said again
        answers = (await harness.engine.settle(said)).answers
        # Then each is told what became of its job, and nothing happens twice
        assert [type(answer) for answer in answers] == [LeaseLost, LeaseLost]
        states = [answer.state for answer in answers if isinstance(answer, LeaseLost)]
        assert states == [State.COMPLETED, State.AWAITING_FUTURE]
        assert (await harness.get(first.id)).output == 1
        assert (await harness.get(second.id)).failures == 1
        assert (await harness.verbs(first.id)).count("complete") == 1


async def test_a_settlement_that_did_not_arrive_is_taken_the_second_time(url: str) -> None:
    async with far_away(url) as (proxy, harness):
        held = await harness.running()
        proxy.lose("before", "settle_jobs")
        with pytest.raises(Unavailable):
            await harness.complete(held, 1)
        assert (await harness.complete(held, 1)).output == 1


async def test_jobs_claimed_in_a_lost_answer_come_back_when_their_leases_lapse(
    harness: Harness, url: str
) -> None:
    job = await harness.submit()
    async with far_away(url) as (proxy, far):
        proxy.lose("after", "settle_jobs")
        with pytest.raises(Unavailable):
            await far.engine.claim(Claim(worker="w", needs=("work",), limit=1, lease_seconds=60))
    assert (await harness.get(job.id)).state is State.ACTIVE
    assert await harness.claim() == []
    await harness.advance(61)
    assert (await harness.claim_one()).attempt == 2


async def test_a_cancel_said_again_finds_that_it_is_done(url: str) -> None:
    async with far_away(url) as (proxy, harness):
        job = await harness.submit()
        proxy.lose("after", "cancel_jobs")
        with pytest.raises(Unavailable):
            await harness.cancel(job.id, by="ann")
        answer = await harness.cancel(job.id, by="ann")
        assert (answer.outcome, answer.changed) == (CancelOutcome.ALREADY_CANCELLED, False)
        assert answer.job is not None and answer.job.cancel_requested_by == "ann"


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_worker_completes_its_job_although_answers_are_lost(
    queue: Queue, url: str, moment: Moment
) -> None:
    """Of its claim, so that the job comes back when the lease lapses, and of its settlement."""
    hasty = Settings(lease_seconds=1, heartbeat_seconds=0.2, grace_seconds=0.1, kill_after_seconds=0.1)
    async with Proxy(url) as proxy, connect(proxy.url, settings=hasty) as far:
        worker, runs = Worker(far), 0

        @worker.task("job")
        async def counted(_: object) -> str:
            nonlocal runs
            runs += 1
            proxy.lose(moment, "settle_jobs")
            return "done"

        proxy.lose(moment, "settle_jobs")
        job = await queue.submit("job")
        async with asyncio.timeout(20):
            while not (ended := await finish_one(far, worker, job.id)):
                pass
        assert (ended, runs) == ("done", 1)


async def finish_one(queue: Queue, worker: Worker, job_id: str) -> object:
    await worker.run(until_empty=True, handle_signals=False)
    job = await queue.get(job_id)
    return job.output if job.status is TaskStatus.Completed else None
