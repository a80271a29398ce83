"""The invariants themselves: a lawful history passes, and its checker notices each kind of tampering."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from rescind import moves
from rescind.job import Billing, CancelOutcome, CancelRequest, CancelResult, Event, Job, Outcome
from rescind.lease import Acknowledge, Complete, Fail, Rung
from rescind.policy import Account
from rescind.spec import spec
from rescind.state import State
from rescind.testing.invariants import Run, check_all

START = datetime(2026, 1, 1, tzinfo=UTC)


def _life(
    id: str, *, wait_for: tuple[str, ...] = (), outcome: Outcome = Outcome.COMPLETED
) -> list[moves.Move]:
    """Submitted, failed once, claimed again and ended."""
    told = [moves.submit(spec("work", id=id, by="ann", singleton_key="key", wait_for=wait_for), START)]
    for dependency in wait_for:
        told.append(moves.unblock(told[-1].job, dependency, Outcome.COMPLETED, START))
    told.append(moves.claim(told[-1].job, "w", f"{id}-lease-1", 60, START))
    told.append(moves.settle(told[-1].job, Fail(lease=told[-1].job.lease, error="broke"), START))
    told.append(moves.claim(told[-1].job, "w", f"{id}-lease-2", 60, START))
    lease = told[-1].job.lease
    if outcome is Outcome.CANCELLED:
        told.append(moves.cancel(told[-1].job, CancelRequest(by="ann", reason="typo"), START))
        told.append(moves.settle(told[-1].job, Acknowledge(lease=lease, rung=Rung.FLAG), START))
    else:
        told.append(moves.settle(told[-1].job, Complete(lease=lease, output=b"1"), START))
    return told


def _run(*lives: list[moves.Move], **more: Any) -> Run:
    events = [move.event for life in lives for move in life if move.event is not None]
    numbered = [msgspec.structs.replace(event, seq=number) for number, event in enumerate(events, 1)]
    return Run(events=numbered, jobs=[life[-1].job for life in lives], **more)


LAWFUL = _run(_life("one"), _life("two", wait_for=("one",)), _life("three", outcome=Outcome.CANCELLED))


def test_a_lawful_history_passes() -> None:
    assert check_all(LAWFUL) == []


def _without(job_id: str) -> Run:
    return msgspec.structs.replace(LAWFUL, jobs=[job for job in LAWFUL.jobs if job.id != job_id])


def _edit(job_id: str, verb: str, nth: int = 0, **changes: Any) -> Run:
    """The run with one event changed: `changes` are facts it wrote, or its actor, time or state."""
    places = [
        place for place, event in enumerate(LAWFUL.events) if (event.job_id, event.verb) == (job_id, verb)
    ]
    events = list(LAWFUL.events)
    events[places[nth]] = _changed(events[places[nth]], changes)
    return msgspec.structs.replace(LAWFUL, events=events)


def _changed(event: Event, changes: dict[str, Any]) -> Event:
    own = {name: value for name, value in changes.items() if name in ("actor", "at", "state", "verb", "seq")}
    facts = {name: value for name, value in changes.items() if name not in own}
    return msgspec.structs.replace(event, changes={**event.changes, **facts}, **own)


def _moved(job_id: str, verb: str, to: int) -> Run:
    """The run with one event at another place."""
    events = list(LAWFUL.events)
    place = next(n for n, event in enumerate(events) if (event.job_id, event.verb) == (job_id, verb))
    events.insert(to, events.pop(place))
    return _renumbered(events)


def _renumbered(events: list[Event]) -> Run:
    numbered = [msgspec.structs.replace(event, seq=number) for number, event in enumerate(events, 1)]
    return msgspec.structs.replace(LAWFUL, events=numbered)


def _again(job_id: str, verb: str) -> Run:
    """The run with one event told a second time, at the end."""
    events = list(LAWFUL.events)
    events.append(next(event for event in events if (event.job_id, event.verb) == (job_id, verb)))
    return _renumbered(events)


def _stored(job_id: str, **facts: Any) -> Run:
    """The run with a record that differs from its history."""
    jobs = [msgspec.structs.replace(job, **facts) if job.id == job_id else job for job in LAWFUL.jobs]
    return msgspec.structs.replace(LAWFUL, jobs=jobs)


def _answered(changed: bool, job: Job | None, error: Exception | None = None) -> Run:
    answer = CancelResult("three", CancelOutcome.SUCCESS, changed, job, error)  # type: ignore[arg-type]
    return msgspec.structs.replace(LAWFUL, answers=[answer])


THREE = next(job for job in LAWFUL.jobs if job.id == "three")
LATER = START + timedelta(hours=1)


@pytest.mark.parametrize(
    ("checker", "tamper"),
    [
        ("no_loss_no_ghost", lambda: _without("one")),
        ("no_loss_no_ghost", lambda: msgspec.structs.replace(LAWFUL, acknowledged=frozenset({"lost"}))),
        ("no_loss_no_ghost", lambda: msgspec.structs.replace(LAWFUL, jobs=[*LAWFUL.jobs, LAWFUL.jobs[0]])),
        ("no_loss_no_ghost", lambda: msgspec.structs.replace(LAWFUL, events=LAWFUL.events[5:])),
        ("no_loss_no_ghost", lambda: _again("one", "submit")),
        ("exclusive", lambda: _edit("one", "claim", 1, attempt=3)),
        ("exclusive", lambda: _edit("one", "claim", 1, attempt=1)),
        ("exclusive", lambda: _edit("two", "claim", 0, lease_id="one-lease-1")),
        ("exclusive", lambda: _moved("one", "fail", 4)),
        ("fenced", lambda: _edit("one", "complete", actor="somebody else")),
        ("fenced", lambda: _edit("one", "complete", at=LATER)),
        ("fenced", lambda: _moved("one", "complete", 1)),
        ("one_end", lambda: _again("one", "complete")),
        ("one_end", lambda: _again("one", "claim")),
        ("cancel_is_final", lambda: _again("three", "claim")),
        ("cancel_is_final", lambda: _edit("three", "acknowledge", cancel_requested_by="bob")),
        ("cancel_is_final", lambda: _edit("three", "acknowledge", state=State.READY)),
        ("cancel_is_final", lambda: _moved("three", "cancel", 12)),
        ("truthful", lambda: msgspec.structs.replace(LAWFUL, answers=[])),
        ("truthful", lambda: _answered(False, THREE)),
        ("truthful", lambda: _answered(True, None)),
        ("gates", lambda: _edit("one", "submit", available_at=LATER)),
        ("gates", lambda: _edit("one", "submit", max_attempts=1)),
        ("gates", lambda: _edit("two", "submit", wait_for=["one", "unknown"])),
        ("gates", lambda: _moved("one", "complete", len(LAWFUL.events) - 1)),
        ("audit", lambda: _stored("one", priority=7)),
        ("audit", lambda: _stored("three", cancel_reason="other")),
        ("audit", lambda: _edit("one", "claim", actor="")),
        ("audit", lambda: _edit("one", "claim", state=State.READY)),
        ("audit", lambda: _edit("one", "claim", seq=1)),
        ("money", lambda: _stored("one", billing=Billing.RESERVED, estimate=5, owner="ann")),
        ("money", lambda: _stored("one", billing=Billing.COMMITTED, estimate=5, committed=6)),
        ("money", lambda: msgspec.structs.replace(LAWFUL, accounts=[Account("ann", 5, 5)])),
        ("money", lambda: msgspec.structs.replace(LAWFUL, accounts=[Account("ann", -5, 0)])),
        ("money", lambda: _edit("one", "claim", billing="RELEASED")),
    ],
)
def test_tampering_is_noticed(checker: str, tamper: Callable[[], Run]) -> None:
    violations = check_all(tamper())
    assert any(violation.startswith(f"{checker}: ") for violation in violations), violations


def test_payload_and_progress_are_no_part_of_the_history() -> None:
    assert check_all(_stored("one", input="x", output="y", progress=0.5, progress_message="z")) == []
