"""What the functions answer, as values: rows of `pgwf.answer` to jobs, and values to the JSON they take."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, get_args, get_type_hints

import msgspec

from rescind import payload
from rescind.job import Job
from rescind.lease import Acknowledge, Complete, Fail, Release, Report, Reschedule, Settlement
from rescind.spec import JobSpec
from rescind.state import State

COLUMN_OF: Final = {"id": "job_id", "need": "next_need", "input": "payload", "submitted_at": "created_at"}
"""Facts whose column has another name than the field of Job."""

_HINTS: Final = get_type_hints(Job)
_encode = msgspec.json.Encoder().encode


def _decoder(name: str) -> Callable[[Any], Any] | None:
    if name in ("input", "output"):
        return payload.decode
    if name == "wait_for":
        return tuple
    for option in (_HINTS[name], *get_args(_HINTS[name])):
        if isinstance(option, type) and issubclass(option, Enum):
            return {member.value: member for member in option}.__getitem__
    return None


_FIELDS: Final = tuple(
    (name, COLUMN_OF.get(name, name), _decoder(name))
    for name in (field.name for field in msgspec.structs.fields(Job))
)

PLAIN_COLUMNS: Final = ", ".join(
    f"{column}::text" if decode is payload.decode else column for _, column, decode in _FIELDS
)
"""The same columns without JSON, which connections that are not ours may decode as they like."""


def job_from_row(row: Any) -> Job:
    """The job in a row that has the columns of `pgwf.answer`."""
    return Job(
        **{
            name: decode(value) if decode else value
            for name, column, decode in _FIELDS
            if (value := row[column]) is not None
        }
    )


class _Spec(msgspec.Struct, omit_defaults=True):
    """As `pgwf.job_spec`; what is left out has its default there."""

    id: str
    need: str
    submitted_by: str
    input: msgspec.Raw | None = None
    input_text: str | None = None
    owner: str | None = None
    priority: int = 0
    singleton_key: str | None = None
    wait_for: tuple[str, ...] | None = None
    on_dependency_cancelled: str = "release"
    on_dependency_failed: str = "release"
    available_at: datetime | None = None
    delay_seconds: float = 0
    max_attempts: int | None = None
    idempotency_key: str | None = None
    body_hash: str | None = None
    estimate: int | None = None


def specs_to_json(specs: Iterable[JobSpec]) -> str:
    return _encode(
        [
            _Spec(
                id=spec.id,
                need=spec.need,
                submitted_by=spec.by,
                **_json("input", spec.body),
                owner=spec.owner,
                priority=spec.priority,
                singleton_key=spec.singleton_key,
                wait_for=spec.wait_for or None,
                on_dependency_cancelled=spec.on_dependency_cancelled,
                on_dependency_failed=spec.on_dependency_failed,
                available_at=spec.available_at,
                delay_seconds=spec.delay_seconds,
                max_attempts=spec.max_attempts,
                idempotency_key=spec.idempotency_key,
                body_hash=spec.body_hash if spec.idempotency_key else None,
                estimate=spec.estimate,
            )
            for spec in specs
        ]
    ).decode()


def settlements_to_json(settlements: Sequence[Settlement]) -> str:
    return _encode([_settlement(settlement) for settlement in settlements]).decode()


def _settlement(settlement: Settlement) -> dict[str, Any]:
    lease = settlement.lease
    said: dict[str, Any] = {"job_id": lease.job_id, "lease_id": lease.lease_id, "worker": lease.worker}
    if settlement.units:
        said["units"] = settlement.units
    if settlement.work_started:
        said["work_started"] = True
    if settlement.still_running:
        said["still_running"] = True
    match settlement:
        case Complete(output=output):
            return {**said, "kind": "complete", **_json("output", output)}
        case Reschedule(to=to):
            return {**said, "kind": "reschedule", **msgspec.structs.asdict(to)}
        case Fail(error=error, retry_seconds=retry_seconds):
            said |= {"kind": "fail", "error": _storable(error), "retry_seconds": retry_seconds}
        case Release(reason=reason):
            said |= {"kind": "release", "reason": _storable(reason)}
        case Acknowledge(note=note):
            said |= {"kind": "acknowledge", "reason": _storable(note)}
        case _:
            raise TypeError(f"not a settlement: {settlement!r}")
    return {**said, "rung": settlement.rung.value, "acknowledged_at": settlement.acknowledged_at}


def reports_to_json(reports: Sequence[Report]) -> str:
    return _encode(
        [
            {
                "job_id": report.lease.job_id,
                "lease_id": report.lease.lease_id,
                "worker": report.lease.worker,
                "progress": report.progress,
                "message": _storable(report.message),
                "units": report.units,
                "work_started": report.work_started,
            }
            for report in reports
        ]
    ).decode()


def to_json(value: Any) -> str:
    return _encode(value).decode()


def _json(name: str, body: bytes) -> dict[str, Any]:
    """A JSON value inside JSON; as a text when it holds what PostgreSQL stores but cannot take apart."""
    if b"\\u0000" in body:
        return {f"{name}_text": body.decode()}
    return {name: msgspec.Raw(body)}


def _storable(text: str | None) -> str | None:
    """PostgreSQL has no NUL in texts; what a handler said must not keep its job from being settled."""
    return text.replace("\x00", "\ufffd") if text and "\x00" in text else text


def states_to_array(states: Iterable[State]) -> list[str] | None:
    return sorted(state.value for state in states) or None
