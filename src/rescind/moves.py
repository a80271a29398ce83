"""Every move of a job, pure: from the job, the wish and the time to the job after and its line of history.

Engines call these inside their own transaction or compare-and-swap and store what comes back.
"""

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from rescind import errors, payload
from rescind.job import Billing, CancelRequest, Event, Job, Outcome
from rescind.lease import Acknowledge, Complete, Fail, Release, Report, Reschedule, Rung, Settlement, Target
from rescind.lifecycle import (
    Situation,
    Verb,
    attempts_used_up,
    enter,
    enter_held,
    lease_lapsed,
    refusal,
    snapshot,
    state_of,
)
from rescind.policy import NO_POLICY, TIMED_OUT, Charge, Policy, settle_cost
from rescind.spec import JobSpec
from rescind.state import State

SWEEP: Final = "rescind:sweep"  # the actor of what time alone decided
_RUNNING: Final = (Situation.ACTIVE, Situation.CANCELLING)
_WAITING: Final = (Situation.AWAITING_FUTURE, Situation.PENDING_JOBS, Situation.READY)


class Move(msgspec.Struct, frozen=True):
    """The job after a verb and the line it adds to its history; `event` is None when it made no move.
    `changes` are the facts to store, `charge` the entry to make in the owner's ledger with them, `before` the
    job as the verb found it; `still_running` says that its lease ended before its handler did."""

    job: Job
    event: Event | None = None
    changes: dict[str, Any] = {}
    charge: Charge | None = None
    before: Job | None = None
    still_running: bool = False

    @property
    def changed(self) -> bool:
        return self.event is not None


def _move(
    verb: Verb,
    job: Job,
    now: datetime,
    actor: str,
    changes: dict[str, Any],
    *,
    reason: str | None = None,
    charge: Charge | None = None,
) -> Move:
    after = snapshot(msgspec.structs.replace(job, **changes), now)
    event = Event(
        job_id=job.id,
        verb=verb.value,
        at=now,
        actor=actor,
        state=after.state,
        reason=reason,
        changes={fact: value for fact, value in changes.items() if fact not in UNTOLD},
    )
    return Move(after, event, changes, charge, job)


UNTOLD: Final = frozenset({"input", "output", "progress", "progress_message"})
"""Facts kept on the job alone: payload would be stored twice, progress would drown the history."""
_NO_LEASE: Final = {"lease_id": None, "lease_worker": None, "lease_expires_at": None}


def submit(spec: JobSpec, now: datetime) -> Move:
    """A new job. The engine has checked that its id is free and that what it waits for exists."""
    job = Job(
        id=spec.id,
        need=spec.need,
        input=payload.decode(spec.body),
        owner=spec.owner,
        priority=spec.priority,
        singleton_key=spec.singleton_key,
        wait_for=spec.wait_for,
        on_dependency_cancelled=spec.on_dependency_cancelled,
        on_dependency_failed=spec.on_dependency_failed,
        max_attempts=spec.max_attempts,
        idempotency_key=spec.idempotency_key,
        body_hash=spec.body_hash if spec.idempotency_key else None,
        submitted_at=now,
        submitted_by=spec.by,
        available_at=(spec.available_at or now) + timedelta(seconds=spec.delay_seconds),
        estimate=spec.estimate,
        billing=Billing.RESERVED if spec.estimate else Billing.NONE,
    )
    event = Event(
        job_id=job.id,
        verb=Verb.SUBMIT.value,
        at=now,
        actor=spec.by,
        state=state_of(job, now),
        changes=submitted_facts(job),
    )
    return Move(snapshot(job, now), event)


_GIVEN: Final = tuple(  # the facts a submit sets, besides the payload, with their defaults
    (field.name, field.default)
    for field in msgspec.structs.fields(Job)
    if field.name
    in {
        *("need", "owner", "priority", "singleton_key", "wait_for", "on_dependency_cancelled"),
        *("on_dependency_failed", "max_attempts", "submitted_at", "submitted_by", "available_at"),
        *("idempotency_key", "body_hash", "estimate", "billing"),
    }
)


def submitted_facts(job: Job) -> dict[str, Any]:
    """What a submit wrote down, leaving out defaults and the payload."""
    return {name: value for name, default in _GIVEN if (value := getattr(job, name)) != default}


