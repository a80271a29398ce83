"""What a handler may ask and say while it runs. Safe to use from the event loop and from a thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from datetime import datetime
from typing import Any

from rescind.errors import CancelledByRequest, InvalidInput
from rescind.job import Job
from rescind.lease import Report


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
    """Set once, when the job should stop. `wait` for async handlers, `wait_blocking` for threads."""

    def __init__(self) -> None:
        self._for_tasks = asyncio.Event()
        self._for_threads = threading.Event()

    def is_set(self) -> bool:
        return self._for_threads.is_set()

    async def wait(self) -> None:
        await self._for_tasks.wait()

    def wait_blocking(self, seconds: float | None = None) -> bool:
        """True when it is time to stop, false when `seconds` passed first."""
        return self._for_threads.wait(seconds)

    def set(self) -> None:
        """Called in the worker's event loop only."""
        self._for_threads.set()
        self._for_tasks.set()


class Context:
    """Handed to handlers that take `(input, context)`."""

    def __init__(
        self,
        job: Job,
        *,
        now: Callable[[], datetime],
        changed: Callable[[], None],
        write: Callable[["Context"], Awaitable[None]],
    ) -> None:
        self.job = job
        self.cancelled = CancelSignal()
        self.seen_at: datetime | None = None  # when the handler first noticed that it should stop
        self._now = now
        self._changed = changed  # tells the worker, from any thread, that there is something to report
        self._write = write
        self._lock = threading.Lock()
        self._progress: float | None = None
        self._message: str | None = None
        self._units = 0
        self._work_started = False
        self._dirty = False

    @property
    def token(self) -> int:
        """Grows with every attempt of this job: give it to outside systems that should refuse older ones."""
        return self.job.attempt

    @property
    def attempt(self) -> int:
        return self.job.attempt

    def is_cancellation_requested(self) -> Answer:
        """Has somebody asked for this job to stop? Costs nothing; ask often."""
        if self.cancelled.is_set() and self.seen_at is None:
            self.seen_at = self._now()
        return Answer(self.cancelled.is_set())

    def raise_if_cancelled(self) -> None:
        """Leave from the depths of a handler. Let it pass: the worker knows what it means."""
        if self.is_cancellation_requested():
            raise CancelledByRequest(f"job {self.job.id} was asked to stop")

    def progress(self, fraction: float, message: str | None = None) -> None:
        """How far along, from 0 to 1; shown to whoever watches."""
        if not 0 <= fraction <= 1:
            raise InvalidInput(f"progress is a fraction from 0 to 1, not {fraction!r}")
        with self._lock:
            self._progress, self._message, self._dirty = fraction, message or self._message, True
        self._changed()

    def usage(self, units: int) -> None:
        """Units of metered work done since the last call; they add up."""
        if isinstance(units, bool) or not isinstance(units, int) or units < 0:
            raise InvalidInput(f"usage is a whole number of units, 0 or more, not {units!r}")
        with self._lock:
            self._units, self._dirty = self._units + units, True
        self._changed()

    async def mark_started(self) -> None:
        """Write down that paid work begins, before it does. Raises when the job should not go on."""
        with self._lock:
            self._work_started = self._dirty = True
        await self._write(self)
        self.raise_if_cancelled()

    # For the worker

    @property
    def dirty(self) -> bool:
        return self._dirty

    @property
    def units(self) -> int:
        return self._units

    @property
    def work_started(self) -> bool:
        return self._work_started

    def report(self) -> Report:
        """Everything to tell the engine so far; sent again it means the same."""
        with self._lock:
            self._dirty = False
            return Report(
                lease=self.job.lease,
                progress=self._progress,
                message=self._message,
                units=self._units,
                work_started=self._work_started,
            )
