"""The names of a job's states and statuses; `lifecycle.py` says which one holds and what may follow."""

from enum import StrEnum


class State(StrEnum):
    """What a job is, derived from its facts and the clock by `lifecycle.state_of`."""

    AWAITING_FUTURE = "AWAITING_FUTURE"  # its time has not come
    PENDING_JOBS = "PENDING_JOBS"  # waits for other jobs to end
    READY = "READY"  # may be claimed
    ACTIVE = "ACTIVE"  # a worker holds a live lease on it
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TaskStatus(StrEnum):
    """The coarse word for people and scripts: six values, lower case in JSON."""

    Pending = "pending"
    Running = "running"
    Completed = "completed"
    Failed = "failed"
    Cancelled = "cancelled"
    Archived = "archived"  # finished and past its retention: payload gone, the audit record stays


STATUS_OF: dict[State, TaskStatus] = {
    State.AWAITING_FUTURE: TaskStatus.Pending,
    State.PENDING_JOBS: TaskStatus.Pending,
    State.READY: TaskStatus.Pending,
    State.ACTIVE: TaskStatus.Running,
    State.COMPLETED: TaskStatus.Completed,
    State.FAILED: TaskStatus.Failed,
    State.CANCELLED: TaskStatus.Cancelled,
}

PENDING_STATES = frozenset(s for s, status in STATUS_OF.items() if status is TaskStatus.Pending)
FINAL_STATES = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
