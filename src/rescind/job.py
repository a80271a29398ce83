"""A job, its parts and its history: frozen values. No rules, no I/O, no clock."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from rescind.errors import RescindError
from rescind.lease import Lease, Rung
from rescind.state import STATUS_OF, State, TaskStatus

OnDependency = Literal["release", "cancel"]


class Outcome(StrEnum):
    """How a job ended; recorded once and never changed."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Billing(StrEnum):
    NONE = "NONE"
    RESERVED = "RESERVED"
    COMMITTED = "COMMITTED"
    RELEASED = "RELEASED"


class CancelRequest(msgspec.Struct, frozen=True):
    """Who wants a job stopped, why, and how hard. `force` makes the cancel itself the end of the job."""

    by: str
    reason: str | None = None
    force: bool = False
    running_only: bool = False


class Receipt(msgspec.Struct, frozen=True):
    """The record of one cancel: when it was asked, reached the worker, was seen, and took effect."""

    requested_at: datetime
    by: str
    reason: str | None
    delivered_at: datetime | None
    acknowledged_at: datetime | None
    stopped_at: datetime | None
    rung: Rung | None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it stood at one instant: its stored facts, and the `state` they meant at that instant."""

    id: str
    need: str
    input: Any = None
    owner: str | None = None
    priority: int = 0
    singleton_key: str | None = None
    wait_for: tuple[str, ...] = ()
    on_dependency_cancelled: OnDependency = "release"
    on_dependency_failed: OnDependency = "cancel"
    max_attempts: int | None = None
    idempotency_key: str | None = None
    body_hash: str | None = None

    submitted_at: datetime
    submitted_by: str
    available_at: datetime
    unblocked_at: datetime | None = None  # when the last job it waited for ended

    attempt: int = 0  # claims so far
    failures: int = 0  # what the retry limit counts
    claimed_at: datetime | None = None
    lease_id: str | None = None
    lease_worker: str | None = None
    lease_expires_at: datetime | None = None

    progress: float | None = None
    progress_message: str | None = None
    usage_before: int = 0  # units used by earlier attempts
    usage_units: int = 0
    work_started_at: datetime | None = None

    cancel_requested_at: datetime | None = None
    cancel_requested_by: str | None = None
    cancel_reason: str | None = None
    delivered_at: datetime | None = None
    acknowledged_at: datetime | None = None
    stopped_at: datetime | None = None
    rung: Rung | None = None

    estimate: int | None = None  # tokens reserved at submit; None: not metered
    billing: Billing = Billing.NONE
    committed: int = 0

    outcome: Outcome | None = None
    finished_at: datetime | None = None
    output: Any = None
    last_error: str | None = None
    archived_at: datetime | None = None
    purged_at: datetime | None = None

    state: State = State.READY  # derived, never stored

    @property
    def status(self) -> TaskStatus:
        return TaskStatus.Archived if self.purged_at else STATUS_OF[self.state]

    @property
    def cancelling(self) -> bool:
        """It runs, and has been asked to stop."""
        return self.state is State.ACTIVE and self.cancel_requested_at is not None

    @property
    def cancel_requested(self) -> bool:
        return self.cancelling

    @property
    def cancelled_at(self) -> datetime | None:
        if self.state is not State.CANCELLED:
            return None
        return self.stopped_at or self.lease_expires_at

    @property
    def cancelled_by(self) -> str | None:
        return self.cancel_requested_by if self.state is State.CANCELLED else None

    @property
    def lease(self) -> Lease:
        """The lease a claim handed out; only a job fresh from `claim` is sure to have one."""
        assert self.lease_id and self.lease_worker and self.lease_expires_at, f"job {self.id} is not leased"
        return Lease(self.id, self.lease_id, self.lease_worker, self.attempt, self.lease_expires_at)

    @property
    def receipt(self) -> Receipt | None:
        if self.cancel_requested_at is None:
            return None
        return Receipt(
            requested_at=self.cancel_requested_at,
            by=self.cancel_requested_by or "",
            reason=self.cancel_reason,
            delivered_at=self.delivered_at,
            acknowledged_at=self.acknowledged_at,
            stopped_at=self.stopped_at,
            rung=self.rung,
        )

    def as_dict(self) -> dict[str, Any]:
        """The job for the outside world: plain JSON values, no lease id."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        for private in ("lease_id", "body_hash", "usage_before"):
            del facts[private]
        facts["status"] = self.status.value
        facts["cancel_requested"] = self.cancel_requested
        facts["cancelled_at"] = msgspec.to_builtins(self.cancelled_at)
        facts["cancelled_by"] = self.cancelled_by
        facts["receipt"] = msgspec.to_builtins(self.receipt)
        return facts


class CancelAnswer(Job, frozen=True, kw_only=True):
    """What `cancel` says: the job as it now is, and whether it was this call that changed it."""

    changed: bool


class CancelOutcome(StrEnum):
    """How one cancel ended; the label of `rescind_cancel_requests_total`."""

    SUCCESS = "success"
    ALREADY_CANCELLED = "already_cancelled"
    NOT_FOUND = "not_found"
    INVALID_STATUS = "invalid_status"


class CancelResult(msgspec.Struct, frozen=True):
    """One answer of a bulk cancel. `error` is what `cancel(id)` would have raised."""

    id: str
    outcome: CancelOutcome
    changed: bool
    job: Job | None
    error: RescindError | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "outcome": self.outcome.value,
            "changed": self.changed,
            "error": str(self.error) if self.error else None,
            "job": self.job.as_dict() if self.job else None,
        }


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a job's history. `changes` holds the facts it changed: folding them gives the record."""

    job_id: str
    verb: str
    at: datetime
    actor: str
    state: State
    reason: str | None = None
    changes: dict[str, Any] = {}
    seq: int = 0  # its place in the order of the whole store, given when written
    partial: bool = False  # told from the job's facts alone, since nobody wrote it down at the time
