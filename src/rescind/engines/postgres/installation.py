"""Is pgwf there, is it ours to use, and how does it get there."""

from typing import Final

import asyncpg

from rescind.engines.postgres.script import VERSION, script
from rescind.engines.postgres.server import Connection, Server
from rescind.errors import NoSuchStore, StoreReadOnly, StoreTooNew, StoreTooOld

_LOCK: Final = "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('pgwf:installer', 0))"
_THERE: Final = "SELECT to_regprocedure('pgwf.schema_version()') IS NOT NULL"
_BEGUN_ALREADY: Final = "25001"  # the script begins a transaction inside ours


async def ensure(server: Server, *, create: bool) -> None:
    """The schema is there and of our version afterwards; a missing one is made when that is allowed."""
    version = await installed_version(server)
    if version is None and create:
        await install(server, only_if_missing=True)
    elif version is None:
        raise NoSuchStore(f"{server.place} has no pgwf schema: make it with `rescind db install`")
    elif version < VERSION:
        raise StoreTooOld(
            f"{server.place} has pgwf version {version}, not {VERSION}: run `rescind db upgrade`"
        )
    else:
        refuse_newer(server, version)


def refuse_newer(server: Server, version: int | None) -> None:
    if version is not None and version > VERSION:
        raise StoreTooNew(
            f"{server.place} has pgwf version {version}, this rescind knows {VERSION}: upgrade rescind"
        )


async def installed_version(server: Server) -> int | None:
    rows = await server.fetch("SELECT to_regprocedure('pgwf.schema_version()') IS NOT NULL AS there")
    if not rows[0]["there"]:
        return None
    return int((await server.fetch("SELECT pgwf.schema_version() AS version"))[0]["version"])


async def install(server: Server, *, only_if_missing: bool = False, notify: bool = False) -> list[str]:
    """Run the script. A new schema has notifications on afterwards, with `notify` an older one, too. What the
    server remarked on the way comes back."""
    remarks: list[str] = []

    def hear(_: Connection, message: asyncpg.PostgresLogMessage) -> None:
        if message.sqlstate != _BEGUN_ALREADY:
            remarks.append(message.message)

    async def run() -> None:
        remarks.clear()
        await _run(connection, only_if_missing, notify)

    connection = await server.connect()
    try:
        connection.add_log_listener(hear)
        with server.translated():
            await server.again(run)
    except StoreReadOnly as problem:
        raise StoreReadOnly(
            f"this database user may not make or change the schema pgwf in {server.place}: let its owner run "
            "`rescind db install`, or give them the script that `rescind db sql` prints"
        ) from problem
    finally:
        await connection.close()
    return remarks


async def _run(connection: Connection, only_if_missing: bool, notify: bool) -> None:
    """In one transaction, so that nothing outlives it where a pooler lends the connection."""
    await connection.execute(_LOCK)
    try:
        there = await connection.fetchval(_THERE)
        if there and only_if_missing:
            await connection.execute("ROLLBACK")
            return
        await connection.execute(script().rstrip().removesuffix("COMMIT;"))
        if notify or not there:
            await connection.execute("SELECT pgwf.set_notify(TRUE)")
        await connection.execute("COMMIT")
    except asyncpg.PostgresError:
        await connection.execute("ROLLBACK")
        raise
