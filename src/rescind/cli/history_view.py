"""A job's history as lines: `Version 2: cancelled (cancelled_by: user:alice, reason: "No longer needed")`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from rich.text import Text

from rescind.cli.render import absolute, plain, status_colour
from rescind.job import Event
from rescind.lease import Rung
from rescind.lifecycle import Verb
from rescind.state import STATUS_OF, State

_WORDS = {  # how a verb reads after it happened
    Verb.SUBMIT: "created",
    Verb.CLAIM: "claimed",
    Verb.EXTEND: "heartbeat",
    Verb.COMPLETE: "completed",
    Verb.FAIL: "failed",
    Verb.RESCHEDULE: "rescheduled",
    Verb.RELEASE: "released",
    Verb.COMPLETE_UNHELD: "completed without a lease",
    Verb.RESCHEDULE_UNHELD: "rescheduled without a lease",
    Verb.UNBLOCK: "unblocked",
    Verb.LAPSE: "lease ran out",
    Verb.TIME_OUT: "timed out",
    Verb.ARCHIVE: "archived",
    Verb.PURGE: "purged",
}
_TOLD = ("attempt", "progress", "progress_message", "need", "wait_for", "available_at", "rung")
_SECRET = frozenset({"lease_id", "body_hash"})


def event_dict(version: int, event: Event) -> dict[str, Any]:
    """The event for the outside world: plain JSON values, no lease id."""
    facts: dict[str, Any] = {
        "version": version,
        "status": STATUS_OF[event.state].value,
        **msgspec.to_builtins(event),
    }
    facts["changes"] = {name: value for name, value in facts["changes"].items() if name not in _SECRET}
    return facts


def lines(events: Iterable[tuple[int, Event]]) -> Iterator[Text]:
    """Each line says who cancelled once that is known, as every later one is about it."""
    request: dict[str, str] = {}
    for version, event in events:
        if by := event.changes.get("cancel_requested_by"):
            request = {"by": by, "reason": event.changes.get("cancel_reason") or ""}
        yield _line(version, event, request)


def _line(version: int, event: Event, request: Mapping[str, str]) -> Text:
    status = STATUS_OF[event.state]
    details = ", ".join(_details(event, request))
    return Text.assemble(
        (f"Version {version}: ", "dim"),
        (status.value, status_colour(status)),
        f" ({details})" if details else "",
        (f"  {absolute(event.at)}  {plain(event.actor)}", "dim"),
    )


def _details(event: Event, request: Mapping[str, str]) -> Iterator[str]:
    if _is_about_cancel(event):
        yield from _cancel_details(event, request)
        return
    if "delivered_at" in event.changes:
        yield "cancel request delivered"
    elif (word := _WORDS.get(Verb(event.verb), event.verb)) != STATUS_OF[event.state].value:
        yield word
    if event.verb != Verb.SUBMIT:
        yield from (f"{name}: {_value(event.changes[name])}" for name in _TOLD if event.changes.get(name))
    if event.reason:
        yield f"reason: {_quoted(event.reason)}"


def _is_about_cancel(event: Event) -> bool:
    """The request itself, and the move that ended the job because of it."""
    ended = event.state is State.CANCELLED and "rung" in event.changes
    return ended or "cancel_requested_by" in event.changes


def _cancel_details(event: Event, request: Mapping[str, str]) -> Iterator[str]:
    role = "cancelled_by" if event.state is State.CANCELLED else "cancel_requested_by"
    yield f"{role}: {plain(request.get('by', event.actor))}"
    if request.get("reason"):
        yield f"reason: {_quoted(request['reason'])}"
    rung = event.changes.get("rung")
    if rung and rung != Rung.PENDING:
        yield f"rung: {rung}"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(plain(str(each)) for each in value)
    return f"{value:.0%}" if isinstance(value, float) else plain(str(value))


def _quoted(text: str) -> str:
    return f'"{plain(text)}"'
