"""A worker's side: claim, extend, settle."""

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Final

from rescind import moves
from rescind.clock import new_secret
from rescind.engine import Beat, Claim, Settled, WorkerInfo
from rescind.engines.sqlite import dependency, singleton
from rescind.engines.sqlite.rows import moment, to_json
from rescind.engines.sqlite.transaction import Transaction
from rescind.errors import JobNotFoundError, NotAvailable, RescindError
from rescind.job import Job
from rescind.lease import Report, Reschedule, Settlement
from rescind.moves import Move

_WAKE_LIMIT: Final = 500  # jobs that a single claim brings back from the clock's hands

_STEP: Final = 16  # candidates read from the index of a need at a time

_BEST: Final = """
    SELECT -priority, available_at, seq FROM jobs INDEXED BY jobs_ready
    WHERE stage = 'ready' AND need = ? ORDER BY priority DESC, available_at, seq LIMIT ? OFFSET ?"""


def claim(tx: Transaction, request: Claim) -> list[Job]:
    """Lease the most urgent jobs of these needs; how many wait behind them does not matter."""
    wake(tx, _WAKE_LIMIT)
    found = _one_per_key(_candidates(tx, request))
    return tx.apply_all([move for job in found if (move := _lease(tx, job, request))])


def _one_per_key(jobs: list[Job]) -> Iterator[Job]:
    """Jobs of different needs may be in front with one singleton key; only the best of them is taken."""
    taken: set[str] = set()
    for job in jobs:
        if job.singleton_key is None:
            yield job
        elif job.singleton_key not in taken:
            taken.add(job.singleton_key)
            yield job


def _lease(tx: Transaction, job: Job, request: Claim) -> Move | None:
    try:
        return moves.claim(job, request.worker, new_secret(), request.lease_seconds, tx.now)
    except NotAvailable:  # the clock was set back since it became ready
        return None


def _candidates(tx: Transaction, request: Claim) -> list[Job]:
    """The best of all needs, read in order from the index of each and no further than it takes; only these
    are then read whole."""
    ranked = merge(*(_in_order(tx, need, request.limit) for need in dict.fromkeys(request.needs)))
    best = [seq for _, _, seq in islice(ranked, request.limit)]
    order = "ORDER BY priority DESC, available_at, seq"
    return tx.jobs(f"seq IN (SELECT value FROM json_each(?)) {order}", (to_json(best),))


def _in_order(tx: Transaction, need: str, limit: int) -> Iterator[tuple[int, str, int]]:
    step = min(limit, _STEP)
    for offset in range(0, limit, step):
        rows = tx.execute(_BEST, (need, step, offset)).fetchall()
        yield from rows
        if len(rows) < step:
            return


def wake(tx: Transaction, limit: int) -> int:
    """Bring the indexes up to the clock: due jobs become ready, lapsed leases end, held keys come free."""
    now = moment(tx.now)
    lapsed = tx.jobs(
        "stage = 'leased' AND lease_expires_at <= ? ORDER BY lease_expires_at LIMIT ?", (now, limit)
    )
    tx.apply_all([moves.lapse(job, tx.now, tx.policy(job)) for job in lapsed])
    singleton.free_expired(tx)
    due = tx.execute(
        "SELECT seq, singleton_key FROM jobs WHERE stage = 'future' AND available_at <= ? "
        "ORDER BY available_at LIMIT ?",
        (now, limit),
    ).fetchall()
    for seq, key in due:
        tx.execute("UPDATE jobs SET stage = ? WHERE seq = ?", ("ready" if key is None else "parked", seq))
        if key is not None:
            singleton.elect(tx, key)
    return len(lapsed)


_CLAIMABLE: Final = """
    SELECT EXISTS (SELECT 1 FROM jobs WHERE stage = 'future' AND available_at <= :now)
        OR EXISTS (SELECT 1 FROM jobs WHERE stage = 'leased' AND lease_expires_at <= :now)
        OR EXISTS (SELECT 1 FROM singleton_holds WHERE until <= :now)
        OR EXISTS (SELECT 1 FROM json_each(:needs) n CROSS JOIN jobs j INDEXED BY jobs_ready
                   WHERE j.stage = 'ready' AND j.need = n.value)"""


def is_claimable(connection: sqlite3.Connection, needs: Sequence[str], now: datetime) -> bool:
    """May a claim find something? Cheap and without a write, for workers that ask again and again."""
    question = {"now": moment(now), "needs": to_json(needs)}
    return bool(connection.execute(_CLAIMABLE, question).fetchone()[0])


def settle(tx: Transaction, settlements: Sequence[Settlement], request: Claim | None) -> Settled:
    answers: list[Job | RescindError] = []
    for group in _apart(settlements):
        answers += _answers(tx, group)
    return Settled(answers, claim(tx, request) if request else [])


def _apart(settlements: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """Groups in which each job is named once; a reschedule, which may concern other jobs, stands alone."""
    group: list[Settlement] = []
    ids: set[str] = set()
    for settlement in settlements:
        alone = isinstance(settlement, Reschedule)
        if group and (alone or settlement.lease.job_id in ids or isinstance(group[-1], Reschedule)):
            yield group
            group, ids = [], set()
        group.append(settlement)
        ids.add(settlement.lease.job_id)
    if group:
        yield group


def _answers(tx: Transaction, group: list[Settlement]) -> list[Job | RescindError]:
    """A refusal is an answer, and undoes only itself."""
    jobs = tx.find_all([settlement.lease.job_id for settlement in group])
    decided = [_decide(tx, settlement, jobs.get(settlement.lease.job_id)) for settlement in group]
    tx.apply_all([move for move in decided if isinstance(move, Move)])
    for settlement, each in zip(group, decided, strict=True):
        if isinstance(each, Move) and isinstance(settlement, Reschedule):
            return [dependency.settle_in(tx, each.job)]
    return [each.job if isinstance(each, Move) else each for each in decided]


def _decide(tx: Transaction, settlement: Settlement, job: Job | None) -> Move | RescindError:
    """The move, checked as far as it can be refused, or the refusal."""
    try:
        if job is None:
            raise JobNotFoundError(settlement.lease.job_id)
        move = moves.settle(job, settlement, tx.now, tx.policy(job))
        if isinstance(settlement, Reschedule):
            dependency.check(tx, move.job)
        return move
    except RescindError as problem:
        if not settlement.still_running:  # the handler has ended: what its fenced lease still held is free
            singleton.stopped(tx, settlement.lease.lease_id)
        return problem


def extend(
    tx: Transaction, worker: WorkerInfo, reports: Sequence[Report], lease_seconds: float | None
) -> list[Beat]:
    tx.execute(
        "INSERT OR REPLACE INTO workers (id, needs, slots, host, pid, started_at, seen_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            worker.id,
            to_json(worker.needs),
            worker.slots,
            worker.host,
            worker.pid,
            moment(worker.started_at),
            moment(tx.now),
        ),
    )
    return [_beat(tx, report, lease_seconds) for report in reports]


def _beat(tx: Transaction, report: Report, lease_seconds: float | None) -> Beat:
    job_id = report.lease.job_id
    job = tx.find(job_id)
    if job is None:
        return Beat(job_id, None, JobNotFoundError(job_id))
    try:
        return Beat(job_id, tx.apply(moves.extend(job, report, lease_seconds, tx.now)))
    except RescindError as problem:
        return Beat(job_id, job, problem)
