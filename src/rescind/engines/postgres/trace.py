"""Lines of `pgwf.jobs_trace` as events. A line holds what its kind does not imply; that is said here."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from rescind.engines.postgres.rows import COLUMN_OF
from rescind.job import Event
from rescind.lifecycle import Verb
from rescind.state import State

_VERBS: Final = {
    "job_submitted": Verb.SUBMIT,
    "job_retrieved": Verb.CLAIM,
    "lease_extended": Verb.EXTEND,
    "job_finished": Verb.COMPLETE,
    "job_failed": Verb.FAIL,
    "reschedule_job": Verb.RESCHEDULE,
    "job_released": Verb.RELEASE,
    "cancel_acknowledged": Verb.ACKNOWLEDGE,
    "job_cancel_requested": Verb.CANCEL,
    "job_unblocked": Verb.UNBLOCK,
    "lease_lapsed": Verb.LAPSE,
    "job_timed_out": Verb.TIME_OUT,
    "job_cancel_archived": Verb.ARCHIVE,
    "job_purged": Verb.PURGE,
    "key_forgotten": Verb.FORGET_KEY,
}
_FIELD_OF: Final = {column: name for name, column in COLUMN_OF.items()}
_NO_LEASE: Final[dict[str, Any]] = {"lease_id": None, "lease_worker": None, "lease_expires_at": None}
_GIVES_BACK: Final = frozenset({Verb.FAIL, Verb.RELEASE, Verb.LAPSE, Verb.RESCHEDULE, Verb.RESCHEDULE_UNHELD})


def events_from_rows(rows: Any) -> Iterator[Event]:
    """The moves among them: a sweep's summary is no move, nor is a cancel of what was cancelled already."""
    for row in rows:
        asked = msgspec.json.decode(row["input_data"])
        if row["event_type"] in _VERBS and not asked.get("already_cancelled"):
            yield _event(row, _verb(row["event_type"], asked))


def _verb(event_type: str, asked: dict[str, Any]) -> Verb:
    verb = _VERBS[event_type]
    if verb is Verb.COMPLETE and asked.get("completed_without_lease"):
        return Verb.COMPLETE_UNHELD
    if verb is Verb.RESCHEDULE and "lease_id" not in asked:
        return Verb.RESCHEDULE_UNHELD
    if verb is Verb.CANCEL and asked.get("force"):
        return Verb.FORCE_CANCEL
    return verb


def _event(row: Any, verb: Verb) -> Event:
    told = {
        _FIELD_OF.get(name, name): value
        for name, value in msgspec.json.decode(row["output_data"] or "{}").items()
    }
    return Event(
        seq=row["trace_id"],
        job_id=row["job_id"],
        verb=verb.value,
        at=row["event_at"],
        actor=row["worker_id"] or "unknown",
        state=State(row["state"] or State.READY),
        reason=row["reason"],
        changes={**_implied(verb, row, told), **told},
        partial=row.get("partial", False),
    )


def _implied(verb: Verb, row: Any, told: dict[str, Any]) -> dict[str, Any]:
    at = row["event_at"]
    if "outcome" in told:
        return {**_NO_LEASE, "wait_for": (), "finished_at": at, "archived_at": at, "last_error": None}
    if verb is Verb.SUBMIT:
        return {"submitted_at": at, "submitted_by": row["worker_id"]}
    if verb is Verb.CLAIM:
        return {"claimed_at": at, "lease_worker": row["worker_id"]}
    if verb in _GIVES_BACK or (row["state"] == State.CANCELLED and "stopped_at" in told):
        return _NO_LEASE
    return {}
