"""What a handler may ask and say while it runs. Safe to use from the event loop and from a thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from datetime import datetime
from typing import Any

from rescind.clock import running_loop
from rescind.errors import CancelledByRequest, InvalidInput
from rescind.job import Job
from rescind.lease import Lease, Report
from rescind.spec import check_integer, check_reason

_MOST_UNITS = 2**53  # beyond that, JSON readers would round


class Answer:
    """A bool that may be awaited: `if await context.is_cancellation_requested()` in async handlers, the
    same without `await` in plain ones."""

    __slots__ = ("_value",)

    def __init__(self, value: bool) -> None:
        self._value = value

    def __bool__(self) -> bool:
        return self._value

    def __await__(self) -> Generator[Any, None, bool]:
        yield from ()
        return self._value


class CancelSignal:
    """Set once, when the job should stop. `wait` for async handlers, `wait_blocking` for threads. Whichever
    way the handler learns of it first, `seen_at` says when."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.seen_at: datetime | None = None
        self._now = now
        self._for_tasks = asyncio.Event()
        self._for_threads = threading.Event()

    def is_set(self) -> bool:
        return self._seen(self._for_threads.is_set())

    async def wait(self) -> None:
        await self._for_tasks.wait()
        self._seen(True)

    def wait_blocking(self, seconds: float | None = None) -> bool:
        """True when it is time to stop, false when `seconds` passed first."""
        return self._seen(self._for_threads.wait(seconds))

    def set(self) -> None:
        """Called in the worker's event loop only."""
        self._for_threads.set()
        self._for_tasks.set()

    def _seen(self, is_set: bool) -> bool:
        if is_set and self.seen_at is None:
            self.seen_at = self._now()
        return is_set


class Tally:
    """What a handler has reported so far, from whichever thread; the worker passes it on."""

    def __init__(self, lease: Lease, changed: Callable[[], None]) -> None:
        self._lease = lease
        self._changed = changed  # tells the worker that there is something to pass on
        self._lock = threading.Lock()
        self._progress: float | None = None
        self._message: str | None = None
        self.units = 0
        self.work_started = False
        self.dirty = False

    def progress(self, fraction: float, message: str | None) -> None:
        with self._lock:
            self._progress, self._message, self.dirty = fraction, message or self._message, True
        self._changed()

    def use(self, units: int) -> None:
        with self._lock:
            self.units, self.dirty = min(self.units + units, _MOST_UNITS), True
        self._changed()

    def start(self) -> None:
        with self._lock:
            self.work_started = self.dirty = True

    def report(self) -> Report:
        """Everything so far; sent again it means the same."""
        with self._lock:
            self.dirty = False
            return Report(
                lease=self._lease,
                progress=self._progress,
                message=self._message,
                units=self.units,
                work_started=self.work_started,
            )


class Context:
    """Handed to handlers that take `(input, context)`. `context.job` is the job, `context.cancelled` an event
    that is set when it should stop."""

    def __init__(
        self,
        job: Job,
        tally: Tally,
        *,
        now: Callable[[], datetime],
        write: Callable[[Lease], Awaitable[None]],
    ) -> None:
        self.job = job
        self.cancelled = CancelSignal(now)
        self._tally = tally
        self._write = write
        self._loop = asyncio.get_running_loop()

    @property
    def token(self) -> int:
        """Grows with every attempt of this job: give it to outside systems that should refuse older ones."""
        return self.job.attempt

    @property
    def attempt(self) -> int:
        return self.job.attempt

    def is_cancellation_requested(self) -> Answer:
        """Has somebody asked for this job to stop? Costs nothing; ask often."""
        return Answer(self.cancelled.is_set())

    def raise_if_cancelled(self) -> None:
        """Leave from the depths of a handler. Let it pass: the worker knows what it means."""
        if self.is_cancellation_requested():
            raise CancelledByRequest(f"job {self.job.id} was asked to stop")

    def progress(self, fraction: float, message: str | None = None) -> None:
        """How far along, from 0 to 1; shown to whoever watches."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise InvalidInput(f"progress is a fraction from 0 to 1, not {fraction!r}")
        self._tally.progress(float(fraction), check_reason(message))

    def usage(self, units: int) -> None:
        """Units of metered work done since the last call; they add up."""
        self._tally.use(check_integer(units, "usage", 0, _MOST_UNITS))

    def mark_started(self) -> Awaitable[Any]:
        """Write down that paid work begins, before it does; raises when the job should not go on. Await it in
        async handlers; in a thread it has happened when the call returns."""
        if running_loop() is self._loop:
            return self._mark_started()
        asyncio.run_coroutine_threadsafe(self._mark_started(), self._loop).result()
        return Answer(True)

    async def _mark_started(self) -> None:
        self._tally.start()
        await self._write(self.job.lease)
        self.raise_if_cancelled()
