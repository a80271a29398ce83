"""Stopping a handler: first the flag, after the grace period an exception, in the end without it."""

import asyncio
from enum import StrEnum
from typing import Any

import msgspec

from rescind.clock import Clock
from rescind.job import Job
from rescind.worker.context import Context, Tally
from rescind.worker.task import Handler, Task
from rescind.worker.threads import Threads


class Stop(StrEnum):
    """Why a handler is being stopped, the weightiest last: it is the one that counts."""

    SHUTDOWN = "shutdown"
    LOST = "lost"  # the lease is gone, or cannot be kept
    TIMEOUT = "timeout"
    CANCEL = "cancel"


_WEIGHT = {why: weight for weight, why in enumerate(Stop)}


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a handler ended: with a value, with an error, or not at all (`abandoned`)."""

    value: Any = None
    error: BaseException | None = None
    stop: Stop | None = None
    interrupted: bool = False  # an exception was raised inside it
    abandoned: bool = False


class Attempt:
    """One run of a handler, from claim to settlement."""

    def __init__(
        self,
        job: Job,
        task: Task,
        context: Context,
        tally: Tally,
        *,
        threads: Threads,
        clock: Clock,
        expires: float,
    ) -> None:
        self.job = job
        self.task = task
        self.context = context
        self.tally = tally
        self.expires = expires  # of the lease, by the worker's own monotonic clock
        self.stop: Stop | None = None
        self.handler: asyncio.Future[Any] | None = None
        self._threads = threads
        self._clock = clock
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask_to_stop(self, why: Stop) -> None:
        if self.stop is None or _WEIGHT[why] > _WEIGHT[self.stop]:
            self.stop = why
        if why is not Stop.SHUTDOWN:  # at shutdown nobody asked for the job itself to stop
            self.context.cancelled.set()
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def run(self, grace_seconds: float, kill_after_seconds: float) -> Ending:
        """Run the handler to whichever end comes; stopped beforehand, it is not started. Raises nothing but
        our own cancellation, and the handler is then stopped with us."""
        if self._stopping.done():
            return Ending(error=asyncio.CancelledError(), stop=self.stop)
        self.handler = handler = self._start()
        try:
            return await self._until_ended(handler, grace_seconds, kill_after_seconds)
        except asyncio.CancelledError:
            self.context.cancelled.set()
            if self.task.is_async:
                handler.cancel()
            await asyncio.wait({handler}, timeout=kill_after_seconds)
            raise

    @property
    def is_running(self) -> bool:
        return self.handler is not None and not self.handler.done()

    def _start(self) -> "asyncio.Future[Any]":
        arguments = (self.job.input, self.context) if self.task.takes_context else (self.job.input,)
        if self.task.is_async:
            return asyncio.create_task(_guarded(self.task.handler, arguments), name=f"rescind:{self.job.id}")
        return self._threads.run(lambda: self.task.handler(*arguments))

    async def _until_ended(
        self, handler: "asyncio.Future[Any]", grace_seconds: float, kill_after_seconds: float
    ) -> Ending:
        done, _ = await asyncio.wait(
            {handler, self._stopping},
            timeout=self.task.timeout_seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if handler in done:
            return self._ended(handler, interrupted=False)
        if not done:
            self.ask_to_stop(Stop.TIMEOUT)
        return await self._climb(handler, grace_seconds, kill_after_seconds)

    async def _climb(
        self, handler: "asyncio.Future[Any]", grace_seconds: float, kill_after_seconds: float
    ) -> Ending:
        if (await asyncio.wait({handler}, timeout=self._grace(grace_seconds, kill_after_seconds)))[0]:
            return self._ended(handler, interrupted=False)
        interrupted = self._interrupt(handler)
        if (await asyncio.wait({handler}, timeout=kill_after_seconds))[0]:
            return self._ended(handler, interrupted=interrupted)
        return Ending(stop=self.stop, interrupted=interrupted, abandoned=True)

    def _interrupt(self, handler: "asyncio.Future[Any]") -> bool:
        """An exception for what runs in our loop. A thread has only the flag, which a shutdown has kept from
        it so far."""
        if self.task.is_async:
            return handler.cancel()
        self.context.cancelled.set()
        return self.stop is Stop.SHUTDOWN

    def _grace(self, grace_seconds: float, kill_after_seconds: float) -> float:
        """A cancelling job's lease is not extended: the whole stop has to fit into what is left of it."""
        if self.stop is Stop.SHUTDOWN:
            return 0.0
        left = self.expires - self._clock.monotonic() - kill_after_seconds
        return max(0.0, min(grace_seconds, left))

    def _ended(self, handler: "asyncio.Future[Any]", *, interrupted: bool) -> Ending:
        if handler.cancelled():
            return Ending(error=asyncio.CancelledError(), stop=self.stop, interrupted=interrupted)
        if (error := handler.exception()) is not None:
            return Ending(error=error, stop=self.stop, interrupted=interrupted)
        return Ending(value=handler.result(), stop=self.stop, interrupted=interrupted)


async def _guarded(handler: Handler, arguments: tuple[Any, ...]) -> Any:
    """A handler that calls `sys.exit()` ends its job, not the worker."""
    try:
        return await handler(*arguments)
    except (SystemExit, KeyboardInterrupt) as problem:
        raise RuntimeError(f"handler raised {problem!r}") from problem
