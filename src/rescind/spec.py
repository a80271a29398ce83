"""A job to be: `spec()` checks everything that can be checked without the store, so engines need not."""

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import msgspec

from rescind import payload
from rescind.errors import InvalidInput, JobNotFoundError
from rescind.job import OnDependency

NEED_LIMIT_BYTES = 53  # it becomes the tail of a 63-byte NOTIFY channel
TEXT_LIMIT = 1_000  # reasons, names of actors, keys: what people write about a job
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be submitted, already checked; build it with `spec()`."""

    id: str
    need: str
    body: bytes
    by: str
    owner: str | None
    priority: int
    singleton_key: str | None
    wait_for: tuple[str, ...]
    on_dependency_cancelled: OnDependency
    on_dependency_failed: OnDependency
    available_at: datetime | None
    delay_seconds: float
    max_attempts: int | None
    idempotency_key: str | None
    estimate: int | None

    @property
    def body_hash(self) -> str:
        """What an idempotent replay must repeat: the work asked for, not the id it got."""
        return hashlib.sha256(self.need.encode() + b"\0" + self.body).hexdigest()


class SubmitOptions(TypedDict, total=False):
    """What may be said about a job besides its need and input; `spec()` holds the defaults."""

    id: Annotated[str | None, "its id; otherwise a new UUID"]
    by: Annotated[str | None, "in whose name it is submitted; otherwise the queue's `by`"]
    owner: Annotated[str | None, "for whom it is run"]
    priority: Annotated[int, "higher runs first"]
    singleton_key: Annotated[str | None, "at most one job with this key runs at a time"]
    wait_for: Annotated[Sequence[str], "ids of jobs that must end first"]
    on_dependency_cancelled: Annotated[OnDependency, "run anyway, or be cancelled with it"]
    on_dependency_failed: Annotated[OnDependency, "run anyway, or be cancelled for it"]
    available_at: Annotated[datetime | None, "not before this time"]
    delay_seconds: Annotated[float, "not before so long after that, or after now"]
    max_attempts: Annotated[int | None, "failures until it is given up; None: never"]
    idempotency_key: Annotated[str | None, "the same key and input again gives the same job, for 30 days"]
    estimate: Annotated[int | None, "tokens to set aside from the owner's account"]


def spec(
    need: str,
    input: Any = None,
    *,
    id: str,
    by: str,
    owner: str | None = None,
    priority: int = 0,
    singleton_key: str | None = None,
    wait_for: Sequence[str] = (),
    on_dependency_cancelled: OnDependency = "release",
    on_dependency_failed: OnDependency = "cancel",
    available_at: datetime | None = None,
    delay_seconds: float = 0,
    max_attempts: int | None = 3,
    idempotency_key: str | None = None,
    estimate: int | None = None,
    payload_limit_bytes: int = payload.DEFAULT_LIMIT_BYTES,
) -> JobSpec:
    """Check everything that can be checked without the store."""
    if estimate is not None and owner is None:
        raise InvalidInput("estimate needs an owner: whose tokens would it reserve?")
    return JobSpec(
        id=check_id(id),
        need=check_need(need),
        body=payload.encode(input, "input", payload_limit_bytes),
        by=check_text(by, "by"),
        owner=check_optional_text(owner, "owner"),
        priority=check_integer(priority, "priority", -(2**31), 2**31 - 1),
        singleton_key=check_optional_text(singleton_key, "singleton_key"),
        wait_for=check_wait_for(wait_for),
        on_dependency_cancelled=_check_choice(on_dependency_cancelled, "on_dependency_cancelled"),
        on_dependency_failed=_check_choice(on_dependency_failed, "on_dependency_failed"),
        available_at=(moment := check_moment(available_at, "available_at")),
        delay_seconds=check_delay(delay_seconds, moment),
        max_attempts=None
        if max_attempts is None
        else check_integer(max_attempts, "max_attempts", 1, 2**31 - 1),
        idempotency_key=check_optional_text(idempotency_key, "idempotency_key"),
        estimate=None if estimate is None else check_integer(estimate, "estimate", 1, 2**53),
    )


def check_id(value: str) -> str:
    """An id for a job to be."""
    if not _ID.fullmatch(_id_text(value)):
        raise InvalidInput(
            f"job id {_shorten(value)} is not usable: 1 to 128 letters, digits or . _ : @ -, "
            "starting with a letter or digit"
        )
    return value


def check_lookup_id(value: str) -> str:
    """An id to look for: a text that cannot be one names no job, and the store need not be asked."""
    if not _ID.fullmatch(_id_text(value)):
        raise JobNotFoundError(value)
    return value


def _id_text(value: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"job id {_shorten(value)} is not a str: pass str(id)")
    return value


def check_need(value: str) -> str:
    check_text(value, "need")
    if len(value.encode()) > NEED_LIMIT_BYTES:
        raise InvalidInput(f"need {value!r} is longer than {NEED_LIMIT_BYTES} bytes")
    return value


def check_text(value: str, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > TEXT_LIMIT:
        raise InvalidInput(f"{what} must be a text of 1 to {TEXT_LIMIT} characters, not {_shorten(value)}")
    if not value.isprintable():
        raise InvalidInput(f"{what} must not contain control characters: {_shorten(value)}")
    return value


def check_reason(value: str | None) -> str | None:
    """Reasons are prose: a long one is cut, not refused, so that no cancel fails for its words."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"reason must be a text, not {_shorten(value)}")
    return value.encode("utf-8", "replace").decode()[:TEXT_LIMIT]


def check_wait_for(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_id(each) for each in check_ids(ids, "wait_for")))


def check_ids(ids: Iterable[str], what: str) -> Iterable[str]:
    """Several of them, each still to be checked: the letters of one id are not meant."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InvalidInput(f"{what} must be a list of job ids, not {_shorten(ids)}")
    return ids


def check_moment(value: datetime | None, what: str) -> datetime | None:
    if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
        raise InvalidInput(f"{what} must be a datetime with a time zone, not {_shorten(value)}")
    try:
        return value.astimezone(UTC) if value else None
    except OverflowError:
        raise InvalidInput(f"{what} is beyond the calendar: {_shorten(value)}") from None


def check_delay(seconds: float, moment: datetime | None) -> float:
    """A delay, which is counted from `moment` if there is one and must not leave the calendar."""
    try:
        _ = (moment or datetime.min) + timedelta(seconds=check_seconds(seconds, "delay_seconds"))
    except OverflowError:
        raise InvalidInput(f"delay_seconds leads beyond the calendar: {_shorten(seconds)}") from None
    return seconds


def check_seconds(value: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10 * 365 * 86_400:
        raise InvalidInput(f"{what} must be a number of seconds from 0 to ten years, not {_shorten(value)}")
    return value


def check_timeout(seconds: float) -> float:
    """Any number will do, even one below 0: the caller's own time may be up already."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        raise InvalidInput(f"timeout must be a number of seconds or None, not {_shorten(seconds)}")
    return seconds


def check_integer(value: int, what: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{what} must be a whole number from {least} to {most}, not {_shorten(value)}")
    return value


def _check_choice(value: OnDependency, what: str) -> OnDependency:
    if value not in ("release", "cancel"):
        raise InvalidInput(f'{what} must be "release" or "cancel", not {_shorten(value)}')
    return value


def check_optional_text(value: str | None, what: str) -> str | None:
    return None if value is None else check_text(value, what)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
