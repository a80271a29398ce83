"""From how a handler ended to what the worker says about its lease: one pure decision."""

import asyncio
import inspect
from typing import Any, Final, TypeVar

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
from rescind.spec import check_delay, check_moment, check_need, check_seconds, check_text, check_wait_for
from rescind.worker.ladder import Attempt, Ending, Stop
from rescind.worker.reschedule import Reschedule
from rescind.worker.task import Task

_STOPPED: Final = (CancelledByRequest, asyncio.CancelledError)
_ERROR_LIMIT: Final = 2_000
S = TypeVar("S", bound=Settlement)
_GIVEN_UP: Final = "could not be settled"


def decide(attempt: Attempt, ending: Ending, *, chance: float, payload_limit_bytes: int) -> Settlement:
    """The settlement that an ending means, with what the attempt used and what it took to stop it. Whatever
    a handler returned, this does not raise: one job must not take the others down."""
    job, seen_at = attempt.job, attempt.context.cancelled.seen_at
    try:
        settlement = _decide(job, attempt.task, ending, seen_at is not None, chance, payload_limit_bytes)
    except Exception as problem:  # what it returned cannot be stored; trying again would not help
        error = f"handler of {job.need!r} returned: {_words(problem)}"
        settlement = Fail(lease=job.lease, error=error, retry_seconds=None)
    return _with_account(settlement, attempt, rung=_rung(ending), still_running=ending.abandoned)


def give_back(attempt: Attempt) -> Release:
    """For a worker that ends before its handlers: what they did so far counts."""
    rung = Rung.ABANDONED if attempt.is_running else Rung.RAISED
    release = Release(lease=attempt.job.lease, reason="worker stopped")
    return _with_account(release, attempt, rung=rung, still_running=attempt.is_running)


def _with_account(settlement: S, attempt: Attempt, *, rung: Rung, still_running: bool) -> S:
    return msgspec.structs.replace(
        settlement,
        units=attempt.tally.units,
        work_started=attempt.tally.work_started,
        rung=rung,
        acknowledged_at=attempt.context.cancelled.seen_at,
        still_running=still_running,
    )


def _decide(job: Job, task: Task, ending: Ending, saw: bool, chance: float, limit: int) -> Settlement:
    """`saw`: the handler knew that it should stop, so that its None means that it did."""
    lease = job.lease
    pause = task.retry.delay_seconds(job.failures, chance)
    stopped = ending.abandoned or isinstance(ending.error, _STOPPED)
    empty = ending.error is None and ending.value is None
    gave_in = stopped or (empty and (saw or ending.interrupted))
    torn = ending.error is not None and ending.interrupted  # it failed because it was interrupted
    match ending:
        case Ending(stop=Stop.CANCEL) if stopped or empty:
            return Acknowledge(lease=lease)
        case Ending(stop=Stop.CANCEL, error=None, value=Reschedule()):
            return Acknowledge(lease=lease)
        case Ending(stop=Stop.TIMEOUT) if gave_in:
            return Fail(lease=lease, error=_timed_out(task, ending), retry_seconds=pause)
        case Ending(stop=Stop.LOST | Stop.SHUTDOWN as stop) if gave_in or torn:
            return Release(lease=lease, reason=f"stopped by the worker: {stop}")
        case Ending(error=None, value=Reschedule() as wish):
            return RescheduleLease(lease=lease, to=_target(job, wish))
        case Ending(error=None, value=value):
            return Complete(lease=lease, output=_output(value, limit))
        case Ending(error=PermanentError() as error):
            return Fail(lease=lease, error=_words(error), retry_seconds=None)
        case Ending(error=RetryableError() as error):
            return Fail(lease=lease, error=_words(error), retry_seconds=_delay(error, pause))
        case Ending(error=error):
            return Fail(lease=lease, error=_words(error), retry_seconds=pause)


def _output(value: Any, limit: int) -> bytes:
    if inspect.iscoroutine(value):
        value.close()
        raise InvalidInput("a coroutine: register an `async def`, or a function that awaits it")
    return payload.encode(value, "output", limit)


def _delay(error: RetryableError, pause: float) -> float:
    """What the handler asked for, unless it makes no sense."""
    try:
        return pause if error.delay is None else check_seconds(error.delay, "delay")
    except InvalidInput:
        return pause


def second_word(settlement: Settlement, refusal: RescindError) -> Settlement | None:
    """What to say when the first word was refused; nothing, when the job is no longer ours."""
    match refusal:
        case JobCancelled():  # the cancel came while the handler asked for a reschedule
            return Acknowledge(**_account(settlement))
        case InvalidInput():  # it asked to wait for jobs that do not exist, or in a circle
            return Fail(**_account(settlement), error=_words(refusal), retry_seconds=None)
        case _:
            return None


def give_up(settlement: Settlement, problem: Exception) -> Settlement | None:
    """The plainest last word, for a settlement that the store choked on; after it, the lease may lapse."""
    last = isinstance(settlement, Fail) and settlement.error.startswith(_GIVEN_UP)
    if last or isinstance(settlement, Release):
        return None
    error = f"{_GIVEN_UP}: {_words(problem)}"
    return Fail(**_account(settlement), error=error, retry_seconds=None)


def _account(settlement: Settlement) -> dict[str, Any]:
    """What every settlement of this lease has to say, whichever it is."""
    return {name: getattr(settlement, name) for name in Settlement.__struct_fields__}


def _rung(ending: Ending) -> Rung:
    if ending.abandoned:
        return Rung.ABANDONED
    return Rung.RAISED if ending.interrupted else Rung.FLAG


def _timed_out(task: Task, ending: Ending) -> str:
    fate = "; it would not stop and was abandoned" if ending.abandoned else ""
    return f"timed out after {task.timeout_seconds:g} s{fate}"


def _words(error: BaseException | None) -> str:
    """What an error says, whatever it is: some cannot even be printed."""
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be printed)"
    return f"{type(error).__name__}: {text}".encode("utf-8", "replace").decode()[:_ERROR_LIMIT]


def _target(job: Job, wish: Reschedule) -> Target:
    """A job keeps its need and its singleton key unless the handler says otherwise."""
    at = check_moment(wish.at, "at")
    return Target(
        need=job.need if wish.need is None else check_need(wish.need),
        wait_for=check_wait_for(wish.wait_for),
        singleton_key=_key(job, wish),
        available_at=at,
        delay_seconds=check_delay(wish.delay_seconds, at),
    )


def _key(job: Job, wish: Reschedule) -> str | None:
    if wish.singleton_key is None:
        return job.singleton_key
    return check_text(wish.singleton_key, "singleton_key") if wish.singleton_key != "" else None
