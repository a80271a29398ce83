"""Every error rescind raises, in one tree.

    RescindError
    ├── InvalidInput (ValueError)      the caller's mistake; nothing was changed
    │   ├── InvalidSettings
    │   ├── PayloadTooLarge
    │   ├── UnknownDependency
    │   └── DependencyCycle
    ├── Refused                        the store said no; nothing was changed
    │   ├── JobNotFoundError
    │   ├── DuplicateJob
    │   ├── IdempotencyConflict
    │   ├── WrongState
    │   │   ├── CannotCancelError      finished otherwise; `.status` says how
    │   │   ├── JobCancelled           it is cancelled, so it cannot be rescheduled or completed
    │   │   ├── NotAvailable           leased, in the future or finished: not to be moved without a lease
    │   │   └── LeaseLost              the lease ended, was fenced off or never was
    │   ├── DocumentConflict           somebody else changed the document first
    │   └── InsufficientTokens
    └── Unavailable                    the store could not be used; trying again is safe
        ├── NoSuchStore
        ├── StoreClosed                the queue has been closed
        ├── StoreBusy
        ├── StoreFull
        ├── StoreReadOnly
        ├── StoreCorrupt
        ├── StoreTooNew
        └── StoreTooOld

A handler raises `RetryableError` or `PermanentError` to choose what happens to its job, and
`CancelledByRequest` (from `context.raise_if_cancelled()`) to stop for a cancel request.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rescind.state import State, TaskStatus


class RescindError(Exception):
    """The root: catch this for all of them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Words and attributes as they are: an `__init__` would make words of its arguments once more."""
        return _rebuild, (type(self), self.args), vars(self)


def _rebuild(kind: type[RescindError], args: tuple[Any, ...]) -> RescindError:
    return kind.__new__(kind, *args)


class InvalidInput(RescindError, ValueError):
    """The caller's mistake; nothing was changed."""


class InvalidSettings(InvalidInput):
    """A setting has no such name or a value out of bounds."""


class PayloadTooLarge(InvalidInput):
    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} is {size:,} bytes of JSON, the limit is {limit:,}: "
            "store it elsewhere and pass a reference, or raise payload_limit_bytes"
        )
        self.size, self.limit = size, limit


class UnknownDependency(InvalidInput):
    def __init__(self, ids: list[str]) -> None:
        super().__init__(f"wait_for references unknown jobs: {', '.join(ids)}")
        self.ids = ids


class DependencyCycle(InvalidInput):
    def __init__(self, ids: list[str]) -> None:
        super().__init__(f"wait_for would make these jobs wait for each other: {' -> '.join(ids)}")
        self.ids = ids


class Refused(RescindError):
    """The store said no, for a reason in the class's name; nothing was changed."""


class JobNotFoundError(Refused):
    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} does not exist")
        self.job_id = job_id


class DuplicateJob(Refused):
    def __init__(self, job_id: str) -> None:
        super().__init__(f"job_id {job_id} has been used already; ids are never reused")
        self.job_id = job_id


class IdempotencyConflict(Refused):
    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(
            f"idempotency key {key!r} already belongs to job {job_id}, submitted with another body: "
            "send the same body again or use a new key"
        )
        self.key, self.job_id = key, job_id


class WrongState(Refused):
    """The table of moves does not allow this verb from the state the job is in."""

    def __init__(self, job_id: str, verb: str, state: "State", status: "TaskStatus") -> None:
        super().__init__(self._say(job_id, verb, state, status))
        self.job_id, self.verb, self.state, self.status = job_id, verb, state, status

    def _say(self, job_id: str, verb: str, state: "State", status: "TaskStatus") -> str:
        return f"cannot {verb.replace('_', ' ')} job {job_id}: it is {state}"


class CannotCancelError(WrongState):
    def _say(self, job_id: str, verb: str, state: "State", status: "TaskStatus") -> str:
        return f"cannot cancel job {job_id}: it is {status}"


class JobCancelled(WrongState):
    def _say(self, job_id: str, verb: str, state: "State", status: "TaskStatus") -> str:
        done = verb.removesuffix("_unheld").removesuffix("e") + "ed"
        return f"job {job_id} is cancelled and cannot be {done}"


class NotAvailable(WrongState):
    def _say(self, job_id: str, verb: str, state: "State", status: "TaskStatus") -> str:
        plain = verb.removesuffix("_unheld")
        return f"job {job_id} is not available to {plain} without a lease: it is {state}"


class LeaseLost(WrongState):
    def _say(self, job_id: str, verb: str, state: "State", status: "TaskStatus") -> str:
        return f"job {job_id} is no longer held under this lease (it is {state}): {verb} was refused"


class DocumentConflict(Refused):
    def __init__(self, name: str, revision: int) -> None:
        super().__init__(f"document {name!r} is not at revision {revision} any more: read it and try again")
        self.name, self.revision = name, revision


class InsufficientTokens(Refused):
    def __init__(self, required: int, available: int) -> None:
        super().__init__(f"Not enough tokens to reserve: required={required}, available={available}")
        self.required, self.available = required, available


class Unavailable(RescindError):
    """The store could not be used. Nothing half done remains, and trying again is safe."""


class NoSuchStore(Unavailable):
    """There is nothing at this URL, and making it was not allowed."""


class StoreClosed(Unavailable):
    """The queue has been closed."""


class StoreBusy(Unavailable):
    """Others held the store for longer than we wait."""


class StoreFull(Unavailable):
    """No room left on the disk."""


class StoreReadOnly(Unavailable):
    """The file or its directory cannot be written."""


class StoreCorrupt(Unavailable):
    """The file is not a rescind database, or is damaged."""


class StoreTooNew(Unavailable):
    """The store was written by a newer version of rescind."""


class StoreTooOld(Unavailable):
    """The store was made by an older version of rescind and has to be upgraded first."""


class RetryableError(Exception):
    """Raised by a handler: try again later, after `delay` seconds if given."""

    def __init__(self, message: str = "", *, delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class PermanentError(Exception):
    """Raised by a handler: trying again would not help."""


class CancelledByRequest(Exception):
    """Raised by `context.raise_if_cancelled()`: somebody asked for this job to stop."""
