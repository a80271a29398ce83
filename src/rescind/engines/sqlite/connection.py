"""Opening a SQLite file safely: pragmas, schema and version, and sqlite3's errors in our own words."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final

from rescind.clock import SYSTEM_CLOCK, blocking_sleep
from rescind.errors import (
    NoSuchStore,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    Unavailable,
)

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x7273636E  # "rscn": tells our files from other people's
BUSY_SECONDS: Final = 30.0  # how long we wait for others before we say that the file is locked
OLDEST_SQLITE: Final = (3, 37, 0)  # STRICT tables

_KINDS: Final[dict[int, tuple[type[Unavailable], str]]] = {
    sqlite3.SQLITE_BUSY: (StoreBusy, "is locked by another process; try again"),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "is locked by another connection; try again"),
    sqlite3.SQLITE_FULL: (StoreFull, "cannot grow: the disk is full. Free some space and try again"),
    sqlite3.SQLITE_READONLY: (
        StoreReadOnly,
        "cannot be written: check the rights of the file and its directory",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreReadOnly,
        "cannot be opened: check that its directory exists and is writable",
    ),
    sqlite3.SQLITE_PERM: (StoreReadOnly, "cannot be opened: permission denied"),
    sqlite3.SQLITE_CORRUPT: (StoreCorrupt, "is damaged. Restore a backup, or try `sqlite3 FILE .recover`"),
    sqlite3.SQLITE_NOTADB: (StoreCorrupt, "is not a SQLite database"),
}


def connect(path: str, busy_seconds: float) -> sqlite3.Connection:
    """A connection set up for durability. A file that is not ours is refused before anything is written."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise Unavailable(f"SQLite {sqlite3.sqlite_version} is too old: rescind needs 3.37 or newer")
    with translated(path):
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=512
        )
        try:
            connection.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}")
            _look_first(connection, path)
            # Of several that make the same new file at once SQLite lets one switch and sends the others away.
            patiently(connection, "PRAGMA journal_mode = WAL", busy_seconds)
            _set_up(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def watch(path: str) -> sqlite3.Connection:
    """A connection that will never write, nor wait."""
    with translated(path):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA busy_timeout = 0")
    return connection


def _look_first(connection: sqlite3.Connection, path: str) -> None:
    """Check in one snapshot, since another process may be installing right now."""
    connection.execute("BEGIN")
    try:
        _check(connection, path)
    finally:
        connection.execute("ROLLBACK")


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = FULL")  # acknowledged means on disk
    connection.execute("PRAGMA fullfsync = ON")  # and not in the drive's cache, where macOS leaves it
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA temp_store = MEMORY")


def install(connection: sqlite3.Connection, path: str, busy_seconds: float) -> None:
    """Bring the file to this version's schema, or say why not."""
    with translated(path):
        begin(connection, busy_seconds)
        try:
            _check(connection, path)
            if _pragma(connection, "user_version") == 0:
                _create(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk has rolled it back already
                connection.execute("ROLLBACK")
            raise


def _check(connection: sqlite3.Connection, path: str) -> None:
    version = _pragma(connection, "user_version")
    owner = _pragma(connection, "application_id")
    if owner != APPLICATION_ID and (owner or version or _has_tables(connection)):
        raise StoreCorrupt(f"{path} is a SQLite database, but not one of rescind's: choose another file")
    if version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"{path} was written by a newer rescind (schema {version}, this one knows {SCHEMA_VERSION}): "
            "upgrade rescind"
        )


def _create(connection: sqlite3.Connection) -> None:
    script = resources.files(__package__).joinpath("schema.sql").read_text()
    for statement in _statements(script):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _statements(script: str) -> Iterator[str]:
    """One at a time, since `executescript` would commit the transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _has_tables(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM sqlite_master)").fetchone()[0])


def begin(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Take the write lock."""
    patiently(connection, "BEGIN IMMEDIATE", busy_seconds)


def patiently(connection: sqlite3.Connection, statement: str, busy_seconds: float) -> None:
    """Ask until others let us. SQLite's own busy handler soon waits 100 ms at a time; transactions here are
    short, so asking again after a fraction of one is fairer to everybody."""
    deadline = SYSTEM_CLOCK.monotonic() + busy_seconds
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as problem:
            if _primary(problem) != sqlite3.SQLITE_BUSY or SYSTEM_CLOCK.monotonic() > deadline:
                raise
        blocking_sleep(0.0002 + 0.002 * SYSTEM_CLOCK.random())


@contextmanager
def translated(path: str) -> Iterator[None]:
    """sqlite3's errors as ours: which file, what is wrong, what to do."""
    try:
        yield
    except sqlite3.Error as problem:
        kind, words = _KINDS.get(_primary(problem), (Unavailable, f"could not be used: {problem}"))
        raise kind(f"{path} {words}") from problem


def is_trouble_with_the_file(problem: Exception) -> bool:
    """Nobody can go on, as against a value or a rule that concerns one caller alone."""
    return isinstance(problem, sqlite3.OperationalError) or type(problem) is sqlite3.DatabaseError


def _primary(problem: sqlite3.Error) -> int:
    """The error code without its extension; 0 when sqlite3 gave none."""
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF


def prepare(path: str, create: bool) -> None:
    """Make the directory of a file that may be made, and insist on one that may not."""
    if not create and not Path(path).exists():
        raise NoSuchStore(
            f"there is no queue at {path} yet: submit a job or start a worker, or check the URL"
        )
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise StoreReadOnly(f"{path} cannot be created: {problem.strerror}") from problem