def claim(job: Job, worker: str, lease_id: str, lease_seconds: float, now: datetime) -> Move:
    enter(Verb.CLAIM, job, now)
    changes: dict[str, Any] = {
        "attempt": job.attempt + 1,
        "claimed_at": now,
        "lease_id": lease_id,
        "lease_worker": worker,
        "lease_expires_at": now + timedelta(seconds=lease_seconds),
        "usage_before": job.usage_units,
        "progress": None,
        "progress_message": None,
    }
    if lease_lapsed(job, now):  # claimed straight from a holder that fell silent
        changes["failures"] = job.failures + 1
    return _move(Verb.CLAIM, job, now, worker, changes)


def extend(job: Job, report: Report, lease_seconds: float | None, now: datetime) -> Move:
    """Write down what the attempt reported and, unless `lease_seconds` is None, keep its lease. The lease
    of a job being cancelled is not extended; that the holder was told so is written down instead."""
    here = enter_held(Verb.EXTEND, job, report.lease.lease_id, now)
    changes = _reported(job, report, now)
    if here is Situation.ACTIVE and lease_seconds is not None:
        changes["lease_expires_at"] = now + timedelta(seconds=lease_seconds)
    elif here is Situation.CANCELLING and job.delivered_at is None:
        changes["delivered_at"] = now
    if changes.keys() <= UNTOLD:
        return Move(snapshot(msgspec.structs.replace(job, **changes), now), changes=changes)
    return _move(Verb.EXTEND, job, now, report.lease.worker, changes)


def _reported(job: Job, report: Report, now: datetime) -> dict[str, Any]:
    changes = _used(job, report.units, report.work_started, now)
    if report.progress is not None and report.progress != job.progress:
        changes["progress"] = report.progress
    if report.message is not None and report.message != job.progress_message:
        changes["progress_message"] = report.message
    return changes


def _used(job: Job, units: int, work_started: bool, now: datetime) -> dict[str, Any]:
    """Usage only grows: a report that arrives late or twice changes nothing."""
    changes: dict[str, Any] = {}
    if work_started and job.work_started_at is None:
        changes["work_started_at"] = now
    if job.usage_before + units > job.usage_units:
        changes["usage_units"] = job.usage_before + units
    return changes


def settle(job: Job, settlement: Settlement, now: datetime, policy: Policy = NO_POLICY) -> Move:
    """A worker's last word, whichever it is."""
    move = _settle(job, settlement, now, policy)
    return msgspec.structs.replace(move, still_running=True) if settlement.still_running else move


def _settle(job: Job, settlement: Settlement, now: datetime, policy: Policy) -> Move:
    worker, lease_id = settlement.lease.worker, settlement.lease.lease_id
    used = _used(job, settlement.units, settlement.work_started, now)
    match settlement:
        case Complete(output=output):
            enter_held(Verb.COMPLETE, job, lease_id, now)
            changes = {**used, "output": payload.decode(output), "last_error": None}
            return _finish(Verb.COMPLETE, job, Outcome.COMPLETED, now, worker, changes, policy)
        case Fail():
            return _fail(job, settlement, now, used, policy)
        case Reschedule(to=to):
            enter_held(Verb.RESCHEDULE, job, lease_id, now)
            return _reschedule(Verb.RESCHEDULE, job, to, now, worker, used)
        case Release(reason=reason):
            if enter_held(Verb.RELEASE, job, lease_id, now) is Situation.CANCELLING:
                return _stop(Verb.RELEASE, job, settlement, now, used, policy, reason)
            return _move(Verb.RELEASE, job, now, worker, {**used, **_NO_LEASE}, reason=reason)
        case Acknowledge(note=note):
            enter_held(Verb.ACKNOWLEDGE, job, lease_id, now)
            return _stop(Verb.ACKNOWLEDGE, job, settlement, now, used, policy, note)
        case _:
            raise TypeError(f"not a settlement: {settlement!r}")


