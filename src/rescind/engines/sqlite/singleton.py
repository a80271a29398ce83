"""Singleton keys: one job per key in front (ready or leased), the rest parked behind it in order.

The unique index `jobs_singleton_front` makes a second one in front impossible; `elect` decides which.
"""

from typing import TYPE_CHECKING

from rescind.engines.sqlite.rows import moment
from rescind.job import Job
from rescind.lease import Rung
from rescind.moves import Move

if TYPE_CHECKING:
    from rescind.engines.sqlite.transaction import Transaction

_ORDER = "priority DESC, available_at, seq"


def elect(tx: "Transaction", key: str) -> None:
    """Put the best parked job of this key in front, unless somebody holds the key."""
    front = tx.execute(
        "SELECT seq, stage, -priority, available_at FROM jobs "
        "WHERE singleton_key = ? AND stage IN ('ready', 'leased') AND singleton_key IS NOT NULL",
        (key,),
    ).fetchone()
    if (front and front[1] == "leased") or _held(tx, key):
        return
    best = tx.execute(
        "SELECT seq, -priority, available_at FROM jobs "
        f"WHERE singleton_key = ? AND stage = 'parked' ORDER BY {_ORDER} LIMIT 1",
        (key,),
    ).fetchone()
    if best is None:
        return
    if front:
        if (front[2], front[3], front[0]) < (best[1], best[2], best[0]):
            return
        tx.execute("UPDATE jobs SET stage = 'parked' WHERE seq = ?", (front[0],))
    tx.execute("UPDATE jobs SET stage = 'ready' WHERE seq = ?", (best[0],))


def follow(tx: "Transaction", move: Move) -> None:
    """Let the keys a move touched pass on: the one the job had, and the one it has now."""
    before, job = move.before, move.job
    if before and before.singleton_key is not None:
        if job.rung is Rung.FORCED and before.rung is not Rung.FORCED:
            _hold(tx, before)
        elect(tx, before.singleton_key)
    if job.singleton_key is not None and (before is None or before.singleton_key != job.singleton_key):
        elect(tx, job.singleton_key)


def _hold(tx: "Transaction", job: Job) -> None:
    """`job` lost its lease by decree while its handler may still run: keep its key taken until it is
    reported stopped or that lease would have ended."""
    lease = job.lease
    tx.execute(
        "INSERT OR REPLACE INTO singleton_holds (singleton_key, lease_id, until) VALUES (?, ?, ?)",
        (job.singleton_key, lease.lease_id, moment(lease.expires_at)),
    )


def stopped(tx: "Transaction", lease_id: str) -> None:
    """The fenced-off handler has ended: its key is free."""
    _free(tx, "lease_id = ?", lease_id)


def free_expired(tx: "Transaction") -> None:
    _free(tx, "until <= ?", moment(tx.now))


def _free(tx: "Transaction", where: str, value: str) -> None:
    rows = tx.execute(
        f"DELETE FROM singleton_holds WHERE {where} RETURNING singleton_key", (value,)
    ).fetchall()
    for (key,) in rows:
        elect(tx, key)


def _held(tx: "Transaction", key: str) -> bool:
    row = tx.execute(
        "SELECT 1 FROM singleton_holds WHERE singleton_key = ? AND until > ?", (key, moment(tx.now))
    ).fetchone()
    return row is not None
