"""Keeping leases: heartbeats, reports between them, and what the store answers to either."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rescind import telemetry
from rescind.clock import every
from rescind.engine import Beat, Engine, WorkerInfo
from rescind.errors import CancelledByRequest, StoreClosed
from rescind.lease import Lease
from rescind.settings import Settings
from rescind.state import State
from rescind.worker.ladder import Attempt, Stop

_log = logging.getLogger("rescind.worker")

_REPORT_SECONDS: Final = 0.2  # progress is written at most this often
RETRY_SECONDS: Final = 0.5  # the pause after the store could not be reached


class Keeper:
    """Keeps the leases of `attempts`, which the loop adds to and takes from."""

    def __init__(
        self, engine: Engine, settings: Settings, info: WorkerInfo, attempts: Mapping[str, Attempt]
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._info = info
        self._attempts = attempts
        self._clock = engine.clock
        self._beat_now = asyncio.Event()
        self._named: set[str] = set()  # jobs that a hint says are to stop
        self._reported = asyncio.Event()
        self._over = asyncio.Event()

    def stop(self) -> None:
        self._over.set()
        self._beat_now.set()
        self._reported.set()

    def told_to_stop(self, job_ids: Sequence[str]) -> None:
        """A hint: if one of these is ours, ask at once."""
        if ours := {attempt.job.id for attempt in self._attempts.values()}.intersection(job_ids):
            self._named |= ours
            self._beat_now.set()

    def reporter(self) -> Callable[[], None]:
        """What a handler calls, from any thread, when there is something to pass on."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._reported.set)

        return wake

    async def appear(self) -> None:
        """Show the worker to whoever lists them, before it has work."""
        await self._beat([], lease_seconds=None)

    async def keep(self) -> None:
        await every(self._settings.heartbeat_seconds, self._heartbeat, wake=self._beat_now, stop=self._over)

    async def guard(self) -> None:
        """Watch the leases by our own clock: a heartbeat may hang instead of failing."""
        await every(min(1.0, self._settings.heartbeat_seconds / 4), self._watch, stop=self._over)

    async def _watch(self) -> None:
        self._give_up(self._expiring())

    async def _heartbeat(self) -> None:
        try:
            await self._look_at_named()
            await self._beat(list(self._attempts.values()), self._settings.lease_seconds)
        except StoreClosed:
            self._give_up(self._attempts.values())
        except Exception as problem:
            _log.warning("heartbeat failed, trying again: %s", problem)
            await self._clock.sleep(RETRY_SECONDS)
            self._beat_now.set()

    async def _look_at_named(self) -> None:
        """A look is quicker than a heartbeat, which writes; the heartbeat behind it records the delivery."""
        named, self._named = self._named, set()
        if not named:
            return
        ids = [*named]
        jobs = dict(zip(ids, await self._engine.get(ids), strict=True))
        for attempt in self._attempts.values():
            job = jobs.get(attempt.job.id)
            if job is not None and job.cancelling and job.lease_id == attempt.job.lease_id:
                attempt.ask_to_stop(Stop.CANCEL)

    def _expiring(self) -> list[Attempt]:
        """Handlers must not outlive their leases: those that cannot be extended in time for the ladder."""
        ladder = self._settings.grace_seconds + self._settings.kill_after_seconds
        now = self._clock.monotonic()
        return [attempt for attempt in self._attempts.values() if attempt.expires - ladder <= now]

    def _give_up(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            attempt.ask_to_stop(Stop.LOST)

    async def pass_on_reports(self) -> None:
        while not self._over.is_set():
            await self._reported.wait()
            self._reported.clear()
            await self._report()
            await self._clock.sleep(_REPORT_SECONDS)

    async def _report(self) -> None:
        dirty = [attempt for attempt in self._attempts.values() if attempt.tally.dirty]
        if not dirty:  # its attempt has ended, and its settlement carries the rest
            return
        try:
            await self._beat(dirty, lease_seconds=None)
        except Exception as problem:  # the next heartbeat carries the same
            _log.warning("could not write progress: %s", problem)

    async def write(self, lease: Lease) -> None:
        """Write what one attempt has reported, now."""
        attempt = self._attempts.get(lease.lease_id)
        if attempt is None:
            raise CancelledByRequest(f"job {lease.job_id} is not held by this worker any more")
        await self._beat([attempt], lease_seconds=None)

    async def _beat(self, attempts: Sequence[Attempt], lease_seconds: float | None) -> None:
        sent = self._clock.monotonic()
        reports = [attempt.tally.report() for attempt in attempts]
        beats = await self._engine.extend(self._info, reports, lease_seconds)
        for attempt, beat in zip(attempts, beats, strict=True):
            self._hear(attempt, beat, sent + lease_seconds if lease_seconds else attempt.expires)

    def _hear(self, attempt: Attempt, beat: Beat, expires: float) -> None:
        """What the store said of one lease: it goes on, it is to stop, or it is gone."""
        if beat.error is not None or beat.job is None:
            if attempt.stop is not Stop.LOST:
                telemetry.child(telemetry.LEASES_LOST, attempt.job.need).inc()
                forced = beat.job is not None and beat.job.state is State.CANCELLED
                _log.log(logging.INFO if forced else logging.WARNING, "stopping a handler: %s", beat.error)
            attempt.ask_to_stop(Stop.LOST)
        elif beat.job.cancelling:
            attempt.ask_to_stop(Stop.CANCEL)
        else:
            attempt.expires = expires