def _fail(job: Job, fail: Fail, now: datetime, used: dict[str, Any], policy: Policy) -> Move:
    worker = fail.lease.worker
    if enter_held(Verb.FAIL, job, fail.lease.lease_id, now) is Situation.CANCELLING:
        return _stop(Verb.FAIL, job, fail, now, used, policy, fail.error)
    changes = {**used, "failures": job.failures + 1, "last_error": fail.error}
    if fail.retry_seconds is None or attempts_used_up(job):
        return _finish(Verb.FAIL, job, Outcome.FAILED, now, worker, changes, policy, reason=fail.error)
    changes |= {**_NO_LEASE, "available_at": now + timedelta(seconds=fail.retry_seconds)}
    return _move(Verb.FAIL, job, now, worker, changes, reason=fail.error)


def _reschedule(verb: Verb, job: Job, to: Target, now: datetime, actor: str, changes: dict[str, Any]) -> Move:
    changes |= {
        **_NO_LEASE,
        "need": to.need,
        "wait_for": to.wait_for,
        "singleton_key": to.singleton_key,
        "available_at": (to.available_at or now) + timedelta(seconds=to.delay_seconds),
        "failures": 0,  # a new step has all its attempts before it
    }
    return _move(verb, job, now, actor, changes)


def _finish(
    verb: Verb,
    job: Job,
    outcome: Outcome,
    now: datetime,
    actor: str,
    changes: dict[str, Any],
    policy: Policy,
    *,
    reason: str | None = None,
) -> Move:
    """Record the one outcome, settle the cost and go to the archive, all in this move."""
    changes = {
        **_NO_LEASE,
        "outcome": outcome,
        "finished_at": now,
        "archived_at": now,
        "wait_for": (),
        **changes,
    }
    charge = _end_reservation(job, outcome, changes, policy)
    return _move(verb, job, now, actor, changes, reason=reason, charge=charge)


def _end_reservation(job: Job, outcome: Outcome, changes: dict[str, Any], policy: Policy) -> Charge | None:
    """The charge that ends it, if the job holds one; `changes` gets what that means for the job."""
    charge = settle_cost(msgspec.structs.replace(job, **changes), outcome, policy)
    if charge:
        changes |= {"billing": charge.billing, "committed": charge.committed}
    return charge


def _stop(
    verb: Verb,
    job: Job,
    settlement: Settlement,
    now: datetime,
    used: dict[str, Any],
    policy: Policy,
    note: str | None,
) -> Move:
    """The end of a running job that was asked to stop, whichever way its worker put it."""
    seen = settlement.acknowledged_at
    changes = {
        **used,
        "last_error": job.cancel_reason,
        "delivered_at": min(
            filter(None, (job.delivered_at, seen)), default=now
        ),  # a hint may have been first
        "acknowledged_at": seen,
        "stopped_at": now,
        "rung": settlement.rung,
    }
    worker = settlement.lease.worker
    return _finish(verb, job, Outcome.CANCELLED, now, worker, changes, policy, reason=note)


# Cancelling


def cancel(job: Job, request: CancelRequest, now: datetime, policy: Policy = NO_POLICY) -> Move:
    """Stop a waiting job now, ask a running one to stop, or say that it is so already."""
    verb = Verb.FORCE_CANCEL if request.force else Verb.CANCEL
    here = enter(verb, job, now)
    if request.running_only and here in _WAITING:
        raise refusal(errors.CannotCancelError, verb, job, now)
    if here is Situation.CANCELLED or (here is Situation.CANCELLING and not request.force):
        return Move(snapshot(job, now))
    asked: dict[str, Any] = {}
    if here is not Situation.CANCELLING:  # the first requester is never overwritten
        asked = {
            "cancel_requested_at": now,
            "cancel_requested_by": request.by,
            "cancel_reason": request.reason,
        }
    terminal = here not in _RUNNING or request.force or job.billing is Billing.RESERVED
    if not terminal:
        return _move(verb, job, now, request.by, asked, reason=request.reason)
    return _cancel_now(verb, job, request, now, asked, policy)


def _cancel_now(
    verb: Verb, job: Job, request: CancelRequest, now: datetime, asked: dict[str, Any], policy: Policy
) -> Move:
    """The cancel is itself the end. The lease is fenced off; archival follows with the next sweep."""
    running = state_of(job, now) is State.ACTIVE
    changes = {
        **asked,
        **_NO_LEASE,
        "last_error": asked.get("cancel_reason", job.cancel_reason),
        "stopped_at": now,
        "rung": Rung.FORCED if running else Rung.PENDING,
    }
    charge = _end_reservation(job, Outcome.CANCELLED, changes, policy)
    move = _move(verb, job, now, request.by, changes, reason=request.reason, charge=charge)
    return msgspec.structs.replace(move, still_running=running)


