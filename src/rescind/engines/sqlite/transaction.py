"""One request inside a write transaction: reads jobs, stores moves, and keeps every index in step.

`apply_all` is the only way jobs change. It writes the facts of each `Move`, its line of history, the job's
stage among the indexes, its charge, and whatever the end of the job sets free: the jobs that waited for
it and its singleton key.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from rescind import moves
from rescind.engines.sqlite import ledger, singleton
from rescind.engines.sqlite.rows import SELECTED, job_from_row, moment, row_from_changes, to_json
from rescind.errors import JobNotFoundError
from rescind.job import Billing, Event, Job, Outcome
from rescind.moves import Move
from rescind.policy import NO_POLICY, POLICIES, Policy
from rescind.state import State

_INSERT_EVENT: Final = """
    INSERT INTO events (job, verb, at, actor, state, reason, changes) VALUES (?, ?, ?, ?, ?, ?, ?)"""


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

    def find_all(self, ids: Sequence[str]) -> dict[str, Job]:
        found = self.jobs("id IN (SELECT value FROM json_each(?))", (to_json(ids),))
        return {job.id: job for job in found}

    def get(self, job_id: str) -> Job:
        job = self.find(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    def policy(self, job: Job) -> Policy:
        """The rules that settle this job's cost; nobody looks them up for a job that has none."""
        return self.policies().get(job.need, NO_POLICY) if job.billing is Billing.RESERVED else NO_POLICY

    def policies(self) -> dict[str, Policy]:
        if self._policies is None:
            row = self.execute("SELECT body FROM documents WHERE name = ?", (POLICIES,)).fetchone()
            self._policies = msgspec.json.decode(row[0], type=dict[str, Policy]) if row else {}
        return self._policies

    # Writing

    def apply(self, move: Move) -> Job:
        return self.apply_all([move])[0]

    def apply_all(self, made: Sequence[Move]) -> list[Job]:
        """Store moves of different jobs read here; nothing happens for one that changes nothing."""
        self._update([move for move in made if move.changes])
        told = [(move, move.event) for move in made if move.event is not None]
        self._tell([(self._rows[event.job_id], event) for _, event in told])
        for move, event in told:
            if move.charge:
                ledger.settle(self, move.charge, event.actor)
            singleton.follow(self, move)
        self._release_dependents({move.job.id: move.job.outcome for move, _ in told if move.job.outcome})
        return [move.job for move in made]

    def _update(self, made: Sequence[Move]) -> None:
        """One statement per set of facts that change together: moves of one kind share it."""
        alike: dict[tuple[str, ...], list[list[Any]]] = defaultdict(list)
        for move in made:
            values = [*row_from_changes(move.changes), stage_of(move.job), self._rows[move.job.id]]
            alike[tuple(move.changes)].append(values)
        for names, rows in alike.items():
            columns = ", ".join([f"{name} = ?" for name in names])
            self.connection.executemany(f"UPDATE jobs SET {columns}, stage = ? WHERE seq = ?", rows)

    def created(self, first: int, made: Sequence[Move]) -> None:
        """Note the jobs inserted here, from seq `first` on, and write the beginning of their history."""
        self._rows |= {move.job.id: seq for seq, move in enumerate(made, first)}
        self._tell([(seq, move.event) for seq, move in enumerate(made, first) if move.event])

    def _tell(self, events: Sequence[tuple[int, Event]]) -> None:
        """Add lines to the histories of jobs, named by their seq."""
        self.connection.executemany(_INSERT_EVENT, [_event_row(seq, event) for seq, event in events])

    def _release_dependents(self, ended: dict[str, Outcome]) -> None:
        if not ended:
            return
        rows = self.execute(
            "DELETE FROM waiters WHERE dependency IN (SELECT value FROM json_each(?)) "
            "RETURNING dependency, dependent",
            (to_json(list(ended)),),
        ).fetchall()
        for dependency, dependent in rows:
            waiting = self.get(dependent)
            outcome = ended[dependency]
            self.apply(moves.unblock(waiting, dependency, outcome, self.now, self.policy(waiting)))


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
