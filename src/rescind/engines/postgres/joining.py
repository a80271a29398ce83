"""Submitting inside the caller's own transaction, on a connection of asyncpg or of psycopg."""

from collections.abc import Sequence
from typing import Any

from rescind.engines.postgres.refusal import from_sqlstate, translated
from rescind.errors import InvalidInput


async def fetch(connection: Any, sql: str, parameter: str) -> Sequence[Any]:
    """The rows. A refusal takes back only itself: it happens in a savepoint of the caller's transaction."""
    kind = type(connection).__module__.partition(".")[0]
    if kind == "asyncpg":
        with translated():
            async with connection.transaction():
                rows: Sequence[Any] = await connection.fetch(sql, parameter)
                return rows
    if kind == "psycopg":
        return await _psycopg(connection, sql.replace("$1", "%s"), parameter)
    raise InvalidInput(f"connection must be one of asyncpg or psycopg, not {type(connection)!r}")


async def _psycopg(connection: Any, sql: str, parameter: str) -> Sequence[Any]:
    """psycopg's connections come in two kinds that differ only by `await`."""
    import psycopg
    from psycopg.rows import dict_row

    try:
        if isinstance(connection, psycopg.AsyncConnection):
            async with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
                _keep_json(cursor)
                await cursor.execute(sql, (parameter,))
                return await cursor.fetchall()
        with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
            _keep_json(cursor)
            cursor.execute(sql, (parameter,))
            rows: Sequence[Any] = cursor.fetchall()
            return rows
    except psycopg.Error as problem:
        words, detail = problem.diag.message_primary or str(problem), problem.diag.message_detail
        raise from_sqlstate(problem.sqlstate or "", words, detail) from problem


def _keep_json(cursor: Any) -> None:
    """As text, which is what asyncpg hands out and what we decode ourselves."""
    from psycopg.types.string import TextLoader

    cursor.adapters.register_loader("json", TextLoader)