# Without a lease


def complete_unheld(job: Job, actor: str, output: bytes, now: datetime, policy: Policy = NO_POLICY) -> Move:
    enter(Verb.COMPLETE_UNHELD, job, now)
    changes = {"output": payload.decode(output), "last_error": None}
    return _finish(Verb.COMPLETE_UNHELD, job, Outcome.COMPLETED, now, actor, changes, policy)


def reschedule_unheld(job: Job, actor: str, to: Target, now: datetime) -> Move:
    enter(Verb.RESCHEDULE_UNHELD, job, now)
    return _reschedule(Verb.RESCHEDULE_UNHELD, job, to, now, actor, {})


# What time and other jobs decide


def lapse(job: Job, now: datetime, policy: Policy = NO_POLICY) -> Move:
    """A lease ran out: back to the queue, unless it was asked to stop or this was its last attempt."""
    if not lease_lapsed(job, now):
        return Move(snapshot(job, now))
    error = f"lease of {job.lease_worker} ran out"
    if job.cancel_requested_at is not None:
        changes = {
            "last_error": job.cancel_reason,
            "stopped_at": job.lease_expires_at,
            "rung": Rung.LAPSED,
        }
        return _finish(Verb.LAPSE, job, Outcome.CANCELLED, now, SWEEP, changes, policy, reason=error)
    counted = {"failures": job.failures + 1, "last_error": error}
    if attempts_used_up(job):
        return _finish(Verb.LAPSE, job, Outcome.FAILED, now, SWEEP, counted, policy, reason=error)
    return _move(Verb.LAPSE, job, now, SWEEP, {**_NO_LEASE, **counted}, reason=error)


def time_out(job: Job, now: datetime, policy: Policy) -> Move:
    """A job that was free to start for too long and never did."""
    changes = {"last_error": TIMED_OUT}
    return _finish(Verb.TIME_OUT, job, Outcome.FAILED, now, SWEEP, changes, policy, reason=TIMED_OUT)


def archive(job: Job, now: datetime) -> Move:
    """A cancelled job goes to rest; its dependents are released by the engine in the same step."""
    changes = {
        "outcome": Outcome.CANCELLED,
        "finished_at": job.stopped_at or now,
        "archived_at": now,
        "wait_for": (),
    }
    return _move(Verb.ARCHIVE, job, now, SWEEP, changes)


def unblock(job: Job, dependency: str, outcome: Outcome, now: datetime, policy: Policy = NO_POLICY) -> Move:
    """A job this one waits for has ended: wait for one less, or be cancelled with it if it asked to be."""
    if job.outcome is not None or job.cancel_requested_at is not None:
        return Move(snapshot(job, now))
    if cancelled_by_dependency(job, outcome):
        end = "failed" if outcome is Outcome.FAILED else "was cancelled"
        reason = f"job {dependency}, which it waited for, {end}"
        request = CancelRequest(by=f"job:{dependency}", reason=reason)
        return cancel(job, request, now, policy)
    left = tuple(each for each in job.wait_for if each != dependency)
    changes: dict[str, Any] = {"wait_for": left}
    if not left:
        changes["unblocked_at"] = now
    return _move(Verb.UNBLOCK, job, now, f"job:{dependency}", changes)


def cancelled_by_dependency(job: Job | JobSpec, outcome: Outcome) -> bool:
    wish = {
        Outcome.CANCELLED: job.on_dependency_cancelled,
        Outcome.FAILED: job.on_dependency_failed,
    }.get(outcome, "release")
    return wish == "cancel"


def purge(job: Job, now: datetime) -> Move:
    """Past its retention: the payload goes, the audit record stays."""
    return _move(Verb.PURGE, job, now, SWEEP, {"input": None, "output": None, "purged_at": now})


def forget_key(job: Job, now: datetime) -> Move:
    """An idempotency key has served its time and may be used again."""
    changes = {"idempotency_key": None, "body_hash": None}
    return _move(Verb.FORGET_KEY, job, now, SWEEP, changes)
