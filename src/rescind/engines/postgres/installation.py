"""Is pgwf there, is it ours to use, and how does it get there."""

from typing import Final

import asyncpg

from rescind.engines.postgres.refusal import translated
from rescind.engines.postgres.script import VERSION, script
from rescind.engines.postgres.server import Connection, Server
from rescind.errors import NoSuchStore, StoreReadOnly, StoreTooNew, StoreTooOld

_LOCK: Final = "SELECT pg_advisory_lock(hashtextextended('pgwf:installer', 0))"


async def ensure(server: Server, *, create: bool) -> None:
    """The schema is there and of our version afterwards; a missing one is made when that is allowed."""
    version = await installed_version(server)
    if version is None and create:
        await install(server, only_if_missing=True)
    elif version is None:
        raise NoSuchStore(f"{server.place} has no pgwf schema: make it with `rescind db install`")
    elif version > VERSION:
        raise StoreTooNew(
            f"{server.place} has pgwf version {version}, this rescind knows {VERSION}: upgrade rescind"
        )
    elif version < VERSION:
        raise StoreTooOld(
            f"{server.place} has pgwf version {version}, not {VERSION}: run `rescind db upgrade`"
        )


async def installed_version(server: Server) -> int | None:
    rows = await server.fetch("SELECT to_regprocedure('pgwf.schema_version()') IS NOT NULL AS there")
    if not rows[0]["there"]:
        return None
    return int((await server.fetch("SELECT pgwf.schema_version() AS version"))[0]["version"])


async def install(server: Server, *, only_if_missing: bool = False) -> list[str]:
    """Run the script and turn notifications on. What the server remarked on the way comes back."""
    remarks: list[str] = []
    connection = await server.connect()
    try:
        connection.add_log_listener(lambda _, message: remarks.append(message.message))
        with translated():
            await _run(connection, only_if_missing)
    except StoreReadOnly as problem:
        raise StoreReadOnly(
            f"{server.place} has no pgwf schema and this database user may not make it: let its owner run "
            "`rescind db install`, or give them the script that `rescind db sql` prints"
        ) from problem
    finally:
        await connection.close()
    return remarks


async def _run(connection: Connection, only_if_missing: bool) -> None:
    await connection.execute(_LOCK)
    there = await connection.fetchval("SELECT to_regprocedure('pgwf.schema_version()') IS NOT NULL")
    if there and only_if_missing:
        return
    try:
        await connection.execute(script())
    except asyncpg.PostgresError:
        await connection.execute("ROLLBACK")
        raise
    if not there:
        await connection.execute("SELECT pgwf.set_notify(TRUE)")
