"""pg_cron, for real, on Debian's PostgreSQL: used where it can be, and not missed where it cannot."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rescind import connect
from rescind.engines.postgres.administration import PostgresAdministration
from rescind.testing.postgres import Server
from tests.postgres.database import execute
from tests.postgres.debian import file

BINARIES: Final = Path("/usr/lib/postgresql/15/bin")
CONTROL: Final = Path("/usr/share/postgresql/15/extension/pg_cron.control")
DATABASE: Final = "with_cron"
JOBS: Final = "SELECT jobname, schedule, command, database, active FROM cron.job"


def debian(**settings: str) -> Server:
    file(CONTROL, "postgresql-15 postgresql-15-cron")
    return Server(binaries=BINARIES, settings=settings)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """With pg_cron in one of its databases."""
    settings = {
        "shared_preload_libraries": "pg_cron",
        "cron.database_name": DATABASE,
        "cron.use_background_workers": "on",
    }
    with debian(**settings) as server:
        server.create_database(DATABASE)
        yield server


async def install(url: str) -> str:
    """What the server remarked."""
    return "\n".join(await PostgresAdministration(url).install())


def works(url: str) -> bool:
    """Can a job be cancelled and archived by hand?"""
    execute(url, "SELECT pgwf.submit_job('by-hand', 'tester', 'work')")
    execute(url, "SELECT pgwf.cancel_job('by-hand', 'tester')")
    return execute(url, "SELECT pgwf.archive_cancelled_jobs('tester')") == [(1,)]


async def test_installing_twice_leaves_one_schedule(server: Server) -> None:
    url = server.url(DATABASE)
    assert "pg_cron" not in await install(url)
    assert "pg_cron" not in await install(url)
    command = "SELECT pgwf.archive_cancelled_jobs('pgwf-cron', 500);"
    assert execute(url, JOBS) == [("pgwf_archive_cancelled", "* * * * *", command, DATABASE, True)]
    assert (await PostgresAdministration(url).facts())["pg_cron"] == "scheduled"


async def test_a_schedule_that_somebody_changed_is_put_right(server: Server) -> None:
    url = server.url(DATABASE)
    await install(url)
    execute(url, "SELECT cron.schedule('pgwf_archive_cancelled', '0 0 1 1 *', 'SELECT 1')")
    await install(url)
    assert [row[1] for row in execute(url, JOBS)] == ["* * * * *"]


@pytest.mark.cron
async def test_it_archives_a_cancelled_job_within_the_minute(server: Server) -> None:
    """The one test that waits for the clock: nobody can move that of pg_cron."""
    url = server.url(DATABASE)
    await install(url)
    async with connect(url) as queue:
        # Given a cancelled job, another that waits for it, and no worker anywhere
        job = await queue.submit("work")
        behind = await queue.submit("work", wait_for=[job.id])
        await queue.cancel(job.id)
        # When the minute is full
        deadline = time.monotonic() + 75
        while (ended := await queue.get(job.id)).archived_at is None:
            assert time.monotonic() < deadline, "pg_cron did not come by"
            await asyncio.sleep(0.1)
        # Then it has been archived, by pg_cron, and the other may run
        assert ended.status == "cancelled"
        assert [(event.verb, event.actor) for event in await queue.history(job.id)][-1] == (
            "archive",
            "pgwf-cron",
        )
        assert (await queue.get(behind.id)).wait_for == ()


async def test_another_database_than_that_of_pg_cron(server: Server) -> None:
    url = server.create_database("without_cron")
    said = await install(url)
    assert "pg_cron is not used (can only create extension in database with_cron)" in said
    assert works(url)


async def test_a_role_that_may_not_create_extensions(server: Server) -> None:
    execute(server.url(), "CREATE ROLE ann LOGIN")
    url = server.create_database("of_ann")
    execute(url, "GRANT CREATE ON DATABASE of_ann TO ann")
    said = await install(url.replace("postgres@", "ann@"))
    assert "pg_cron is not used (permission denied to create extension" in said
    assert works(url)


async def test_a_role_that_may_not_use_it(server: Server) -> None:
    url = server.url(DATABASE)
    execute(url, "CREATE EXTENSION IF NOT EXISTS pg_cron")
    execute(url, "DROP SCHEMA IF EXISTS pgwf CASCADE")
    execute(url, "CREATE ROLE eve LOGIN")
    execute(url, f"GRANT CREATE ON DATABASE {DATABASE} TO eve")
    said = await install(url.replace("postgres@", "eve@"))
    assert "pg_cron is not used (permission denied for schema cron)" in said
    assert works(url)
    execute(url, "DROP SCHEMA pgwf CASCADE")


async def test_where_its_files_are_there_but_it_is_not_preloaded() -> None:
    with debian() as server:
        url = server.create_database("queue")
        said = await install(url)
        assert "pg_cron is not used (" in said and "pgwf.archive_cancelled_jobs" in said
        assert works(url)
        assert execute(url, "SELECT 1 FROM pg_extension WHERE extname = 'pg_cron'") == []


async def test_where_it_is_not_there_at_all() -> None:
    with Server() as server:
        url = server.create_database("queue")
        said = await install(url)
        assert "pg_cron is not available here" in said and "pgwf.archive_cancelled_jobs" in said
        assert works(url)
        assert (await PostgresAdministration(url).facts())["pg_cron"] == "not installed"
