"""The script: over nothing and over itself, on every server, by whoever may run it."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg import sql

from rescind.engines.postgres.script import script
from rescind.testing.postgres import Server, wheel_binaries
from tests.pgwf.client import Client
from tests.pgwf.databases import description, temporary_database, works
from tests.pgwf.first_version import make_first_version

DEBIAN: Final = Path("/usr/lib/postgresql/15/bin")
ROLES: Final = ("pgwf_producer", "pgwf_worker", "pgwf_operator", "pgwf_observer")

Open = Callable[[str], Client]


@pytest.fixture
def open() -> Iterator[Open]:
    """Opens sessions, and closes them in the end."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(Client(url)))


@pytest.fixture
def url() -> Iterator[str]:
    """An empty database of this test alone."""
    with temporary_database() as url:
        yield url


@pytest.fixture
def db(url: str, open: Open) -> Client:
    return open(url)


# Once and again


def test_a_second_run_leaves_everything_as_it_is(db: Client) -> None:
    # Given a schema that is in use,
    db.rows(script())
    db.submit("a", p_singleton_key="key")
    db.held("b", "other")
    db.completed("c", "another")
    db.rows("SELECT pgwf.set_trace(FALSE); SELECT pgwf.set_notify(TRUE)")
    before = (description(db), db.contents())

    # When the script is run over it,
    db.rows(script())

    # Then nothing has changed.
    assert (description(db), db.contents()) == before
    works(db)


def test_there_is_one_overload_per_name_after_any_number_of_runs(db: Client) -> None:
    db.rows(script())
    db.rows("CREATE FUNCTION pgwf.cancel_job(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT $1'")

    db.rows(script())

    twice = (
        "SELECT proname FROM pg_proc WHERE pronamespace = 'pgwf'::regnamespace GROUP BY 1 HAVING count(*) > 1"
    )
    assert db.rows(twice) == []


def psql() -> str:
    return shutil.which("psql") or str(wheel_binaries(16) / "psql")


def test_psql_runs_the_file_twice(url: str, db: Client, tmp_path: Path) -> None:
    file = tmp_path / "pgwf.sql"
    file.write_text(script(), encoding="utf-8")
    command = [psql(), "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", "-f", str(file), url]

    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    works(db)


def test_four_who_install_at_once_all_succeed(url: str, open: Open) -> None:
    sessions = [open(url) for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda session: session.rows(script()), sessions))

    works(sessions[0])


def test_a_newer_schema_is_left_alone(db: Client) -> None:
    # Given a schema from the future,
    db.rows(script())
    db.rows("UPDATE pgwf.settings SET schema_version = 2")
    db.submit("a")
    before = (description(db), db.contents())

    # When this script is run over it, then it refuses and changes nothing.
    with pytest.raises(psycopg.Error, match="pgwf version 2, newer than this script") as caught:
        db.rows(script())
    db.connection.rollback()

    assert caught.value.sqlstate == "PW013"
    assert (description(db), db.contents()) == before


def test_a_run_that_fails_has_changed_nothing(db: Client) -> None:
    """Everything is one transaction: here something of somebody else's is in the way."""
    make_first_version(db, "TEXT", cancelling=False)
    db.rows("CREATE VIEW public.mine AS SELECT job_id FROM pgwf.jobs_with_status")
    before = (description(db), db.contents())

    with pytest.raises(psycopg.Error, match="depend"):
        db.rows(script())
    db.connection.rollback()

    assert (description(db), db.contents()) == before


