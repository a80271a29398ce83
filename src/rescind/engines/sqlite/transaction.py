"""One request inside a write transaction: reads jobs, stores moves, and keeps every index in step.

`apply` is the only way a job changes. It writes the facts of a `Move`, its line of history, the job's
stage among the indexes, its charge, and whatever the end of the job sets free: the jobs that waited for
it and its singleton key.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from rescind import moves
from rescind.engines.sqlite import ledger, singleton
from rescind.engines.sqlite.rows import SELECTED, job_from_row, moment, row_from_changes, to_json
from rescind.errors import DependencyCycle, JobNotFoundError, UnknownDependency
from rescind.job import Event, Job, Outcome
from rescind.moves import Move
from rescind.policy import NO_POLICY, Policy
from rescind.state import State

POLICIES: Final = "policies"  # the document that holds them, by need


class Transaction:
    def __init__(self, connection: sqlite3.Connection, now: datetime) -> None:
        self.connection = connection
        self.now = now
        self._policies: dict[str, Policy] | None = None

    # Reading

    def execute(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> sqlite3.Cursor:
        return self.connection.execute(sql, parameters)

    def jobs(self, where: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> list[Job]:
        rows = self.execute(f"SELECT {SELECTED} FROM jobs WHERE {where}", parameters)
        return [job_from_row(row, self.now) for row in rows.fetchall()]

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
        """Store a move of a job that exists; nothing happens when it changes nothing."""
        job = move.job
        if not move.changes:
            return job
        columns = ", ".join(f"{name} = ?" for name in move.changes)
        values = row_from_changes(move.changes)
        row = self.execute(
            f"UPDATE jobs SET {columns}, stage = ? WHERE id = ? RETURNING seq",
            (*values, stage_of(job), job.id),
        ).fetchone()
        if move.event is None:
            return job
        self.record([(row[0], move.event)])
        if move.charge:
            ledger.settle(self, move.charge, move.event.actor)
        singleton.follow(self, move)
        if job.outcome is not None:
            self._release_dependents(job, job.outcome)
        return job

    def record(self, events: Iterable[tuple[int, Event]]) -> None:
        self.connection.executemany(
            "INSERT INTO events (job, verb, at, actor, state, reason, changes) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (seq, e.verb, moment(e.at), e.actor, e.state.value, e.reason, to_json(e.changes))
                for seq, e in events
            ],
        )

    def _release_dependents(self, job: Job, outcome: Outcome) -> None:
        rows = self.execute(
            "DELETE FROM waiters WHERE dependency = ? RETURNING dependent", (job.id,)
        ).fetchall()
        for (dependent,) in rows:
            waiting = self.get(dependent)
            self.apply(moves.unblock(waiting, job.id, outcome, self.now, self.policy(waiting.need)))

    # Dependencies

    def wait(self, job_id: str, dependencies: Iterable[str]) -> None:
        """Note who waits for whom, so that the end of one finds the other."""
        self.connection.executemany(
            "INSERT OR IGNORE INTO waiters (dependency, dependent) VALUES (?, ?)",
            [(dependency, job_id) for dependency in dependencies],
        )

    def outcomes(self, ids: Sequence[str], also: frozenset[str] = frozenset()) -> dict[str, Outcome | None]:
        """Each job's outcome so far; `also` are ids that this transaction is about to create."""
        known: dict[str, Outcome | None] = dict.fromkeys(also)
        for job_id in ids:
            row = self.execute("SELECT outcome FROM jobs WHERE id = ?", (job_id,)).fetchone()
            if row:
                known[job_id] = Outcome(row[0]) if row[0] else None
        unknown = [job_id for job_id in ids if job_id not in known]
        if unknown:
            raise UnknownDependency(unknown)
        return known

    def refuse_cycle(self, job_id: str, wait_for: Sequence[str]) -> None:
        """A rescheduled job must not wait, through others, for itself."""
        came_from: dict[str, str] = dict.fromkeys(wait_for, job_id)
        agenda = list(wait_for)
        while agenda:
            here = agenda.pop()
            if here == job_id:
                raise DependencyCycle(_path_back(job_id, came_from))
            row = self.execute("SELECT wait_for FROM jobs WHERE id = ?", (here,)).fetchone()
            for further in msgspec.json.decode(row[0]) if row else ():
                if further not in came_from:
                    came_from[further] = here
                    agenda.append(further)


def _path_back(job_id: str, came_from: dict[str, str]) -> list[str]:
    path = [job_id]
    while len(path) == 1 or path[-1] != job_id:
        path.append(came_from[path[-1]])
    return path[::-1]


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
