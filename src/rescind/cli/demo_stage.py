"""Playing the demo: a queue in a temporary file, a worker in this process, people changing their minds."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from rescind.cli.demo_jobs import CUES, PARTS, Part, make_worker, settings
from rescind.connection import connect
from rescind.errors import CannotCancelError
from rescind.job import Job
from rescind.queue import Queue
from rescind.state import FINAL_STATES, State

LOOK_SECONDS: Final = 0.1


class Role(msgspec.Struct, frozen=True):
    """A part of the cast and the job that plays it, as of the last look."""

    number: int
    part: Part
    job: Job
    speed: float

    @property
    def ran_seconds(self) -> float:
        """How long it worked, in the seconds of the story."""
        if self.job.state is State.COMPLETED:
            return self.part.seconds
        if self.job.claimed_at is None:
            return 0.0
        end = self.job.stopped_at or self.job.finished_at
        if end is None:
            return (self.job.progress or 0.0) * self.part.seconds
        return min(self.part.seconds, (end - self.job.claimed_at).total_seconds() * self.speed)

    @property
    def saved_seconds(self) -> float:
        return self.part.seconds - self.ran_seconds

    @property
    def saved_dollars(self) -> float:
        return self.part.dollars - self.part.spent_dollars(self.ran_seconds)

    @property
    def stopped(self) -> bool:
        return self.job.state is State.CANCELLED


class View(Protocol):
    """What the audience sees while it lasts."""

    def show(self, roles: list[Role], seconds: float) -> None: ...

    def asked(self, role: Role, by: str, reason: str, seconds: float) -> None: ...


class Stage:
    def __init__(self, queue: Queue, view: View, speed: float) -> None:
        self._queue = queue
        self._view = view
        self._speed = speed
        self._clock = queue.engine.clock
        self._began = self._clock.monotonic()
        self.over = asyncio.Event()

    async def submit(self) -> None:
        await self._queue.submit_many(
            {
                "need": part.need,
                "input": {"title": part.title, "seconds": part.seconds},
                "id": part.id,
                "owner": "demo",
                **part.options,
            }
            for part in PARTS
        )

    async def watch(self) -> list[Role]:
        """Show the jobs until all have ended, or somebody has seen enough."""
        roles = await self.look()
        while not self.over.is_set() and any(role.job.state not in FINAL_STATES for role in roles):
            self._view.show(roles, self._seconds())
            await self._clock.sleep(LOOK_SECONDS)
            roles = await self.look()
        self._view.show(roles, self._seconds())
        return roles

    async def look(self) -> list[Role]:
        jobs = {job.id: job for job in await self._queue.list(limit=len(PARTS))}
        return [Role(number, part, jobs[part.id], self._speed) for number, part in enumerate(PARTS, start=1)]

    async def follow_script(self) -> None:
        for cue in CUES:
            await self._clock.sleep(max(0.0, cue.at_seconds / self._speed - self._seconds()))
            await self.cancel(cue.id, cue.by, cue.reason)

    async def cancel(self, job_id: str, by: str, reason: str) -> None:
        """Take one back; a job that was quicker than the person has simply won."""
        role = next(role for role in await self.look() if role.part.id == job_id)
        if role.job.state in FINAL_STATES or role.job.cancelling:
            return
        self._view.asked(role, by, reason, self._seconds())
        with suppress(CannotCancelError):
            await self._queue.cancel(job_id, reason, by=by)

    def _seconds(self) -> float:
        return self._clock.monotonic() - self._began


Direct = Callable[[Stage], Coroutine[Any, Any, None]]


async def play(view: View, speed: float, direct: Direct = Stage.follow_script) -> list[Role]:
    """The whole demo; nothing of it stays behind. `direct` decides what is taken back."""
    logging.getLogger("rescind").addHandler(logging.NullHandler())  # the view tells the story
    with tempfile.TemporaryDirectory(prefix="rescind-demo-") as directory:
        async with _open(Path(directory) / "demo.db") as queue:
            stage = Stage(queue, view, speed)
            async with _working(queue, stage.over, speed):
                await stage.submit()
                async with _beside(direct(stage), stage.over):
                    return await stage.watch()


def _open(path: Path) -> connect:
    url = f"sqlite://{path}"
    return connect(url, settings=settings(url))


@asynccontextmanager
async def _working(queue: Queue, over: asyncio.Event, speed: float) -> AsyncIterator[None]:
    worker = make_worker(speed)
    task = asyncio.create_task(worker.run(queue, handle_signals=False))
    task.add_done_callback(lambda _: over.set())
    try:
        yield
    finally:
        worker.stop()  # with no time to drain, handlers still running are stopped and their jobs given back
        await task


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None], over: asyncio.Event) -> AsyncIterator[None]:
    """Work that accompanies the show; should it break, the show ends and the error comes out."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: over.set() if not done.cancelled() and done.exception() else None)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
