"""The lifecycle: which state a job's facts mean, and the table of what each verb may do in each situation.

Pure: no I/O and no clock. `moves.py` carries the verbs out; engines call it and decide nothing themselves.
The conformance suite holds every engine to `TABLE`, state by state and verb by verb.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from rescind import errors
from rescind.job import Job
from rescind.state import State


class Situation(StrEnum):
    """A state, with ACTIVE told apart by whether the job has been asked to stop."""

    AWAITING_FUTURE = "AWAITING_FUTURE"
    PENDING_JOBS = "PENDING_JOBS"
    READY = "READY"
    ACTIVE = "ACTIVE"
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Verb(StrEnum):
    SUBMIT = "submit"
    CLAIM = "claim"
    EXTEND = "extend"
    COMPLETE = "complete"
    FAIL = "fail"
    RESCHEDULE = "reschedule"
    RELEASE = "release"
    ACKNOWLEDGE = "acknowledge"
    CANCEL = "cancel"
    FORCE_CANCEL = "force_cancel"
    COMPLETE_UNHELD = "complete_unheld"
    RESCHEDULE_UNHELD = "reschedule_unheld"
    UNBLOCK = "unblock"
    LAPSE = "lapse"
    TIME_OUT = "time_out"
    ARCHIVE = "archive"
    PURGE = "purge"
    FORGET_KEY = "forget_key"


_AWAITING, _PENDING, _READY, _ACTIVE, _CANCELLING, _COMPLETED, _FAILED, _CANCELLED = Situation

Refusal = type[errors.WrongState]
Row = Mapping[Situation, frozenset[Situation] | Refusal]


def _row(otherwise: Refusal, moves: dict[tuple[Situation, ...], tuple[Situation, ...] | Refusal]) -> Row:
    """One verb: where it leads from each situation named, and how it is refused in all the others."""
    row: dict[Situation, frozenset[Situation] | Refusal] = dict.fromkeys(Situation, otherwise)
    for sources, result in moves.items():
        for source in sources:
            row[source] = frozenset(result) if isinstance(result, tuple) else result
    return row


_WAITING = (_AWAITING, _PENDING, _READY)

TABLE: Final[Mapping[Verb, Row]] = {
    Verb.CLAIM: _row(errors.NotAvailable, {(_READY,): (_ACTIVE,)}),
    Verb.EXTEND: _row(
        errors.LeaseLost,
        {(_ACTIVE,): (_ACTIVE,), (_CANCELLING,): (_CANCELLING,)},  # told to stop, its lease does not grow
    ),
    Verb.COMPLETE: _row(errors.LeaseLost, {(_ACTIVE, _CANCELLING): (_COMPLETED,)}),
    Verb.FAIL: _row(
        errors.LeaseLost, {(_ACTIVE,): (_AWAITING, _READY, _FAILED), (_CANCELLING,): (_CANCELLED,)}
    ),
    Verb.RESCHEDULE: _row(errors.LeaseLost, {(_ACTIVE,): _WAITING, (_CANCELLING,): errors.JobCancelled}),
    Verb.RELEASE: _row(errors.LeaseLost, {(_ACTIVE,): (_READY,), (_CANCELLING,): (_CANCELLED,)}),
    Verb.ACKNOWLEDGE: _row(errors.LeaseLost, {(_CANCELLING,): (_CANCELLED,), (_ACTIVE,): errors.WrongState}),
    Verb.CANCEL: _row(
        errors.CannotCancelError,
        {
            _WAITING: (_CANCELLED,),
            (_ACTIVE,): (_CANCELLING, _CANCELLED),  # CANCELLED at once when it holds a reservation
            (_CANCELLING,): (_CANCELLING,),
            (_CANCELLED,): (_CANCELLED,),
        },
    ),
    Verb.FORCE_CANCEL: _row(
        errors.CannotCancelError, {(*_WAITING, _ACTIVE, _CANCELLING, _CANCELLED): (_CANCELLED,)}
    ),
    Verb.COMPLETE_UNHELD: _row(
        errors.NotAvailable, {(_READY, _PENDING): (_COMPLETED,), (_CANCELLED,): errors.JobCancelled}
    ),
    Verb.RESCHEDULE_UNHELD: _row(
        errors.NotAvailable,
        {(_READY, _PENDING): _WAITING, (_CANCELLING, _CANCELLED): errors.JobCancelled},
    ),
}
"""What a caller may ask. Each cell is the set of situations the verb can lead to, or its refusal."""


def state_of(job: Job, now: datetime) -> State:
    """The state these facts mean at this moment; the first that holds."""
    if job.outcome is not None:
        return State(job.outcome.value)
    if job.lease_expires_at is not None and job.lease_expires_at > now:
        return State.ACTIVE
    if job.cancel_requested_at is not None:
        return State.CANCELLED
    if job.available_at > now:
        return State.AWAITING_FUTURE
    if job.wait_for:
        return State.PENDING_JOBS
    if lease_lapsed(job, now) and attempts_used_up(job):
        return State.FAILED
    return State.READY


def situation_of(job: Job, now: datetime) -> Situation:
    state = state_of(job, now)
    if state is State.ACTIVE and job.cancel_requested_at is not None:
        return Situation.CANCELLING
    return Situation(state.value)


def snapshot(job: Job, now: datetime) -> Job:
    """The job with its `state` as of now, ready to be shown."""
    state = state_of(job, now)
    return job if job.state is state else msgspec.structs.replace(job, state=state)


def lease_lapsed(job: Job, now: datetime) -> bool:
    return job.lease_expires_at is not None and job.lease_expires_at <= now


def attempts_used_up(job: Job) -> bool:
    """Would one more failure be the last?"""
    return job.max_attempts is not None and job.failures + 1 >= job.max_attempts


def enter(verb: Verb, job: Job, now: datetime) -> Situation:
    """The situation the verb finds, or the refusal the table names for it."""
    here = situation_of(job, now)
    cell = TABLE[verb][here]
    if isinstance(cell, frozenset):
        return here
    raise refusal(cell, verb, job, now)


def refusal(kind: Refusal, verb: Verb, job: Job, now: datetime) -> errors.WrongState:
    seen = snapshot(job, now)
    return kind(job.id, verb.value, seen.state, seen.status)


def enter_held(verb: Verb, job: Job, lease_id: str, now: datetime) -> Situation:
    """As `enter`, for verbs only the holder of the current lease may use."""
    if job.lease_id != lease_id:
        raise refusal(errors.LeaseLost, verb, job, now)
    return enter(verb, job, now)
