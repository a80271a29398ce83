"""The registry of stores the conformance suite runs on. An engine joins by adding its `Store` here, or by
naming it on the command line as `module:factory`."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from rescind.clock import SystemClock
from rescind.engine import Engine, open_engine

RUN: Final = "RESCIND_TEST_RUN"
"""This variable names a directory that all processes of a test run share. The file `life` in it is locked
until the run ends, however it does."""


class Store(Protocol):
    """One empty store, made for one test, whose time the test may move."""

    url: str | None
    """How another process opens the same store; None when no other process can."""

    def connect(self) -> Engine:
        """One more engine on this store; on a store that only one engine can use, the same one again."""

    async def advance(self, seconds: float) -> None:
        """Let time pass for every engine on this store."""

    async def drop(self) -> None:
        """Leave nothing behind. Every engine has been closed."""


Factory = Callable[[Path], Store]
"""Makes a fresh store; the directory is the test's own and may be used or not."""


class SQLiteFile:
    """A file: any number of engines, and other processes, too."""

    between_processes = True

    def __init__(self, directory: Path) -> None:
        self.url: str | None = f"sqlite://{directory / 'queue.db'}"
        self._clock = SystemClock()

    def connect(self) -> Engine:
        assert self.url is not None
        return open_engine(self.url, clock=self._clock)

    async def advance(self, seconds: float) -> None:
        self._clock.shift(seconds)

    async def drop(self) -> None:
        """The directory goes with the test."""


class SQLiteMemory:
    """Memory belongs to one connection, so there is one engine, however often it is asked for."""

    url: str | None = None

    def __init__(self, _directory: Path) -> None:
        self._clock = SystemClock()
        self._engine = open_engine("sqlite://:memory:", clock=self._clock)

    def connect(self) -> Engine:
        return self._engine

    async def advance(self, seconds: float) -> None:
        self._clock.shift(seconds)

    async def drop(self) -> None:
        """It went with its connection."""


class Postgres:
    """A database of this process, emptied for each test: there is one such store at a time."""

    between_processes = True

    def __init__(self, _directory: Path) -> None:
        from rescind.testing.postgres import own_database  # its libraries are for development only

        self._database = own_database()
        self._database.execute(_EMPTY)
        self.url: str | None = self._database.url
        self._clock = SystemClock()

    def connect(self) -> Engine:
        assert self.url is not None
        return open_engine(self.url, clock=self._clock)

    async def advance(self, seconds: float) -> None:
        """The server's time is what counts; ours follows, for those who look at the clock."""
        self._database.execute(_ADVANCE, seconds)
        self._clock.shift(seconds)

    async def drop(self) -> None:
        """The next store empties it, and the end of the process drops it."""


_ADVANCE: Final = "UPDATE pgwf.settings SET clock_offset = clock_offset + make_interval(secs => %s)"

# Whoever is still connected may hold locks, so they go first; to wait for it takes a tenth of a second, which
# is only worth it for those who are in the middle of something. Deleting a few rows is ten times faster than
# truncating, until too many dead ones have piled up. One statement for all tables, so that no foreign key
# objects to the order.
_EMPTY: Final = """
DO $$
DECLARE
    deletes text;
    tables text;
    piled_up boolean;
BEGIN
    PERFORM pg_terminate_backend(pid, CASE state WHEN 'idle' THEN 0 ELSE 10000 END) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid();

    SELECT string_agg(format('deleted_%s AS (DELETE FROM %s)', oid, oid::regclass), ', '),
        string_agg(oid::regclass::text, ', '),
        bool_or(pg_relation_size(oid) > 1000000)
    INTO deletes, tables, piled_up
    FROM pg_class
    WHERE relnamespace = to_regnamespace('pgwf') AND relkind = 'r' AND relname <> 'settings';

    IF tables IS NULL THEN
        RETURN;  -- not installed yet
    ELSIF piled_up THEN
        EXECUTE 'TRUNCATE ' || tables;
    ELSE
        EXECUTE 'WITH ' || deletes || ' SELECT';
    END IF;

    PERFORM setval(seqrelid, seqstart, false) FROM pg_sequence JOIN pg_class ON pg_class.oid = seqrelid
    WHERE relnamespace = to_regnamespace('pgwf');
    UPDATE pgwf.settings SET trace = true, notify = true, clock_offset = '0';
END $$
"""


class Existing:
    """A store that exists already and is reached by its URL; it and its time are not ours."""

    def __init__(self, url: str) -> None:
        self.url: str | None = url

    def connect(self) -> Engine:
        assert self.url is not None
        return open_engine(self.url)

    async def advance(self, seconds: float) -> None:
        raise NotImplementedError("the clock of a shared store is not ours to move")

    async def drop(self) -> None:
        """It is not ours."""


REGISTERED: dict[str, Factory] = {
    "sqlite-memory": SQLiteMemory,
    "sqlite-file": SQLiteFile,
    "postgres": Postgres,
}


def factories(names: Sequence[str] = ()) -> dict[str, Factory]:
    """The factories with these names, or all that are registered."""
    return {name: _named(name) for name in names} if names else REGISTERED


def _named(name: str) -> Factory:
    if name in REGISTERED:
        return REGISTERED[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"no engine {name!r}: use one of {', '.join(REGISTERED)}, or module:factory")
    factory: Factory = getattr(importlib.import_module(module), attribute)
    return factory


def between_processes(factory: Factory) -> bool:
    """Can other processes open its stores by their URL? A factory says so by an attribute of this name."""
    return bool(getattr(factory, "between_processes", False))
