"""Connections that break or fall silent: the engine finds its way back and misses nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar

import pytest

from rescind import Context, Queue, TaskStatus, Worker, connect
from rescind.engine import Engine, Hint, open_engine
from rescind.errors import Unavailable
from rescind.settings import Settings
from rescind.testing import Harness
from tests.at_work import at_work, started
from tests.postgres.database import LISTENERS, backends, terminate
from tests.postgres.proxy import Proxy

T = TypeVar("T")
PATIENCE: Final = 10.0  # seconds until something counts as not happening; less than to the next heartbeat


# The connection that listens


@asynccontextmanager
async def listening(engine: Engine) -> AsyncIterator[AsyncIterator[Hint]]:
    async with aclosing(engine.listen(("work",))) as hints:  # type: ignore[type-var]
        yield hints


async def heard(hints: AsyncIterator[Hint], kind: str) -> Hint:
    """The next hint of this kind; others in between are none of our business."""
    async with asyncio.timeout(PATIENCE):
        while (hint := await anext(hints)).kind != kind:
            pass
        return hint


async def test_a_listener_that_lost_its_connection_makes_another_and_hears_again(
    harness: Harness, url: str
) -> None:
    async with listening(harness.engine) as hints:
        # Given a listener that has heard something
        held = await harness.running()
        await harness.cancel(held.id)
        assert held.id in (await heard(hints, "cancel")).job_ids
        # When its connection is ended, and it has made another
        first = backends(url, LISTENERS)
        assert terminate(url, LISTENERS) == 1
        waiting = asyncio.ensure_future(heard(hints, "work"))
        while not backends(url, LISTENERS) - first:
            await asyncio.sleep(0.01)
        # Then it hears what happens from now on
        await harness.submit()
        assert (await waiting).kind == "work"


async def test_what_happened_while_a_listener_was_away_is_noticed_when_it_is_back(
    harness: Harness, url: str
) -> None:
    async with Proxy(url) as proxy, connect(proxy.url) as far, listening(far.engine) as hints:
        # Given a listener whose server cannot be reached
        held = await harness.running()
        await harness.submit(id="first")
        assert (await heard(hints, "work")).kind == "work"
        await harness.claim()
        await proxy.shut()
        waiting = asyncio.ensure_future(heard(hints, "cancel"))
        # When meanwhile a job is cancelled and another submitted
        await harness.cancel(held.id)
        await harness.submit(id="second")
        await proxy.open_up()
        # Then it hears of both when it is back
        assert held.id in (await waiting).job_ids
        assert (await heard(hints, "work")).kind == "work"


async def test_a_listener_whose_connection_falls_silent_makes_another(
    harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rescind.engines.postgres.listener._ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("rescind.engines.postgres.server._CLOSE_SECONDS", 0.2)
    async with Proxy(url) as proxy, connect(proxy.url) as far, listening(far.engine) as hints:
        # Given a listener
        held = await harness.running()
        waiting = asyncio.ensure_future(heard(hints, "cancel"))
        while not proxy.executed("pgwf.look"):
            await asyncio.sleep(0.01)
        # When nothing comes through any more, though nobody said goodbye
        proxy.fall_silent()
        await harness.cancel(held.id)
        # Then it notices, and hears what it missed
        assert held.id in (await waiting).job_ids


async def test_a_listener_ends_with_its_engine_even_while_its_server_is_away(
    harness: Harness, url: str
) -> None:
    async with Proxy(url) as proxy:
        engine = open_engine(proxy.url)
        await engine.install()
        async with listening(engine) as hints:
            await harness.submit()
            assert (await heard(hints, "work")).kind == "work"
            await proxy.shut()
            ending = asyncio.ensure_future(drained(hints))
            await asyncio.sleep(0.3)  # into the pause between two tries
            await engine.close()
            await asyncio.wait_for(ending, PATIENCE)


async def drained(hints: AsyncIterator[Hint]) -> None:
    async for _ in hints:
        pass


# The pool


async def test_after_all_connections_were_ended_the_next_call_or_the_one_after_succeeds(
    harness: Harness, url: str
) -> None:
    for _ in range(2):
        # Given a pool full of connections
        await asyncio.gather(*(harness.submit() for _ in range(10)))
        # When all of them are ended
        assert terminate(url) == 10
        # Then at most one call fails, and says that trying again is safe
        await again(harness.jobs)


async def test_an_engine_that_was_cut_off_works_again_when_the_server_is_back(url: str) -> None:
    async with Proxy(url) as proxy, connect(proxy.url) as queue:
        job = await queue.submit("work")
        await proxy.shut()
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+/\w+ cannot be reached"):
            await queue.get(job.id)
        await proxy.open_up()
        assert await queue.get(job.id) == job


async def test_a_call_whose_caller_gave_up_costs_the_next_one_nothing(url: str) -> None:
    async with Proxy(url) as proxy, connect(f"{proxy.url}?pool_size=1") as queue:
        # Given a call that is not answered
        job = await queue.submit("work")
        proxy.fall_silent()
        # When its caller loses patience
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(job.id), 0.1)
        # Then the one connection there may be is made anew
        assert await asyncio.wait_for(queue.get(job.id), PATIENCE) == job


async def test_closing_does_not_wait_for_a_server_that_does_not_answer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rescind.engines.postgres.server._CLOSE_SECONDS", 0.2)
    async with Proxy(url) as proxy:
        queue = await connect(proxy.url)
        proxy.fall_silent()
        unanswered = asyncio.ensure_future(queue.count())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(queue.close(), PATIENCE)
        with pytest.raises(Unavailable):
            await unanswered


# The worker


async def test_a_worker_hears_of_cancels_and_jobs_although_its_connections_are_ended(
    queue: Queue, url: str
) -> None:
    """Long before a heartbeat, which is a quarter of a minute away."""
    worker = _worker(queue)
    async with at_work(worker), asyncio.timeout(3 * PATIENCE):
        for _ in range(3):
            job = await started(worker, await queue.submit("patient"))
            assert terminate(url) >= 2
            await again(queue.cancel, job.id)
            assert (await again(queue.wait, job.id)).status is TaskStatus.Cancelled
            terminate(url)
            job = await queue.submit("quick")  # which tries again by itself
            assert (await again(queue.wait, job.id)).output == "done"


async def test_a_worker_whose_connections_fall_silent_goes_on_with_new_ones(queue: Queue, url: str) -> None:
    """Its leases are kept: it does not wait for an answer as long as a lease lasts."""
    hasty = Settings(lease_seconds=3, heartbeat_seconds=0.5, grace_seconds=0.1, kill_after_seconds=0.1)
    async with Proxy(url) as proxy, connect(proxy.url, settings=hasty) as far:
        worker = _worker(far)
        async with at_work(worker), asyncio.timeout(3 * PATIENCE):
            # Given a worker that holds a lease
            held = await started(worker, await queue.submit("patient"))
            # When nothing comes through its connections any more, though nobody said goodbye
            proxy.fall_silent()
            # Then it goes on: with the next job, and with the one it has, under the same lease
            later = await queue.submit("quick")
            assert (await queue.wait(later.id)).output == "done"
            first = held.lease.expires_at
            while (now := await queue.get(held.id)).lease.expires_at == first:
                await asyncio.sleep(0.01)
            assert now.lease.lease_id == held.lease.lease_id
            await queue.cancel(held.id)
            assert (await queue.wait(held.id)).status is TaskStatus.Cancelled


def _worker(queue: Queue) -> Worker:
    worker = Worker(queue)

    @worker.task("patient")
    async def patient(_: object, context: Context) -> None:
        await context.cancelled.wait()

    @worker.task("quick")
    async def quick(_: object) -> str:
        return "done"

    return worker


async def again(call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Once more, if the connection it was given turned out to be dead."""
    try:
        return await call(*arguments)
    except Unavailable:
        return await call(*arguments)
