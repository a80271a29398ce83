"""The sweep: what time alone has decided, moved in bounded steps that many may take at once."""

import logging
from collections.abc import Callable
from datetime import timedelta

from rescind import moves
from rescind.engine import Swept
from rescind.engines.sqlite.connection import is_trouble_with_the_file
from rescind.engines.sqlite.rows import moment
from rescind.engines.sqlite.transaction import Transaction
from rescind.engines.sqlite.work import wake
from rescind.job import Job
from rescind.moves import Move
from rescind.policy import Policy, activation_is_late

_log = logging.getLogger(__name__)
_IDEMPOTENCY_KEPT = timedelta(days=30)
_WORKER_FORGOTTEN = timedelta(days=1)


def sweep(tx: Transaction, limit: int, retention: timedelta) -> Swept:
    lapsed = wake(tx, limit)
    timed_out = _time_out(tx, limit)
    archived = _archive(tx, limit)
    purged = _purge(tx, limit, retention)
    _forget(tx, limit)
    return Swept(lapsed, archived, timed_out, purged, more=max(lapsed, timed_out, archived, purged) >= limit)


def _time_out(tx: Transaction, limit: int) -> int:
    return sum(
        _time_out_need(tx, need, policy, timedelta(seconds=policy.activation_timeout_seconds), limit)
        for need, policy in tx.policies().items()
        if policy.activation_timeout_seconds is not None
    )


def _time_out_need(tx: Transaction, need: str, policy: Policy, timeout: timedelta, limit: int) -> int:
    """Jobs that were free to start for longer than the timeout and never were; the oldest first."""
    late = tx.jobs(
        "need = :need AND outcome IS NULL AND available_at < :then AND submitted_at < :then "
        "AND ifnull(unblocked_at, '') < :then AND attempt = 0 AND stage IN ('ready', 'parked') "
        "ORDER BY available_at LIMIT :limit",
        {"need": need, "then": moment(tx.now - timeout), "limit": limit},
    )
    late = [job for job in late if activation_is_late(job, policy, tx.now)]  # the rule itself decides
    return _each(tx, late, lambda job: moves.time_out(job, tx.now, policy))


def _archive(tx: Transaction, limit: int) -> int:
    """Cancelled jobs go to rest and release their dependents. Those cancelled with them follow in the
    same sweep, generation by generation."""
    count = 0
    while count < limit:
        cancelled = tx.jobs("stage = 'cancelled' ORDER BY seq LIMIT ?", (limit - count,))
        moved = _each(tx, cancelled, lambda job: moves.archive(job, tx.now))
        count += moved
        if not moved:
            break
    return count


def _purge(tx: Transaction, limit: int, retention: timedelta) -> int:
    old = tx.jobs(
        "stage = 'done' AND purged_at IS NULL AND finished_at <= ? ORDER BY finished_at LIMIT ?",
        (moment(tx.now - retention), limit),
    )
    return _each(tx, old, lambda job: moves.purge(job, tx.now))


def _forget(tx: Transaction, limit: int) -> None:
    expired = tx.jobs(
        "idempotency_key IS NOT NULL AND submitted_at < ? LIMIT ?",
        (moment(tx.now - _IDEMPOTENCY_KEPT), limit),
    )
    _each(tx, expired, lambda job: moves.forget_key(job, tx.now))
    tx.execute("DELETE FROM workers WHERE seen_at < ?", (moment(tx.now - _WORKER_FORGOTTEN),))


def _each(tx: Transaction, jobs: list[Job], move: Callable[[Job], Move]) -> int:
    """Move them together or, if that fails, one by one: a job that cannot be moved is logged and never
    stops the rest."""
    if _try(tx, jobs, move):
        return len(jobs)
    return sum(_try(tx, [job], move, log=True) for job in jobs)


def _try(tx: Transaction, jobs: list[Job], move: Callable[[Job], Move], *, log: bool = False) -> bool:
    tx.execute("SAVEPOINT sweep")
    try:
        tx.apply_all([move(job) for job in jobs])
    except Exception as problem:
        if is_trouble_with_the_file(problem):
            raise
        tx.execute("ROLLBACK TO sweep")
        tx.execute("RELEASE sweep")
        if log:
            _log.exception("sweep could not move job %s", jobs[0].id)
        return False
    tx.execute("RELEASE sweep")
    return True
