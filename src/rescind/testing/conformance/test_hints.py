"""listen: hints save waiting. They come for this engine's own doings and for others' on the same store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rescind.engine import Hint
from rescind.testing import Factory, Harness

PATIENCE = 10.0  # seconds until a hint counts as missing; none of these tests waits for it to pass


@contextlib.asynccontextmanager
async def _listening(harness: Harness, waker: Harness | None = None) -> AsyncIterator[AsyncIterator[Hint]]:
    """Hints, from a listener that is certain to be listening already: it has heard of job `wake-up`."""
    hints = harness.engine.listen(("work",))
    first: asyncio.Future[Hint] = asyncio.ensure_future(anext(hints))
    await (waker or harness).submit(id="wake-up", priority=-1)
    assert (await asyncio.wait_for(first, PATIENCE)).kind == "work"
    try:
        yield hints
    finally:
        await hints.aclose()  # type: ignore[attr-defined]


async def _next(hints: AsyncIterator[Hint], kind: str) -> Hint:
    """The next hint of this kind; others in between are none of our business."""
    async with asyncio.timeout(PATIENCE):
        while (hint := await anext(hints)).kind != kind:
            pass
        return hint


async def test_a_submit_hints_at_work(harness: Harness) -> None:
    async with _listening(harness) as hints:
        await harness.claim()
        await harness.submit()
        assert (await _next(hints, "work")).kind == "work"


async def test_a_cancel_of_a_running_job_hints_at_its_id(harness: Harness) -> None:
    async with _listening(harness) as hints:
        held = await harness.running()
        await harness.cancel(held.id)
        assert held.id in (await _next(hints, "cancel")).job_ids


async def test_a_cancel_of_a_waiting_job_wakes_the_sweeper(harness: Harness) -> None:
    async with _listening(harness) as hints:
        job = await harness.submit("elsewhere")
        await harness.cancel(job.id)
        assert (await _next(hints, "sweep")).kind == "sweep"


async def test_a_hint_comes_from_another_engine_too(harness: Harness) -> None:
    other = await harness.peer()
    async with _listening(harness) as hints:
        await harness.claim()
        await other.submit(id="from-the-other")
        assert (await _next(hints, "work")).kind == "work"
        (held,) = await harness.claim()
        await other.cancel(held.id)
        assert held.id in (await _next(hints, "cancel")).job_ids


async def test_what_happened_between_two_hints_is_not_missed(harness: Harness) -> None:
    # Given a listener that is busy with a hint, on an engine that does nothing itself
    other = await harness.peer()
    async with _listening(harness, waker=other) as hints:
        # When somebody else cancels a running job before it listens again
        await other.claim_one()
        await other.cancel("wake-up")
        # Then it is told as soon as it does
        assert "wake-up" in (await _next(hints, "cancel")).job_ids


async def test_a_job_whose_time_comes_hints_at_work(harness: Harness) -> None:
    async with _listening(harness) as hints:
        await harness.claim()
        await harness.submit(delay_seconds=60)
        waiting = asyncio.ensure_future(_next(hints, "work"))
        await harness.advance(61)
        assert (await waiting).kind == "work"


async def test_a_listener_ends_with_its_engine(factory: Factory, tmp_path: Path) -> None:
    # Given a listener on an engine of its own
    harness = Harness(factory(tmp_path))
    await harness.open()
    listening = asyncio.ensure_future(_drain(harness.engine.listen(("work",))))
    await harness.submit()
    # When the engine is closed, then the listening is over
    await harness.close()
    await asyncio.wait_for(listening, PATIENCE)


async def _drain(hints: AsyncIterator[Hint]) -> None:
    async for _ in hints:
        pass
