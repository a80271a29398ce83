"""Job to row and back. Columns carry the names of Job's fields; `STATE_SQL` is `state_of` for queries."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import Any, Final, get_args, get_type_hints

import msgspec

from rescind.job import Event, Job
from rescind.lifecycle import snapshot
from rescind.state import State

COLUMNS: Final = tuple(field.name for field in msgspec.structs.fields(Job) if field.name != "state")
SELECTED: Final = ", ".join(COLUMNS)

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.decode

STATE_SQL: Final = f"""
    CASE
        WHEN outcome IS NOT NULL THEN outcome
        WHEN lease_expires_at > :now THEN '{State.ACTIVE}'
        WHEN cancel_requested_at IS NOT NULL THEN '{State.CANCELLED}'
        WHEN available_at > :now THEN '{State.AWAITING_FUTURE}'
        WHEN wait_for != '[]' THEN '{State.PENDING_JOBS}'
        WHEN lease_expires_at <= :now AND failures + 1 >= max_attempts THEN '{State.FAILED}'
        ELSE '{State.READY}'
    END"""


@lru_cache(maxsize=256)  # a transaction writes the same moment many times
def moment(value: datetime) -> str:
    """UTC, always in the same width, so that texts sort as times do."""
    return value.astimezone(UTC).isoformat(timespec="microseconds")


def state_in(states: Iterable[State]) -> str:
    """A condition on the state a row's facts mean; it needs the parameter `:now`."""
    names = ", ".join(f"'{state}'" for state in sorted(states))
    return f"{STATE_SQL} IN ({names})"


def to_json(value: Any) -> str:
    return _to_json(value).decode()


def _tuple(text: str) -> tuple[str, ...]:
    return tuple(_from_json(text)) if text != "[]" else ()


def _decoder(name: str, hint: Any) -> Callable[[Any], Any] | None:
    if name in ("input", "output"):
        return _from_json
    if name == "wait_for":
        return _tuple
    for option in (hint, *get_args(hint)):
        if option is datetime:
            return datetime.fromisoformat
        if isinstance(option, type) and issubclass(option, Enum):
            return option
    return None


_HINTS = get_type_hints(Job)
_DECODERS: Final = tuple((name, _decoder(name, _HINTS[name])) for name in COLUMNS)


def job_from_row(row: Sequence[Any], now: datetime) -> Job:
    """The job in a row of `SELECTED` columns, as of now."""
    facts = {
        name: decode(value) if decode else value
        for (name, decode), value in zip(_DECODERS, row, strict=True)
        if value is not None
    }
    return snapshot(Job(**facts), now)


def to_column(name: str, value: Any) -> Any:
    if value is None:
        return "null" if name in ("input", "output") else None
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, Enum):
        return value.value
    if name in ("input", "output", "wait_for"):
        return to_json(value)
    return value


def row_from_changes(changes: Mapping[str, Any]) -> list[Any]:
    return [to_column(name, value) for name, value in changes.items()]


EVENT_SELECTED: Final = "e.seq, j.id, e.verb, e.at, e.actor, e.state, e.reason, e.changes"


def event_from_row(row: Sequence[Any]) -> Event:
    seq, job_id, verb, at, actor, state, reason, changes = row
    return Event(
        seq=seq,
        job_id=job_id,
        verb=verb,
        at=datetime.fromisoformat(at),
        actor=actor,
        state=State(state),
        reason=reason,
        changes=_from_json(changes),
    )
