"""Looking after the schema pgwf as a whole: make it, bring it up to date, say what is wrong with it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from rescind.clock import SYSTEM_CLOCK, Clock
from rescind.engines.postgres import installation
from rescind.engines.postgres.script import VERSION, script
from rescind.engines.postgres.server import Server
from rescind.errors import NoSuchStore, StoreReadOnly

_MOST_PROBLEMS: Final = 1000

_FACTS: Final = """
    SELECT split_part(current_setting('server_version'), ' ', 1) AS postgresql, s.trace, s.notify,
           s.clock_offset::text AS clock_offset,
           EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'pg_cron') AS has_cron
    FROM pgwf.settings s"""
_CRON: Final = """
    SELECT EXISTS (SELECT 1 FROM cron.job WHERE jobname = 'pgwf_archive_cancelled' AND active) AS scheduled"""
_CHECK: Final = f"SELECT job_id, problem FROM pgwf.check() LIMIT {_MOST_PROBLEMS}"
_MISSING: Final = """
    SELECT 'index', name FROM unnest($1::text[]) name WHERE NOT EXISTS (
        SELECT 1 FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
        WHERE c.relnamespace = 'pgwf'::regnamespace AND c.relname = name AND i.indisvalid)
    UNION ALL
    SELECT 'function', name FROM unnest($2::text[]) name WHERE NOT EXISTS (
        SELECT 1 FROM pg_proc p WHERE p.pronamespace = 'pgwf'::regnamespace AND p.proname = name)"""


class PostgresAdministration:
    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._url = url
        self._clock = clock
        self.place = Server(url, clock).place

    async def install(self) -> list[str]:
        async with self._server() as server:
            installation.refuse_newer(server, await self._version(server))
            remarks = await installation.install(server, notify=True)
        return ["notifications are on", *remarks]

    async def upgrade(self) -> list[str]:
        async with self._server() as server:
            version = await self._version(server)
            if version == VERSION:
                return []
            installation.refuse_newer(server, version)
            if version is None and not await _has_jobs(server):
                raise NoSuchStore(f"{self.place} has no pgwf schema: make it with `rescind db install`")
            return await installation.install(server)

    def script(self) -> str:
        return script()

    async def version(self) -> int | None:
        async with self._server() as server:
            return await self._version(server)

    async def facts(self) -> dict[str, Any]:
        async with self._installed() as server:
            (row,) = await server.fetch(_FACTS)
            return {
                "postgresql": row["postgresql"],
                "trace": row["trace"],
                "notify": row["notify"],
                "pg_cron": await _cron(server) if row["has_cron"] else "not installed",
            }

    async def check(self) -> list[str]:
        async with self._installed() as server:
            (row,) = await server.fetch(_FACTS)
            rows = await server.fetch(_MISSING, *_expected())
            problems = [f"{kind} pgwf.{name} is missing: run `rescind db install`" for kind, name in rows]
            if (offset := row["clock_offset"]) != "00:00:00":
                problems.append(
                    f"pgwf.settings.clock_offset is {offset}: it moves all times and is for tests"
                )
            return problems + await self._disagreements(server)

    async def _disagreements(self, server: Server) -> list[str]:
        try:
            return [_sentence(row) for row in await server.fetch(_CHECK)]
        except StoreReadOnly as problem:
            raise StoreReadOnly(
                f"this database user may not check {self.place}: connect as the schema's owner, or let it "
                "GRANT pgwf_operator to this user"
            ) from problem

    async def _version(self, server: Server) -> int | None:
        try:
            return await installation.installed_version(server)
        except StoreReadOnly as problem:
            raise StoreReadOnly(
                f"this database user may not use the schema pgwf in {self.place}: connect as its owner"
            ) from problem

    @asynccontextmanager
    async def _server(self) -> AsyncIterator[Server]:
        server = Server(self._url, self._clock)
        await server.open()
        try:
            yield server
        finally:
            await server.close()

    @asynccontextmanager
    async def _installed(self) -> AsyncIterator[Server]:
        async with self._server() as server:
            await self._version(server)
            await installation.ensure(server, create=False)
            yield server


async def _has_jobs(server: Server) -> bool:
    return bool((await server.fetch("SELECT to_regclass('pgwf.jobs') IS NOT NULL AS there"))[0]["there"])


async def _cron(server: Server) -> str:
    try:
        (row,) = await server.fetch(_CRON)
    except StoreReadOnly:
        return "not for this user to see"
    return "scheduled" if row["scheduled"] else "not scheduled by this user"  # nobody sees those of others


def _expected() -> tuple[list[str], list[str]]:
    """The names of the indexes and functions that the script makes."""
    text = script()
    indexes = re.findall(r"^CREATE (?:UNIQUE )?INDEX IF NOT EXISTS (\w+)", text, re.MULTILINE)
    return indexes, re.findall(r"^CREATE FUNCTION pgwf\.(\w+)", text, re.MULTILINE)


def _sentence(row: Any) -> str:
    return str(row["problem"]) if row["job_id"] is None else f"job {row['job_id']}: {row['problem']}"
