"""The PostgreSQL server of tests and benchmarks: it serves, it crashes when told to, it leaves nothing."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, LiteralString

import psycopg
import pytest

from rescind.testing.postgres import Database, Server, maintenance_url

TRIAL: Final = "CREATE TABLE trial (id int PRIMARY KEY)"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Shared, since it takes a moment to make; a test that stops it starts it again."""
    with Server() as server:
        yield server


def ask(url: str, question: LiteralString) -> object:
    """The first value of the answer, if there is one."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(question)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.mark.parametrize("version", [16, 18])
def test_it_serves_the_version_and_the_settings_asked_for(version: int) -> None:
    settings = {"work_mem": "5MB", "cluster_name": "it's ours"}

    with Server(version, fsync=True, settings=settings) as server:
        assert str(ask(server.url(), "SHOW server_version")).startswith(f"{version}.")
        assert ask(server.url(), "SHOW work_mem") == "5MB"
        assert ask(server.url(), "SHOW cluster_name") == "it's ours"
        assert ask(server.url(), "SHOW fsync") == "on"


def test_a_version_that_is_not_in_the_wheel_is_refused() -> None:
    with pytest.raises(ValueError, match="no PostgreSQL 9 in the wheel, only 16, 18"):
        Server(9)


def test_settings_that_do_not_work_are_explained_by_the_log_of_the_server() -> None:
    server = Server(settings={"shared_preload_libraries": "nothing_like_it"})

    with pytest.raises(RuntimeError, match="nothing_like_it"), server:
        pytest.fail("it started")

    assert not server.directory.exists()


def test_databases_are_apart_and_many_may_connect(server: Server) -> None:
    one, other = server.create_database("one"), server.create_database("other")
    ask(one, TRIAL)

    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(psycopg.connect(one))
            stack.enter_context(psycopg.connect(other))

        assert ask(one, "SELECT to_regclass('trial')::text") == "trial"
        assert ask(other, "SELECT to_regclass('trial')::text") is None


def test_a_crash_takes_everybody_along_and_keeps_what_was_committed(server: Server) -> None:
    # Given a committed row, and another in a transaction that is still open.
    url = server.create_database("crash")
    ask(url, TRIAL)
    ask(url, "INSERT INTO trial VALUES (1)")
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO trial VALUES (2)")

        # When the server crashes,
        server.kill()

        # Then nobody is left to talk to,
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        ask(url, "SELECT 1")

    # and after a new start there is what was committed.
    server.start()
    assert ask(url, "SELECT array_agg(id) FROM trial") == [1]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_it_stops_and_starts_again_at_the_same_place(server: Server, mode: str) -> None:
    url = server.create_database(mode)
    ask(url, TRIAL)

    server.stop(mode)
    server.start()

    assert ask(url, "SELECT count(*) FROM trial") == 0


def test_closing_leaves_nothing_whether_it_was_started_or_not() -> None:
    started, never_started = Server(), Server()
    started.start()

    started.close()
    never_started.close()

    assert not started.directory.exists()
    assert not never_started.directory.exists()
    with pytest.raises(psycopg.OperationalError):
        ask(started.url(), "SELECT 1")


def test_it_ends_with_its_owner_however_that_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        directory, url = owner.stdout.readline().split()
        assert ask(url, "SELECT 1") == 1

        owner.kill()

    wait_until(lambda: not Path(directory).exists())
    with pytest.raises(psycopg.OperationalError):
        ask(url, "SELECT 1")


OWNER: Final = """
import time
from rescind.testing.postgres import Server
server = Server()
server.start()
print(server.directory, server.url(), flush=True)
time.sleep(60)
"""


def test_all_processes_of_a_test_run_share_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESCIND_TEST_POSTGRES_URL", raising=False)
    script = "from rescind.testing.postgres import maintenance_url; print(maintenance_url())"
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]

    urls = {process.communicate(timeout=60)[0].strip() for process in processes}

    assert urls == {maintenance_url()}
    assert ask(maintenance_url(), "SELECT 1") == 1


def test_the_database_of_a_process_outlasts_the_end_of_its_connection() -> None:
    database = Database()
    ask(database.url, TRIAL)

    ask(database.url, END_ALL_OTHERS)
    database.execute("INSERT INTO trial VALUES (%s)", 1)

    assert ask(database.url, "SELECT count(*) FROM trial") == 1


END_ALL_OTHERS: Final = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def test_a_server_named_by_the_environment_is_used_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESCIND_TEST_POSTGRES_URL", "postgres://elsewhere/postgres")

    assert maintenance_url() == "postgres://elsewhere/postgres"


def test_without_a_run_nobody_would_end_a_shared_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESCIND_TEST_RUN", "RESCIND_TEST_POSTGRES_URL"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(RuntimeError, match="RESCIND_TEST_POSTGRES_URL"):
        maintenance_url()