# On other servers, and by others


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(lambda: Server(18), id="18"),
        pytest.param(
            lambda: Server(binaries=DEBIAN),
            id="15",
            marks=pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's PostgreSQL 15 is not installed"),
        ),
    ],
)
def test_it_runs_on_other_versions(server: Callable[[], Server], open: Open) -> None:
    with server() as running:
        db = open(running.create_database("jobs"))
        db.rows(script())
        db.rows(script())
        works(db)

        # Where pg_cron is installed but not loaded, as on Debian's, there is a remark.
        assert cron_remarks(db)

        old = open(running.create_database("old"))
        make_first_version(old, "UUID", cancelling=True)
        old.rows(script())
        assert old.call("check") == []
        works(old)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server on which nobody has installed anything, so that the roles do not exist yet."""
    with Server() as server:
        yield server


def test_an_owner_who_may_not_create_roles_is_told_and_gets_the_rest(server: Server, open: Open) -> None:
    # Given a user who owns a database and may do nothing else,
    admin = open(server.url())
    admin.rows("CREATE ROLE plain LOGIN")
    admin.rows("CREATE DATABASE plain OWNER plain")
    url = psycopg.conninfo.make_conninfo(server.url("plain"), user="plain")

    # When they run the script, then they are told what they could not have,
    db = open(url)
    db.rows(script())
    for role in ROLES:
        assert (
            f"role {role} could not be created: ask an administrator for it and run this again" in db.remarks
        )
    works(db)

    # and get it by running it again once an administrator has helped.
    for role in ROLES:
        admin.rows(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    db.remarks.clear()
    db.rows(script())
    assert not [remark for remark in db.remarks if remark.startswith("role ")]
    assert db.value("SELECT has_function_privilege('pgwf_worker', 'pgwf.get_work'::regproc, 'EXECUTE')")


def test_who_may_not_create_a_schema_is_refused(server: Server, open: Open) -> None:
    server.create_database("closed")
    open(server.url()).rows("CREATE ROLE nobody_special LOGIN")
    db = open(psycopg.conninfo.make_conninfo(server.url("closed"), user="nobody_special"))

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.rows(script())


# Extensions


def test_without_pg_cron_and_pgcrypto_there_is_a_notice_and_no_failure(db: Client) -> None:
    """The server of the tests has neither."""
    if db.rows("SELECT 1 FROM pg_available_extensions WHERE name = 'pg_cron'"):
        pytest.skip("this server has pg_cron")

    db.rows(script())

    assert [remark for remark in db.remarks if remark.startswith("pg_cron is not available here")]
    works(db)


def cron_remarks(db: Client) -> list[str]:
    return [remark for remark in db.remarks if "pg_cron" in remark]


@pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's PostgreSQL 15 is not installed")
def test_with_pg_cron_the_archival_is_scheduled_once_however_often_it_is_installed(open: Open) -> None:
    cron = {"shared_preload_libraries": "pg_cron", "cron.database_name": "jobs"}
    with Server(binaries=DEBIAN, settings=cron) as server:
        db, other = open(server.create_database("jobs")), open(server.create_database("other"))
        if not db.rows("SELECT 1 FROM pg_available_extensions WHERE name = 'pg_cron'"):
            pytest.skip("postgresql-15-cron is not installed")

        # Given a database that pg_cron serves, when the script is run twice, then there is one schedule.
        db.rows(script())
        db.rows(script())
        (job,) = db.rows("SELECT * FROM cron.job")
        assert (job["jobname"], job["schedule"], job["database"]) == (
            "pgwf_archive_cancelled",
            "* * * * *",
            "jobs",
        )
        assert cron_remarks(db) == []
        assert db.rows("SELECT 1 FROM pg_extension WHERE extname = 'pgcrypto'")

        # Its command archives what was cancelled.
        db.submit("a")
        db.cancel("a")
        db.connection.execute(job["command"].encode())
        assert db.archived("a")["outcome"] == "CANCELLED"
        assert db.trace("job_cancel_archived")[0]["worker_id"] == "pgwf-cron"

        # In a database that it does not serve there is a remark, and all the rest.
        other.rows(script())
        assert cron_remarks(other)
        works(other)

        # And so there is for an owner who may not create it.
        db.rows("CREATE ROLE plain LOGIN; DROP EXTENSION pg_cron; DROP SCHEMA pgwf CASCADE")
        db.rows("GRANT CREATE ON DATABASE jobs TO plain")
        plain = open(psycopg.conninfo.make_conninfo(server.url("jobs"), user="plain"))
        plain.rows(script())
        assert cron_remarks(plain)
        works(plain)
