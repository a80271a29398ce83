"""Singleton keys: one leased job per key; while there is none, one of each need in front, the rest parked.

Unique indexes make a second one in either place impossible; `elect` decides which job it is.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rescind.engines.sqlite.rows import moment
from rescind.job import Job
from rescind.moves import Move

if TYPE_CHECKING:
    from rescind.engines.sqlite.transaction import Transaction

_FRONT: Final = """
    SELECT -priority, available_at, seq FROM jobs
    WHERE singleton_key = ? AND need = ? AND stage = 'ready' AND singleton_key IS NOT NULL"""

_BEST: Final = """
    SELECT -priority, available_at, seq FROM jobs WHERE singleton_key = ? AND need = ? AND stage = 'parked'
    ORDER BY priority DESC, available_at, seq LIMIT 1"""

_NEXT_NEED: Final = """
    SELECT need FROM jobs WHERE singleton_key = ? AND need > ? AND stage = 'parked' ORDER BY need LIMIT 1"""


def elect(tx: "Transaction", key: str) -> None:
    """Put the best parked job of each need in front or, while the key is taken, nobody."""
    if _is_taken(tx, key):
        tx.execute(
            "UPDATE jobs SET stage = 'parked' "
            "WHERE singleton_key = ? AND stage = 'ready' AND singleton_key IS NOT NULL",
            (key,),
        )
        return
    for need in _parked_needs(tx, key):
        _elect_of_need(tx, key, need)


def _elect_of_need(tx: "Transaction", key: str, need: str) -> None:
    best = tx.execute(_BEST, (key, need)).fetchone()
    front = tx.execute(_FRONT, (key, need)).fetchone()
    if front is not None:
        if front < best:
            return
        tx.execute("UPDATE jobs SET stage = 'parked' WHERE seq = ?", (front[2],))
    tx.execute("UPDATE jobs SET stage = 'ready' WHERE seq = ?", (best[2],))


def _parked_needs(tx: "Transaction", key: str) -> Iterator[str]:
    """Each need once, by as many steps in the index, however many jobs are parked."""
    need = ""
    while row := tx.execute(_NEXT_NEED, (key, need)).fetchone():
        need = row[0]
        yield need


def _is_taken(tx: "Transaction", key: str) -> bool:
    row = tx.execute(
        "SELECT EXISTS (SELECT 1 FROM jobs "
        "               WHERE singleton_key = :key AND stage = 'leased' AND singleton_key IS NOT NULL)"
        "    OR EXISTS (SELECT 1 FROM singleton_holds WHERE singleton_key = :key AND until > :now)",
        {"key": key, "now": moment(tx.now)},
    ).fetchone()
    return bool(row[0])


def follow(tx: "Transaction", move: Move) -> None:
    """Let the keys a move touched pass on: the one the job had, and the one it has now."""
    before, job = move.before, move.job
    if before and before.singleton_key is not None:
        if move.still_running:
            _hold(tx, before)
        elect(tx, before.singleton_key)
    if job.singleton_key is not None and (before is None or before.singleton_key != job.singleton_key):
        elect(tx, job.singleton_key)


def _hold(tx: "Transaction", job: Job) -> None:
    """`job` lost its lease while its handler may still run: keep its key taken until it is reported stopped
    or that lease would have ended."""
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
