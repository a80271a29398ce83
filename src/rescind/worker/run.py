"""From how a handler ended to what the worker says about its lease: one pure decision."""

import asyncio
from datetime import datetime

import msgspec

from rescind import payload
from rescind.errors import (
    CancelledByRequest,
    InvalidInput,
    JobCancelled,
    PermanentError,
    RescindError,
    RetryableError,
)
from rescind.job import Job
from rescind.lease import Acknowledge, Complete, Fail, Release, Rung, Settlement, Target
from rescind.lease import Reschedule as RescheduleLease
from rescind.spec import check_delay, check_moment, check_need, check_wait_for
from rescind.worker.ladder import Attempt, Ending, Stop
from rescind.worker.reschedule import Reschedule
from rescind.worker.task import Task

_STOPPED = (CancelledByRequest, asyncio.CancelledError)
_ERROR_LIMIT = 2_000


def decide(attempt: Attempt, ending: Ending, *, chance: float, payload_limit_bytes: int) -> Settlement:
    """The settlement that an ending means, with what the attempt used."""
    job, task, tally = attempt.job, attempt.task, attempt.tally
    try:
        settlement = _decide(job, task, ending, attempt.context.seen_at, chance, payload_limit_bytes)
    except InvalidInput as problem:  # what it returned cannot be stored; trying again would not help
        settlement = Fail(
            lease=job.lease, error=f"handler of {task.need!r} returned: {problem}", retry_seconds=None
        )
    return msgspec.structs.replace(settlement, units=tally.units, work_started=tally.work_started)


def _decide(
    job: Job, task: Task, ending: Ending, seen_at: datetime | None, chance: float, limit: int
) -> Settlement:
    lease = job.lease
    pause = task.retry.delay_seconds(job.failures, chance)
    match ending:
        case Ending(stop=Stop.CANCEL, abandoned=True):
            return Acknowledge(lease=lease, rung=Rung.ABANDONED, acknowledged_at=seen_at)
        case Ending(stop=Stop.CANCEL, error=None, value=None | Reschedule()):
            return Acknowledge(lease=lease, rung=_rung(ending), acknowledged_at=seen_at)
        case Ending(stop=Stop.CANCEL, error=error) if isinstance(error, _STOPPED):
            return Acknowledge(lease=lease, rung=_rung(ending), acknowledged_at=seen_at)
        case Ending(stop=Stop.TIMEOUT, abandoned=True) | Ending(stop=Stop.TIMEOUT, error=None, value=None):
            return Fail(lease=lease, error=_timed_out(task, ending), retry_seconds=pause)
        case Ending(stop=Stop.TIMEOUT, error=error) if isinstance(error, _STOPPED):
            return Fail(lease=lease, error=_timed_out(task, ending), retry_seconds=pause)
        case Ending(stop=Stop.SHUTDOWN | Stop.LOST as stop, abandoned=True):
            return Release(lease=lease, reason=f"handler given up: {stop}")
        case Ending(stop=Stop.SHUTDOWN | Stop.LOST as stop, error=error) if isinstance(error, _STOPPED):
            return Release(lease=lease, reason=f"handler stopped: {stop}")
        case Ending(error=None, value=Reschedule() as wish):
            return RescheduleLease(lease=lease, to=_target(job, wish))
        case Ending(error=None, value=value):
            return Complete(lease=lease, output=payload.encode(value, "output", limit))
        case Ending(error=PermanentError() as error):
            return Fail(lease=lease, error=_words(error), retry_seconds=None)
        case Ending(error=RetryableError(delay=float() | int() as delay) as error):
            return Fail(lease=lease, error=_words(error), retry_seconds=delay)
        case Ending(error=error):
            return Fail(lease=lease, error=_words(error), retry_seconds=pause)


def second_word(settlement: Settlement, refusal: RescindError) -> Settlement | None:
    """What to say when the first word was refused; nothing, when the job is no longer ours."""
    match refusal:
        case JobCancelled():  # the cancel came while the handler asked for a reschedule
            return Acknowledge(lease=settlement.lease, rung=Rung.FLAG)
        case InvalidInput():  # it asked to wait for jobs that do not exist, or in a circle
            return Fail(lease=settlement.lease, error=_words(refusal), retry_seconds=None)
        case _:
            return None


def _rung(ending: Ending) -> Rung:
    return Rung.RAISED if ending.interrupted else Rung.FLAG


def _timed_out(task: Task, ending: Ending) -> str:
    fate = "; it would not stop and was abandoned" if ending.abandoned else ""
    return f"timed out after {task.timeout_seconds:g} s{fate}"


def _words(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"[:_ERROR_LIMIT]


def _target(job: Job, wish: Reschedule) -> Target:
    """A job keeps its need and its singleton key unless the handler says otherwise."""
    at = check_moment(wish.at, "at")
    return Target(
        need=job.need if wish.need is None else check_need(wish.need),
        wait_for=check_wait_for(wish.wait_for),
        singleton_key=job.singleton_key if wish.singleton_key is None else wish.singleton_key or None,
        available_at=at,
        delay_seconds=check_delay(wish.delay_seconds, at),
    )
