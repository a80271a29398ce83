"""Looking after a SQLite file as a whole: make it, bring it up to date, say what is wrong with it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import resources
from typing import Any, Final, TypeVar

from rescind.clock import SYSTEM_CLOCK
from rescind.engines.sqlite import connection as connections
from rescind.engines.sqlite.request import in_thread
from rescind.engines.sqlite.rows import moment
from rescind.errors import InvalidInput, NoSuchStore, StoreCorrupt

T = TypeVar("T")

# `stage` is a projection of the facts (transaction.stage_of). An elected job is ready instead of parked, and
# the clock moves what is in the future only when a claim or a sweep passes by.
_MISPLACED: Final = """
    SELECT id, stage, expected FROM (
        SELECT id, stage, available_at, CASE
            WHEN outcome IS NOT NULL THEN 'done'
            WHEN lease_id IS NOT NULL THEN 'leased'
            WHEN cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN wait_for <> '[]' THEN 'waiting'
            WHEN available_at > :now THEN 'future'
            WHEN singleton_key IS NOT NULL THEN 'parked'
            ELSE 'ready' END AS expected
        FROM jobs)
    WHERE stage <> expected AND NOT (stage = 'ready' AND expected = 'parked')
      AND NOT (stage = 'future' AND available_at <= :now)"""
_UNBALANCED: Final = """
    SELECT owner, reserved, held FROM (
        SELECT a.owner, a.reserved, ifnull((
            SELECT sum(j.estimate) FROM jobs j WHERE j.owner = a.owner AND j.billing = 'RESERVED'), 0) AS held
        FROM accounts a)
    WHERE reserved <> held"""


class SQLiteAdministration:
    def __init__(self, path: str) -> None:
        self.place = self._path = path

    async def install(self) -> list[str]:
        return await in_thread(lambda: self._installed(create=True))

    async def upgrade(self) -> list[str]:
        return await in_thread(lambda: self._installed(create=False))

    def script(self) -> str:
        return resources.files(__package__).joinpath("schema.sql").read_text()

    async def version(self) -> int | None:
        try:
            return await in_thread(lambda: self._look(_version))
        except NoSuchStore:
            return None

    async def facts(self) -> dict[str, Any]:
        return {"sqlite": sqlite3.sqlite_version}

    async def check(self) -> list[str]:
        try:
            return await in_thread(lambda: self._look(self._problems))
        except StoreCorrupt as problem:
            return [str(problem)]

    def _installed(self, *, create: bool) -> list[str]:
        self._check_path()
        connections.prepare(self._path, create)
        with closing(connections.connect(self._path, connections.BUSY_SECONDS)) as db:
            connections.install(db, self._path, connections.BUSY_SECONDS)
        return []

    def _look(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """A file that is not ours, or too new, is refused on the way."""
        self._check_path()
        connections.prepare(self._path, create=False)
        with (
            connections.translated(self._path),
            closing(connections.connect(self._path, connections.BUSY_SECONDS)) as db,
        ):
            db.execute("BEGIN")  # one snapshot for all that is read
            return look(db)

    def _problems(self, db: sqlite3.Connection) -> list[str]:
        if _version(db) is None:
            raise NoSuchStore(f"{self._path} is empty: make the queue with `rescind db install`")
        return [*_problems(db)]

    def _check_path(self) -> None:
        if self._path in ("", ":memory:"):
            raise InvalidInput("this needs a file: sqlite:///absolute/path.db or sqlite:relative/path.db")


def _version(db: sqlite3.Connection) -> int | None:
    return db.execute("PRAGMA user_version").fetchone()[0] or None


def _problems(db: sqlite3.Connection) -> Iterator[str]:
    damage = [str(row[0]) for row in db.execute("PRAGMA integrity_check")]
    if damage != ["ok"]:
        yield from damage
        return  # what a damaged file says about its jobs is worth nothing
    for table, row, *_ in db.execute("PRAGMA foreign_key_check"):
        yield f"row {row} of {table} belongs to a job that is not there"
    now = moment(SYSTEM_CLOCK.now())  # not before the snapshot was taken: no job in it may seem to be early
    for job_id, stage, expected in db.execute(_MISPLACED, {"now": now}):
        yield f"job {job_id}: stage is {stage}, its facts say {expected}"
    for owner, reserved, held in db.execute(_UNBALANCED):
        yield f"account of {owner} has {reserved} reserved, its jobs hold {held}"
