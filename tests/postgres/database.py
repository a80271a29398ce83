"""What tests do to a database behind the back of the engine."""

from typing import Any, Final, LiteralString

import psycopg

LISTENERS: Final = "query ~ 'pgwf.look|LISTEN|pgwf.cancelling_jobs'"
"""Connections that listen, by the last they said."""


def execute(url: str, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def backends(url: str, which: LiteralString = "true") -> set[int]:
    """The server's processes for engines on this database."""
    return {pid for (pid,) in execute(url, "SELECT pid " + _OF_ENGINES + which)}


def terminate(url: str, which: LiteralString = "true") -> int:
    """End these connections of engines to this database, at the server's side; how many they were."""
    return len(execute(url, "SELECT pg_terminate_backend(pid, 10000) " + _OF_ENGINES + which))


_OF_ENGINES: Final = (
    "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'rescind' AND "
)
