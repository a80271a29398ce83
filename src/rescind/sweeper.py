"""The sweep on a schedule: after a fixed delay, or as soon as a cancel asks for it. Many may run at once."""

import asyncio
import logging
from datetime import timedelta
from typing import Final

from rescind import telemetry
from rescind.clock import every
from rescind.engine import Engine, Swept

_log = logging.getLogger(__name__)
_STEP: Final = 500  # jobs per engine call, so that nobody waits long behind a sweep


async def sweep_all(engine: Engine, retention: timedelta) -> Swept:
    """Sweep until there is nothing left to move."""
    total = Swept()
    while True:
        step = await engine.sweep(limit=_STEP, retention=retention)
        total = Swept(
            total.lapsed + step.lapsed,
            total.archived + step.archived,
            total.timed_out + step.timed_out,
            total.purged + step.purged,
        )
        for kind in ("lapsed", "archived", "timed_out", "purged"):
            telemetry.child(telemetry.SWEPT, kind).inc(getattr(step, kind))
        if not step.more:
            return total


class Sweeper:
    def __init__(self, engine: Engine, *, seconds: float, retention: timedelta) -> None:
        self._engine = engine
        self._seconds = seconds
        self._retention = retention
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        await every(self._seconds, self._sweep, wake=self._wake, stop=self._stop)

    async def _sweep(self) -> None:
        """Nothing that goes wrong in a sweep may end the sweeping."""
        try:
            swept = await sweep_all(self._engine, self._retention)
        except Exception:
            telemetry.SWEEP_FAILURES.inc()
            _log.exception("a sweep failed; the next one tries again")
        else:
            if swept != Swept():
                _log.info("swept", extra={"swept": swept})
