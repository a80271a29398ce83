"""A worker at work: take jobs up to the free slots, keep their leases, hear of cancels, drain at the end."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from rescind import telemetry
from rescind.clock import every, wait_first
from rescind.engine import Beat, Claim, Engine, WorkerInfo
from rescind.errors import LeaseLost, RescindError, Unavailable
from rescind.job import Job
from rescind.lease import Lease, Settlement
from rescind.settings import Settings
from rescind.state import State
from rescind.sweeper import Sweeper
from rescind.worker.context import Context, Tally
from rescind.worker.ladder import Attempt, Stop
from rescind.worker.run import decide, second_word
from rescind.worker.task import Task
from rescind.worker.threads import Threads

_log = logging.getLogger("rescind.worker")

_POLL_SECONDS: Final = (0.02, 1.0)  # the first and the longest pause between claims that find nothing
_REPORT_SECONDS: Final = 0.2  # progress is written at most this often
_RETRY_SECONDS: Final = 0.5  # the pause after the store could not be reached


class Loop:
    def __init__(
        self, engine: Engine, settings: Settings, tasks: Mapping[str, Task], info: WorkerInfo, *, sweeps: bool
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._tasks = tasks
        self._info = info
        self._clock = engine.clock
        self._sweeper = (
            Sweeper(engine, seconds=settings.sweep_seconds, retention=settings.retention) if sweeps else None
        )
        self._threads = Threads()
        self._attempts: dict[str, Attempt] = {}  # by lease id: those whose leases we keep
        self._outbox: list[Settlement] = []
        self._busy = 0  # handlers that are running, abandoned ones included
        self._turn = asyncio.Event()  # there may be something to settle or to claim
        self._beat_now = asyncio.Event()
        self._reported = asyncio.Event()
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()

    def stop(self) -> None:
        """Take no more work and let what runs end. Asked twice: do not wait for it."""
        if self._stopping.is_set():
            self._interrupt()
        self._stopping.set()
        self._turn.set()

    async def run(self, *, until_empty: bool) -> None:
        needs = ", ".join(self._info.needs)
        _log.info("worker %s serves %s with %d slots", self._info.id, needs, self._info.slots)
        await self._beat([], lease_seconds=None)  # we are here
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(self._keep_leases()),
                group.create_task(self._pass_on_reports()),
                group.create_task(self._listen()),
                group.create_task(self._drain()),
            ]
            if self._sweeper:
                helpers.append(group.create_task(self._sweeper.run()))
            try:
                await self._exchange_until_done(group, until_empty)
            finally:
                self._over.set()
                self._threads.close()
                if self._sweeper:
                    self._sweeper.stop()
                for helper in helpers:
                    helper.cancel()

    # Claiming and settling, in one round trip

    async def _exchange_until_done(self, group: asyncio.TaskGroup, until_empty: bool) -> None:
        pause, longest = _POLL_SECONDS
        self._turn.set()
        while not self._is_over():
            await wait_first(self._turn, pause)
            self._turn.clear()
            moved = await self._exchange(group)
            pause = _POLL_SECONDS[0] if moved else min(pause * 2, longest)
            if until_empty and not moved and not self._attempts and not self._outbox:
                self.stop()

    def _is_over(self) -> bool:
        return self._stopping.is_set() and not self._attempts and not self._outbox

    async def _exchange(self, group: asyncio.TaskGroup) -> bool:
        """Settle what has ended and fill the free slots; true when anything moved."""
        settlements, self._outbox = self._outbox, []
        sent = self._clock.monotonic()
        try:
            settled = await self._engine.settle(settlements, self._claim())
        except Unavailable as problem:
            _log.warning("could not settle or claim, trying again: %s", problem)
            self._outbox = settlements + self._outbox
            await self._clock.sleep(_RETRY_SECONDS)
            return False
        for settlement, answer in zip(settlements, settled.answers, strict=True):
            self._take_answer(settlement, answer)
        for job in settled.claimed:
            self._start(group, job, expires=sent + self._settings.lease_seconds)
        return bool(settlements or settled.claimed)

    def _take_answer(self, settlement: Settlement, answer: Job | RescindError) -> None:
        if isinstance(answer, Job):
            _log.info("job %s (%s): %s", answer.id, answer.need, answer.state)
            _count(answer)
            return
        level = logging.INFO if isinstance(answer, LeaseLost) else logging.WARNING
        _log.log(level, "settlement refused: %s", answer)
        if (second := second_word(settlement, answer)) is not None:
            self._outbox.append(second)
            self._turn.set()

    def _claim(self) -> Claim | None:
        free = self._info.slots - self._busy
        if free <= 0 or self._stopping.is_set():
            return None
        return Claim(
            worker=self._info.id,
            needs=self._info.needs,
            limit=free,
            lease_seconds=self._settings.lease_seconds,
        )

    # One job

    def _start(self, group: asyncio.TaskGroup, job: Job, *, expires: float) -> None:
        telemetry.child(telemetry.CLAIMED, job.need).inc()
        tally = Tally(job.lease, self._wake_reporter())
        context = Context(job, tally, now=self._clock.now, write=self._write)
        attempt = Attempt(
            job,
            self._tasks[job.need],
            context,
            tally,
            threads=self._threads,
            clock=self._clock,
            expires=expires,
        )
        self._attempts[job.lease.lease_id] = attempt
        self._busy += 1
        if expires <= self._clock.monotonic():  # we were paused since the claim: it is not ours any more
            attempt.ask_to_stop(Stop.LOST)
        group.create_task(self._run(attempt))

    def _wake_reporter(self) -> Callable[[], None]:
        """Handlers may report from any thread."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._reported.set)

        return wake

    async def _run(self, attempt: Attempt) -> None:
        job, task = attempt.job, attempt.task
        started = self._clock.monotonic()
        grace = self._settings.grace_seconds if task.grace_seconds is None else task.grace_seconds
        ending = await attempt.run(grace, self._settings.kill_after_seconds)
        telemetry.child(telemetry.RUN_SECONDS, job.need).observe(self._clock.monotonic() - started)
        limit = self._settings.payload_limit_bytes
        settlement = decide(attempt, ending, chance=self._clock.random(), payload_limit_bytes=limit)
        del self._attempts[job.lease.lease_id]
        self._outbox.append(settlement)
        if ending.abandoned and attempt.handler is not None:
            _log.error(
                "handler of %s ignores its stop: job %s is given up, its slot stays closed until it ends",
                job.need,
                job.id,
            )
            attempt.handler.add_done_callback(self._deaf_handler_ended)
        else:  # at once, so that the next job is claimed in the exchange that settles this one
            self._busy -= 1
        self._turn.set()

    def _deaf_handler_ended(self, handler: "asyncio.Future[Any]") -> None:
        self._busy -= 1
        self._turn.set()
        if not handler.cancelled():
            handler.exception()  # nobody is left to hear it; asyncio would complain

    # Keeping leases

    async def _keep_leases(self) -> None:
        await every(self._settings.heartbeat_seconds, self._keep, wake=self._beat_now, stop=self._over)

    async def _keep(self) -> None:
        try:
            await self._beat(list(self._attempts.values()), self._settings.lease_seconds)
        except Unavailable as problem:
            _log.warning("heartbeat failed, trying again: %s", problem)
            self._give_up_expiring()
            await self._clock.sleep(_RETRY_SECONDS)
            self._beat_now.set()

    def _give_up_expiring(self) -> None:
        """Handlers must not outlive their leases: those that cannot be extended in time are stopped."""
        ladder = self._settings.grace_seconds + self._settings.kill_after_seconds
        for attempt in self._attempts.values():
            if attempt.expires - ladder <= self._clock.monotonic():
                attempt.ask_to_stop(Stop.LOST)

    async def _pass_on_reports(self) -> None:
        while not self._over.is_set():
            await self._reported.wait()
            self._reported.clear()
            await self._report()
            await self._clock.sleep(_REPORT_SECONDS)

    async def _report(self) -> None:
        try:
            dirty = [attempt for attempt in self._attempts.values() if attempt.tally.dirty]
            await self._beat(dirty, lease_seconds=None)
        except Unavailable as problem:  # the next heartbeat carries the same
            _log.warning("could not write progress: %s", problem)

    async def _write(self, lease: Lease) -> None:
        attempt = self._attempts.get(lease.lease_id)
        if attempt is not None:
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

    # Hints and the end

    async def _listen(self) -> None:
        while not self._over.is_set():
            try:
                async with aclosing(self._engine.listen(self._info.needs)) as hints:  # type: ignore[type-var]
                    async for hint in hints:
                        self._take_hint(hint.kind, hint.job_ids)
            except Unavailable as problem:
                _log.warning("hints stopped, polling meanwhile: %s", problem)
            await self._clock.sleep(_RETRY_SECONDS)

    def _take_hint(self, kind: str, job_ids: Sequence[str]) -> None:
        if kind == "work":
            self._turn.set()
        elif kind == "sweep" and self._sweeper:
            self._sweeper.wake()
        elif kind == "cancel" and not {a.job.id for a in self._attempts.values()}.isdisjoint(job_ids):
            self._beat_now.set()

    async def _drain(self) -> None:
        await self._stopping.wait()
        await self._clock.sleep(self._settings.drain_seconds)
        self._interrupt()

    def _interrupt(self) -> None:
        for attempt in self._attempts.values():
            attempt.ask_to_stop(Stop.SHUTDOWN)


def _count(job: Job) -> None:
    """What became of an attempt, and how long a cancel took to reach, be seen and take effect."""
    telemetry.child(telemetry.SETTLED, job.need, job.state.value).inc()
    receipt = job.receipt
    if receipt is None or job.state is not State.CANCELLED:
        return
    telemetry.child(telemetry.CANCELLED, job.need).inc()
    for stage in ("delivered", "acknowledged", "stopped"):
        if (at := getattr(receipt, f"{stage}_at")) is not None:
            seconds = max(0.0, (at - receipt.requested_at).total_seconds())
            telemetry.child(telemetry.CANCEL_SECONDS, job.need, stage).observe(seconds)
