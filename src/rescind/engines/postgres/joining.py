"""Submitting inside the caller's own transaction, on a connection of asyncpg or of psycopg."""

import sys
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from rescind.engines.postgres.refusal import from_sqlstate, translated
from rescind.engines.postgres.rows import PLAIN_COLUMNS, job_from_row, specs_to_json
from rescind.errors import InvalidInput
from rescind.job import Job
from rescind.spec import JobSpec

# JSON goes both ways as text: what the caller's connection makes of JSON is the caller's affair.
_SUBMIT: Final = f"SELECT {PLAIN_COLUMNS} FROM pgwf.submit_jobs($1::text::json)"
_PLACE: Final = "the database of this connection"


async def submit(connection: Any, specs: Sequence[JobSpec]) -> list[Job]:
    """A refusal takes back only itself: it happens in a savepoint of the caller's transaction."""
    body = specs_to_json(specs)
    if isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        return [job_from_row(row) for row in await _asyncpg(connection, body)]
    psycopg = sys.modules.get("psycopg")
    if psycopg and isinstance(connection, psycopg.AsyncConnection):
        return [job_from_row(row) for row in await _psycopg_async(connection, body)]
    if psycopg and isinstance(connection, psycopg.Connection):
        return [job_from_row(row) for row in _psycopg(connection, body)]
    raise InvalidInput(
        f"connection must be a Connection of asyncpg or psycopg, not {type(connection).__module__}."
        f"{type(connection).__qualname__}"
    )


async def _asyncpg(connection: Any, body: str) -> Sequence[Any]:
    with translated(_PLACE):
        async with connection.transaction():
            rows: Sequence[Any] = await connection.fetch(_SUBMIT, body, record_class=asyncpg.Record)
            return rows


async def _psycopg_async(connection: Any, body: str) -> Sequence[Any]:
    import psycopg
    from psycopg.rows import dict_row

    try:
        if _begins(connection):
            await connection.execute("")
        cursor = psycopg.AsyncCursor(connection, row_factory=dict_row)  # whatever the caller's are like
        async with connection.transaction(), cursor:
            await cursor.execute(_SUBMIT.replace("$1", "%s"), (body,))
            return await cursor.fetchall()
    except psycopg.Error as problem:
        raise _translated(problem) from problem


def _psycopg(connection: Any, body: str) -> Sequence[Any]:
    import psycopg
    from psycopg.rows import dict_row

    try:
        if _begins(connection):
            connection.execute("")
        cursor = psycopg.Cursor(connection, row_factory=dict_row)
        with connection.transaction(), cursor:
            cursor.execute(_SUBMIT.replace("$1", "%s"), (body,))
            return cursor.fetchall()
    except psycopg.Error as problem:
        raise _translated(problem) from problem


def _begins(connection: Any) -> bool:
    """Would this be the first statement of a transaction? Then psycopg has to begin it, as for any other
    statement: else `connection.transaction()` would be a transaction of its own, and commit."""
    from psycopg.pq import TransactionStatus

    idle = connection.info.transaction_status is TransactionStatus.IDLE
    return idle and not connection.autocommit


def _translated(problem: Any) -> Exception:
    words, detail = problem.diag.message_primary or str(problem), problem.diag.message_detail
    return from_sqlstate(problem.sqlstate or "", words, detail, _PLACE)
