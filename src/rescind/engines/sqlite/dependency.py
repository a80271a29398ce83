"""Who waits for whom: checked before a job is moved, noted so that the end of one finds the other."""

import msgspec

from rescind import moves
from rescind.engines.sqlite.transaction import Transaction
from rescind.errors import DependencyCycle, UnknownDependency
from rescind.job import Job, Outcome


def check(tx: Transaction, job: Job) -> None:
    """What a job is to wait for exists and does not, through others, wait for it."""
    _outcomes(tx, job)
    _refuse_cycle(tx, job)


def settle_in(tx: Transaction, job: Job) -> Job:
    """Wait for what has not ended; take what has ended as if it ended now."""
    outcomes = _outcomes(tx, job)
    tx.connection.executemany(
        "INSERT OR IGNORE INTO waiters (dependency, dependent) VALUES (?, ?)",
        [(each, job.id) for each, outcome in outcomes.items() if outcome is None],
    )
    for dependency, outcome in outcomes.items():
        if outcome is not None:
            job = tx.apply(moves.unblock(job, dependency, outcome, tx.now, tx.policy(job)))
    return job


def forget(tx: Transaction, job: Job) -> None:
    """The job no longer waits for anything it waited for."""
    tx.connection.executemany(
        "DELETE FROM waiters WHERE dependency = ? AND dependent = ?",
        [(each, job.id) for each in job.wait_for],
    )


def _outcomes(tx: Transaction, job: Job) -> dict[str, Outcome | None]:
    """The outcome so far of each job it waits for."""
    found = {each: _row(tx, each) for each in job.wait_for}
    unknown = [each for each, row in found.items() if row is None]
    if unknown:
        raise UnknownDependency(unknown)
    return {each: Outcome(row[0]) if row and row[0] else None for each, row in found.items()}


def _refuse_cycle(tx: Transaction, job: Job) -> None:
    came_from = dict.fromkeys(job.wait_for, job.id)
    agenda = list(job.wait_for)
    while agenda:
        here = agenda.pop()
        if here == job.id:
            raise DependencyCycle(_path_back(job.id, came_from))
        row = _row(tx, here)
        for further in msgspec.json.decode(row[1]) if row else ():
            if further not in came_from:
                came_from[further] = here
                agenda.append(further)


def _path_back(job_id: str, came_from: dict[str, str]) -> list[str]:
    path = [job_id]
    while len(path) == 1 or path[-1] != job_id:
        path.append(came_from[path[-1]])
    return path[::-1]


def _row(tx: Transaction, job_id: str) -> tuple[str | None, str] | None:
    query = "SELECT outcome, wait_for FROM jobs WHERE id = ?"
    row: tuple[str | None, str] | None = tx.execute(query, (job_id,)).fetchone()
    return row
