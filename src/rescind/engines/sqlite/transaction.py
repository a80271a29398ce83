"""One request inside a write transaction: reads jobs, stores moves, and keeps every index in step.

`apply` is the only way a job changes. It writes the facts of a `Move`, its line of history, the job's
stage among the indexes, its charge, and whatever the end of the job sets free: the jobs that waited for
it and its singleton key.
"""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from rescind import moves
from rescind.engines.sqlite import ledger, singleton
from rescind.engines.sqlite.rows import SELECTED, job_from_row, moment, row_from_changes, to_json
from rescind.errors import JobNotFoundError
from rescind.job import Event, Job, Outcome
from rescind.moves import Move
from rescind.policy import NO_POLICY, Policy
from rescind.state import State

_INSERT_EVENT: Final = """
    INSERT INTO events (job, verb, at, actor, state, reason, changes) VALUES (?, ?, ?, ?, ?, ?, ?)"""

POLICIES: Final = "policies"  # the document that holds them, by need


class Transaction:
    def __init__(self, connection: sqlite3.Connection, now: datetime) -> None:
        self.connection = connection
        self.now = now
        self._rows: dict[str, int] = {}  # the seq of each job read here, so that writing it is one lookup
        self._policies: dict[str, Policy] | None = None

    # Reading

    def execute(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> sqlite3.Cursor:
        return self.connection.execute(sql, parameters)

    def jobs(self, where: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> list[Job]:
        rows = self.execute(f"SELECT seq, {SELECTED} FROM jobs WHERE {where}", parameters)
        jobs = []
        for seq, *facts in rows.fetchall():
            job = job_from_row(facts, self.now)
            self._rows[job.id] = seq
            jobs.append(job)
        return jobs

    def find(self, job_id: str) -> Job | None:
        found = self.jobs("id = ?", (job_id,))
        return found[0] if found else None

    def get(self, job_id: str) -> Job:
        job = self.find(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    def policy(self, need: str) -> Policy:
        return self.policies().get(need, NO_POLICY)

    def policies(self) -> dict[str, Policy]:
        if self._policies is None:
            row = self.execute("SELECT body FROM documents WHERE name = ?", (POLICIES,)).fetchone()
            self._policies = msgspec.json.decode(row[0], type=dict[str, Policy]) if row else {}
        return self._policies

    # Writing

    def apply(self, move: Move) -> Job:
        """Store a move of a job read here; nothing happens when it changes nothing."""
        job = move.job
        if not move.changes:
            return job
        seq = self._rows[job.id]
        columns = ", ".join([f"{name} = ?" for name in move.changes])
        values = row_from_changes(move.changes)
        self.execute(f"UPDATE jobs SET {columns}, stage = ? WHERE seq = ?", (*values, stage_of(job), seq))
        if move.event is None:
            return job
        self.execute(_INSERT_EVENT, _event_row(seq, move.event))
        if move.charge:
            ledger.settle(self, move.charge, move.event.actor)
        singleton.follow(self, move)
        if job.outcome is not None:
            self._release_dependents(job, job.outcome)
        return job

    def created(self, first: int, made: Sequence[Move]) -> None:
        """Note the jobs inserted here, from seq `first` on, and write the beginning of their history."""
        self._rows |= {move.job.id: seq for seq, move in enumerate(made, first)}
        rows = [_event_row(seq, move.event) for seq, move in enumerate(made, first) if move.event]
        self.connection.executemany(_INSERT_EVENT, rows)

    def _release_dependents(self, job: Job, outcome: Outcome) -> None:
        rows = self.execute(
            "DELETE FROM waiters WHERE dependency = ? RETURNING dependent", (job.id,)
        ).fetchall()
        for (dependent,) in rows:
            waiting = self.get(dependent)
            self.apply(moves.unblock(waiting, job.id, outcome, self.now, self.policy(waiting.need)))


def _event_row(seq: int, event: Event) -> tuple[Any, ...]:
    at, state, changes = moment(event.at), event.state.value, to_json(event.changes)
    return (seq, event.verb, at, event.actor, state, event.reason, changes)


def stage_of(job: Job) -> str:
    """Where a job stands among the indexes; a free singleton key is decided after, by election."""
    if job.outcome is not None:
        return "done"
    if job.lease_id is not None:
        return "leased"
    if job.cancel_requested_at is not None:
        return "cancelled"
    if job.wait_for:
        return "waiting"
    if job.state is State.AWAITING_FUTURE:
        return "future"
    return "ready" if job.singleton_key is None else "parked"
