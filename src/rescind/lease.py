"""What a worker holds and says: the lease a claim hands out, reports under it, and its last word."""

from datetime import datetime
from enum import StrEnum

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """A worker's claim on a job until `expires_at`. `token` grows with each claim of that job, so an
    outside system can refuse a writer whose token is older than one it has seen."""

    job_id: str
    lease_id: str
    worker: str
    token: int
    expires_at: datetime


class Rung(StrEnum):
    """What it took to stop a cancelled job."""

    PENDING = "pending"  # it was not running
    FLAG = "flag"  # the handler saw the request and stopped by itself
    RAISED = "raised"  # an exception was raised inside the handler
    FORCED = "forced"  # it was declared cancelled, whatever its worker says
    ABANDONED = "abandoned"  # it would not stop; its lease was taken away and its slot closed
    LAPSED = "lapsed"  # its worker fell silent and the lease ran out


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a heartbeat carries for one lease. `units` counts from the start of this attempt, so that a
    report sent twice counts once."""

    lease: Lease
    progress: float | None = None
    message: str | None = None
    units: int = 0
    work_started: bool = False


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's last word on a lease; one of the five below. `rung` and `acknowledged_at` count when the job
    was being cancelled; `still_running` says that the handler was given up and has not ended."""

    lease: Lease
    units: int = 0
    work_started: bool = False
    rung: Rung = Rung.FLAG
    acknowledged_at: datetime | None = None
    still_running: bool = False


class Complete(Settlement, frozen=True, kw_only=True):
    output: bytes  # JSON


class Fail(Settlement, frozen=True, kw_only=True):
    """`retry_seconds` None: trying again would not help."""

    error: str
    retry_seconds: float | None = 0.0


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The facts a rescheduled job gets; `available_at` None means now, and the delay is added to it."""

    need: str
    wait_for: tuple[str, ...] = ()
    singleton_key: str | None = None
    available_at: datetime | None = None
    delay_seconds: float = 0


class Reschedule(Settlement, frozen=True, kw_only=True):
    to: Target


class Release(Settlement, frozen=True, kw_only=True):
    """Give the job back untouched, as at shutdown: no failure is counted."""

    reason: str | None = None


class Acknowledge(Settlement, frozen=True, kw_only=True):
    """The handler stopped because it was asked to."""

    note: str | None = None
