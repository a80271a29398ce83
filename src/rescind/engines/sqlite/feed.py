"""Hints from a file that several processes write: notice that it changed, then look at what that means."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from rescind.engine import Hint
from rescind.engines.sqlite.connection import translated
from rescind.engines.sqlite.rows import moment
from rescind.engines.sqlite.work import is_claimable
from rescind.lifecycle import Verb

BUSY_POLL_SECONDS: Final = 0.01
IDLE_POLL_SECONDS: Final = 0.05
BUSY_FOR_SECONDS: Final = 2.0  # how long after a change we look more often

_STOPS: Final = f"""
    SELECT DISTINCT j.id FROM events e CROSS JOIN jobs j ON j.seq = e.job
    WHERE e.seq > ? AND e.verb IN ('{Verb.CANCEL}', '{Verb.FORCE_CANCEL}', '{Verb.LAPSE}')"""

_NEXT_DUE: Final = """
    SELECT min(at) FROM (
        SELECT min(available_at) AS at FROM jobs WHERE stage = 'future'
        UNION ALL SELECT min(lease_expires_at) FROM jobs WHERE stage = 'leased'
        UNION ALL SELECT min(until) FROM singleton_holds
    )"""

_CANCELLED: Final = "SELECT EXISTS (SELECT 1 FROM jobs WHERE stage = 'cancelled')"


class Look(msgspec.Struct, frozen=True):
    """What one look saw, how far it read, and when the clock alone will make it worth looking again."""

    hints: list[Hint]
    cursor: int
    next_due: str | None

    def is_due(self, now: datetime) -> bool:
        return self.next_due is not None and self.next_due <= moment(now)


def start(connection: sqlite3.Connection) -> int:
    """The end of the feed: what was cancelled before we listened is told by the first heartbeat."""
    return int(connection.execute("SELECT ifnull(max(seq), 0) FROM events").fetchone()[0])


def look(connection: sqlite3.Connection, needs: Sequence[str], cursor: int, now: datetime) -> Look:
    hints = []
    end = start(connection)
    cancelled = tuple(row[0] for row in connection.execute(_STOPS, (cursor,)))
    if cancelled:
        hints.append(Hint("cancel", cancelled))
    if connection.execute(_CANCELLED).fetchone()[0]:
        hints.append(Hint("sweep"))
    if is_claimable(connection, needs, now):
        hints.append(Hint("work"))
    return Look(hints, end, connection.execute(_NEXT_DUE).fetchone()[0])


class Watch:
    """A connection that only asks whether others have written. A store in memory has no others."""

    def __init__(self, connection: sqlite3.Connection | None, path: str) -> None:
        self._connection = connection
        self._path = path

    def version(self) -> int:
        """Changes when any other connection commits; reading it costs microseconds and takes no lock."""
        if self._connection is None:
            return 0
        with translated(self._path):
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
