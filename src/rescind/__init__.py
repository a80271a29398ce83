"""rescind: durable jobs you can take back."""

from rescind.connection import connect
from rescind.errors import (
    CancelledByRequest,
    CannotCancelError,
    DuplicateJob,
    IdempotencyConflict,
    InvalidInput,
    JobNotFoundError,
    LeaseLost,
    PermanentError,
    Refused,
    RescindError,
    RetryableError,
    Unavailable,
)
from rescind.job import CancelAnswer, CancelResult, Event, Job, Receipt
from rescind.queue import Queue
from rescind.settings import Settings
from rescind.state import State, TaskStatus
from rescind.worker import Context, Reschedule, Retry, Worker

__all__ = [
    "CancelAnswer",
    "CancelResult",
    "CancelledByRequest",
    "CannotCancelError",
    "Context",
    "DuplicateJob",
    "Event",
    "IdempotencyConflict",
    "InvalidInput",
    "Job",
    "JobNotFoundError",
    "LeaseLost",
    "PermanentError",
    "Queue",
    "Receipt",
    "Refused",
    "Reschedule",
    "RescindError",
    "Retry",
    "RetryableError",
    "Settings",
    "State",
    "TaskStatus",
    "Unavailable",
    "Worker",
    "connect",
]
