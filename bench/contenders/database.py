"""Databases on the server that contenders share: made, copied, settled, dropped. None of it is measured."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from bench.contenders.place import Server


def run(url: str, *statements: sql.Composed | str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def once(server: Server, name: str, fill: Callable[[str], None]) -> str:
    """The URL of a database that the first caller fills and that stays until the server goes."""
    if not _exists(server, name):
        _create(server, name)
        try:
            fill(server.database(name))
        except BaseException:
            _drop(server, name)
            raise
    return server.database(name)


@contextmanager
def copy(server: Server, template: str) -> Iterator[str]:
    """The URL of a fresh copy of a database to which nobody is connected."""
    name = f"{template}_{uuid.uuid4().hex[:8]}"
    _create(server, name, template)
    try:
        yield server.database(name)
    finally:
        _drop(server, name)


def clone(server: Server, template: str, name: str, *, large: bool) -> None:
    """A copy that stays. A large one is copied by files: nothing of it goes through the log, for the price of
    two checkpoints."""
    _create(server, name, template, strategy="file_copy" if large else "wal_log")


def settle(url: str) -> None:
    """What autovacuum would come round to do after so much was written at once."""
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute("SELECT schemaname, relname FROM pg_stat_user_tables").fetchall()
        names = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
        connection.execute(sql.SQL("VACUUM (ANALYZE, SKIP_DATABASE_STATS) {}").format(names))


def _drop(server: Server, name: str) -> None:
    statement = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
    run(server.database("postgres"), statement)


def _exists(server: Server, name: str) -> bool:
    with psycopg.connect(server.database("postgres")) as connection:
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
        return found.fetchone() is not None


def _create(server: Server, name: str, template: str = "template1", strategy: str = "wal_log") -> None:
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}").format(
        sql.Identifier(name), sql.Identifier(template), sql.Identifier(strategy)
    )
    run(server.database("postgres"), statement)
