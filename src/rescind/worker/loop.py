"""A worker at work: take jobs up to the free slots, settle what has ended, hear of news, drain at the end."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from enum import Enum, auto
from typing import Any, Final

from rescind import telemetry
from rescind.clock import wait_first
from rescind.engine import Claim, Engine, Settled, Swept, WorkerInfo
from rescind.errors import LeaseLost, RescindError, StoreClosed, Unavailable
from rescind.job import Job
from rescind.lease import Release, Settlement
from rescind.settings import Settings
from rescind.state import State
from rescind.sweeper import Sweeper, sweep_all
from rescind.worker.context import Context, Tally
from rescind.worker.keeper import RETRY_SECONDS, Keeper
from rescind.worker.ladder import Attempt, Ending, Stop
from rescind.worker.run import decide, give_back, give_up, second_word
from rescind.worker.task import Task
from rescind.worker.threads import Threads

_log = logging.getLogger("rescind.worker")

_POLL_SECONDS: Final = (0.02, 1.0)  # the first and the longest pause between claims that find nothing
_MANY_SLOTS: Final = 32
_SLOW_SECONDS: Final = 0.05


class Turn(Enum):
    """What one exchange with the store came to."""

    MOVED = auto()
    NOTHING = auto()
    UNAVAILABLE = auto()


class Loop:
    def __init__(
        self, engine: Engine, settings: Settings, tasks: Mapping[str, Task], info: WorkerInfo, *, sweeps: bool
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._tasks = tasks
        self._info = info
        self._clock = engine.clock
        self._threads = Threads()
        self._attempts: dict[str, Attempt] = {}  # by lease id: those whose leases we keep
        self._keeper = Keeper(engine, settings, info, self._attempts)
        self._sweeper = (
            Sweeper(engine, seconds=settings.sweep_seconds, retention=settings.retention) if sweeps else None
        )
        self._outbox: list[Settlement] = []
        self._in_flight: dict[asyncio.Future[Settled], Sequence[Settlement]] = {}  # with what each settles
        # A store in another process works while we do: with many slots two exchanges take turns, each for
        # half of them. With few, the second begins when the first has to wait there for some job.
        self._lanes = 2 if engine.needs_event_loop else 1
        self._asked_at = 0.0
        self._asking = 0  # exchanges under way
        self._claiming = 0  # the slots they ask to fill
        self._pause = _POLL_SECONDS[0]
        self._busy = 0  # handlers that are running, abandoned ones included
        self._turn = asyncio.Event()  # there may be something to settle or to claim
        self._stopping = asyncio.Event()
        self._hurried = False

    def stop(self) -> None:
        """Take no more work and let what runs end. Asked twice: do not wait for it."""
        if self._stopping.is_set():
            self._hurry()
        self._stopping.set()
        self._turn.set()

    async def run(self, *, until_empty: bool) -> None:
        needs = ", ".join(self._info.needs)
        _log.info("worker %s serves %s with %d slots", self._info.id, needs, self._info.slots)
        try:
            await self._keeper.appear()
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(each) for each in self._helpers()]
                try:
                    await self._exchange_until_done(group, until_empty)
                finally:
                    self._stop_helpers(helpers)
        finally:
            self._threads.close()
            await self._let_go()

    def _helpers(self) -> list[Any]:
        keeper = self._keeper
        helpers = [keeper.keep(), keeper.guard(), keeper.pass_on_reports(), self._listen(), self._drain()]
        return [*helpers, self._sweeper.run()] if self._sweeper else helpers

    def _stop_helpers(self, helpers: "list[asyncio.Task[None]]") -> None:
        self._keeper.stop()
        if self._sweeper:
            self._sweeper.stop()
        for helper in helpers:
            helper.cancel()

    async def _let_go(self) -> None:
        """Cancelled, or broken: give back at once what would otherwise come back when its lease lapses."""
        left = [*self._outbox, *(give_back(attempt) for attempt in self._attempts.values())]
        for exchange, settlements in self._in_flight.items():  # answered to nobody
            try:
                left += [_unstarted(job) for job in (await exchange).claimed]
            except Exception:
                left += settlements
        if left:
            with contextlib.suppress(Exception):
                await self._engine.settle(left)

    # Claiming and settling, in one round trip

    async def _exchange_until_done(self, group: asyncio.TaskGroup, until_empty: bool) -> None:
        self._turn.set()
        while not self._is_over():
            await wait_first(self._turn, self._pause)
            self._turn.clear()
            if self._may_ask() and not self._is_over():
                self._asked_at = self._clock.monotonic()
                self._asking += 1
                group.create_task(self._take_turn(group, until_empty))

    def _may_ask(self) -> bool:
        """One exchange at any time; another beside it when there is a lane's worth to settle or to claim, or
        when the first is slow."""
        if self._asking == 0:
            return True
        work = len(self._outbox) + self._free()
        if self._asking >= self._lanes or not work:
            return False
        if self._info.slots >= _MANY_SLOTS:
            return work >= self._share()
        return self._clock.monotonic() - self._asked_at > _SLOW_SECONDS

    def _free(self) -> int:
        return max(0, self._info.slots - self._busy - self._claiming)

    def _share(self) -> int:
        """The most that one exchange may claim: something is left for the other one."""
        if self._lanes == 1:
            return self._info.slots
        return -(-self._info.slots // 2) if self._info.slots >= _MANY_SLOTS else max(1, self._info.slots - 1)

    async def _take_turn(self, group: asyncio.TaskGroup, until_empty: bool) -> None:
        try:
            turn = await self._exchange(group)
        finally:
            self._asking -= 1
        self._pause = _POLL_SECONDS[0] if turn is Turn.MOVED else min(self._pause * 2, _POLL_SECONDS[1])
        if until_empty and turn is Turn.NOTHING and await self._is_empty():
            self.stop()
        if self._outbox or self._is_over():
            self._turn.set()

    async def _is_empty(self) -> bool:
        """Nothing was there to claim: does nothing run, and would a sweep set nothing free?"""
        if self._busy or self._outbox or self._asking:
            return False
        try:
            return await sweep_all(self._engine, self._settings.retention) == Swept()
        except Unavailable as problem:
            _log.warning("could not sweep, trying again: %s", problem)
            return False

    def _is_over(self) -> bool:
        return self._stopping.is_set() and not (self._attempts or self._outbox or self._asking)

    async def _exchange(self, group: asyncio.TaskGroup) -> Turn:
        """Settle what has ended and fill the free slots."""
        settlements, self._outbox = self._outbox, []
        claim = self._claim()
        sent = self._clock.monotonic()
        try:
            settled = await self._ask(settlements, claim)
        except StoreClosed as problem:
            return self._end(problem)
        except Unavailable as problem:
            self._outbox = settlements + self._outbox
            await self._wait_for_store(problem)
            return Turn.UNAVAILABLE
        except Exception:
            _log.exception("an exchange with the store failed; settling one by one")
            return await self._settle_apart(settlements)
        for settlement, answer in zip(settlements, settled.answers, strict=True):
            self._take_answer(settlement, answer)
        for job in settled.claimed:
            self._start(group, job, expires=sent + self._settings.lease_seconds)
        if claim is not None and len(settled.claimed) == claim.limit:  # there is more where these came from
            self._turn.set()
        return Turn.MOVED if settlements or settled.claimed else Turn.NOTHING

    async def _ask(self, settlements: Sequence[Settlement], claim: Claim | None) -> Settled:
        """Shielded: if we are cancelled meanwhile, what was claimed for us is still given back."""
        limit = claim.limit if claim else 0
        exchange = asyncio.ensure_future(self._engine.settle(settlements, claim))
        self._in_flight[exchange] = settlements
        self._claiming += limit
        try:
            settled = await asyncio.shield(exchange)
        except Exception:  # a cancellation is none, and leaves it for `_let_go`
            del self._in_flight[exchange]
            raise
        finally:
            self._claiming -= limit
        del self._in_flight[exchange]
        return settled

    async def _wait_for_store(self, problem: Unavailable) -> None:
        """Try again, unless the time to end is over: then the leases that are left have to lapse."""
        if self._hurried:
            _log.error("%d settlements are lost, their leases will lapse: %s", len(self._outbox), problem)
            self._outbox.clear()
            return
        _log.warning("could not settle or claim, trying again: %s", problem)
        await self._clock.sleep(RETRY_SECONDS)

    async def _settle_apart(self, settlements: Sequence[Settlement]) -> Turn:
        """One settlement that cannot be stored must not keep the others, nor come back for ever."""
        self._outbox = [*settlements, *self._outbox]
        for settlement in settlements:
            try:
                (answer,) = (await self._engine.settle([settlement])).answers
            except Unavailable:
                continue  # it stays in the outbox
            except Exception as problem:
                _log.exception("job %s could not be settled", settlement.lease.job_id)
                last = give_up(settlement, problem)
                self._outbox += [last] if last is not None else []
            else:
                self._take_answer(settlement, answer)
            self._outbox.remove(settlement)
        await self._clock.sleep(RETRY_SECONDS)
        return Turn.UNAVAILABLE

    def _end(self, problem: StoreClosed) -> Turn:
        """The queue was closed under us: there is nobody left to settle with."""
        _log.error("worker %s ends: %s", self._info.id, problem)
        self._interrupt(Stop.LOST)
        self._stopping.set()
        self._outbox.clear()
        return Turn.UNAVAILABLE

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
        free = min(self._free(), self._share())
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
        if self._stopping.is_set():  # we were told to stop while the claim was under way
            self._outbox.append(_unstarted(job))
            self._turn.set()
            return
        tally = Tally(job.lease, self._keeper.reporter())
        context = Context(job, tally, now=self._clock.now, write=self._keeper.write)
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

    async def _run(self, attempt: Attempt) -> None:
        job, task = attempt.job, attempt.task
        started = self._clock.monotonic()
        grace = self._settings.grace_seconds if task.grace_seconds is None else task.grace_seconds
        ending = await attempt.run(grace, self._settings.kill_after_seconds)
        telemetry.child(telemetry.RUN_SECONDS, job.need).observe(self._clock.monotonic() - started)
        limit = self._settings.payload_limit_bytes
        self._outbox.append(decide(attempt, ending, chance=self._clock.random(), payload_limit_bytes=limit))
        del self._attempts[job.lease.lease_id]
        if ending.error is not None and ending.stop is None:
            _log.warning(
                "job %s (%s), attempt %d failed", job.id, job.need, job.attempt, exc_info=ending.error
            )
        self._free_slot(attempt, ending)
        self._turn.set()

    def _free_slot(self, attempt: Attempt, ending: Ending) -> None:
        """At once, so that the next job is claimed in the exchange that settles this one; the slot of a deaf
        handler stays closed until it ends."""
        if not ending.abandoned or attempt.handler is None:
            self._busy -= 1
            return
        job = attempt.job
        words = "handler of %s ignores its stop: job %s is given up, its slot stays closed until it ends"
        _log.error(words, job.need, job.id)
        attempt.handler.add_done_callback(lambda handler: self._deaf_handler_ended(attempt, handler))

    def _deaf_handler_ended(self, attempt: Attempt, handler: "asyncio.Future[Any]") -> None:
        """Say so: what its lease still held, as a singleton key, comes free."""
        self._busy -= 1
        self._outbox.append(give_back(attempt))
        self._turn.set()
        if not handler.cancelled():
            handler.exception()  # nobody is left to hear it; asyncio would complain

    # Hints and the end

    async def _listen(self) -> None:
        while True:
            try:
                async with aclosing(self._engine.listen(self._info.needs)) as hints:  # type: ignore[type-var]
                    async for hint in hints:
                        self._take_hint(hint.kind, hint.job_ids)
            except Exception as problem:
                _log.warning("hints stopped, polling meanwhile: %s", problem)
            await self._clock.sleep(RETRY_SECONDS)

    def _take_hint(self, kind: str, job_ids: Sequence[str]) -> None:
        if kind == "work":
            self._turn.set()
        elif kind == "cancel":
            self._keeper.told_to_stop(job_ids)
        elif self._sweeper:
            self._sweeper.wake()

    async def _drain(self) -> None:
        await self._stopping.wait()
        await self._clock.sleep(self._settings.drain_seconds)
        self._hurry()

    def _hurry(self) -> None:
        """The time to end is over: interrupt what runs, and do not wait for a store that is away."""
        self._hurried = True
        self._interrupt(Stop.SHUTDOWN)

    def _interrupt(self, why: Stop) -> None:
        for attempt in self._attempts.values():
            attempt.ask_to_stop(why)


def _unstarted(job: Job) -> Release:
    return Release(lease=job.lease, reason="worker stopped before it began")


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
