"""Time and chance: the only file that reads the clock, sleeps or draws random numbers.

Everything else is handed a `Clock`, so a test can stand still, jump an hour or repeat a run.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall time in UTC: what is written down."""

    def monotonic(self) -> float:
        """Seconds that never run backwards: what a process measures its own waiting by."""

    def random(self) -> float:
        """A number in [0, 1)."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real one. `shift` moves wall time only, so that tests can let a lease lapse at once."""

    def __init__(self) -> None:
        self._shift = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self._shift

    def monotonic(self) -> float:
        return time.monotonic()

    def random(self) -> float:
        return random.random()

    async def sleep(self, seconds: float) -> None:
        """Suspends in an event loop, blocks without one."""
        if running_loop() is None:
            blocking_sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    def shift(self, seconds: float) -> None:
        self._shift += timedelta(seconds=seconds)


SYSTEM_CLOCK = SystemClock()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop this code runs in, if it runs in one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def blocking_sleep(seconds: float) -> None:
    """For the few places that own a thread and no event loop."""
    time.sleep(seconds)


def new_id(clock: Clock = SYSTEM_CLOCK) -> str:
    """A UUIDv7: unique, and sorted by time so that indexes grow at their end. Not a secret."""
    millis = int(clock.now().timestamp() * 1000)
    chance = random.getrandbits(74)
    text = f"{millis:012x}7{chance >> 62:03x}{(chance & _62_BITS) | _VARIANT:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_62_BITS = (1 << 62) - 1
_VARIANT = 2 << 62


def new_secret() -> str:
    """An unguessable name: lease ids, worker suffixes."""
    return secrets.token_hex(16)


async def wait_first(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for the event, at most so long; true when it came. (`asyncio.wait_for` would, on Python 3.11,
    lose a cancellation that arrives together with the event.)"""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def every(
    seconds: float,
    step: Callable[[], Awaitable[None]],
    *,
    stop: asyncio.Event,
    wake: asyncio.Event | None = None,
) -> None:
    """Run `step` until `stop`, each time after `seconds` or when woken, measured from the last end.
    Whoever sets `stop` also wakes."""
    wake = wake or stop
    while not stop.is_set():
        await wait_first(wake, seconds)
        if stop.is_set():
            return
        wake.clear()
        await step()
