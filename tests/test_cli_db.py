"""`rescind db`: the store is made, brought up to date, printed, checked; and every mishap has its words."""

import asyncio
import json
import re
import sqlite3
import tomllib
import uuid
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from rescind import sync
from rescind.cli.app import run
from rescind.engine import open_administration
from tests.databases import fresh_database, psql

ROOT = Path(__file__).parent.parent
SQL = ROOT / "src/rescind/engines/postgres/sql"

Answer = tuple[int, str, str]  # exit code, stdout, stderr
Rescind = Callable[..., Answer]


@pytest.fixture
def rescind(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Rescind:
    for name in ("RESCIND_URL", "RESCIND_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as left:
            run(arguments)
        said = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, said.out, said.err

    return call


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


@pytest.fixture
def installed(url: str) -> str:
    asyncio.run(open_administration(url).install())
    return url


def execute(url: str, statement: LiteralString | sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def facts(rescind: Rescind, url: str) -> dict[str, object]:
    _, out, _ = rescind("db", "check", "--json", "--url", url)
    found: dict[str, object] = json.loads(out)
    return found


def shown(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


# install and upgrade


def test_install_says_what_it_made_and_what_the_server_remarked(rescind: Rescind, url: str) -> None:
    code, out, err = rescind("db", "install", "--url", url)
    assert (code, err) == (0, "")
    first, *remarks = out.splitlines()
    assert first == f"{shown(url)}: version 1 installed"
    assert "  notifications are on" in remarks

    code, out, _ = rescind("db", "install", "--json", "--url", url)
    told = json.loads(out)
    assert (code, told["place"], told["before"], told["version"]) == (0, shown(url), 1, 1)
    assert [f"  {remark}" for remark in told["remarks"]] == remarks


def test_install_keeps_what_is_stored_and_turns_notifications_on(rescind: Rescind, url: str) -> None:
    psql(url, rescind("db", "sql")[1])
    with sync.connect(url) as queue:
        queue.submit("resize", {"width": 80}, id="cat")
    before = facts(rescind, url)

    assert rescind("db", "install", "--url", url)[0] == 0

    assert (before["trace"], before["notify"]) == (True, False)
    assert facts(rescind, url)["notify"] is True
    with sync.connect(url) as queue:
        assert queue.get("cat").input == {"width": 80}


def test_upgrade_moves_an_older_schema_and_leaves_its_switches_alone(
    rescind: Rescind, installed: str
) -> None:
    execute(installed, "UPDATE pgwf.settings SET schema_version = 0, notify = false, trace = false")
    assert "run `rescind db upgrade`" in rescind("list", "--url", installed)[2]

    code, out, err = rescind("db", "upgrade", "--url", installed)

    assert (code, err) == (0, "") and out.startswith(f"{shown(installed)}: version 0 is now version 1\n")
    told = facts(rescind, installed)
    assert (told["version"], told["notify"], told["trace"]) == (1, False, False)
    assert rescind("db", "upgrade", "--url", installed)[1].endswith("at version 1 already, nothing to do\n")


def test_what_is_not_there_is_neither_upgraded_nor_checked(
    rescind: Rescind, url: str, tmp_path: Path
) -> None:
    for command in ("upgrade", "check"):
        code, out, err = rescind("db", command, "--url", url)
        assert (code, out) == (3, "") and "has no pgwf schema: make it with `rescind db install`" in err
        code, out, err = rescind("db", command, "--url", f"sqlite://{tmp_path}/jobs.db")
        assert (code, out) == (3, "") and "there is no queue at" in err
    assert [*tmp_path.iterdir()] == []


# sql


def test_the_script_is_its_sources_and_needs_no_server(rescind: Rescind) -> None:
    code, out, err = rescind("db", "sql")
    sources = [path.read_text() for path in sorted(SQL.glob("*.sql"))]
    assert (code, err) == (0, "")
    assert out == "\n".join(sources)
    assert json.loads(rescind("db", "sql", "--json")[1]) == {"sql": out}


def test_the_script_travels_with_the_package() -> None:
    """The wheel takes the whole directory, unless git ignores some of it."""
    packaged = resources.files("rescind.engines.postgres") / "sql"
    assert {each.name for each in packaged.iterdir()} == {path.name for path in SQL.iterdir()}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"] == {"packages": ["src/rescind"]} and "/src" in build["sdist"]["include"]
    assert not re.search(r"\.sql\b|^src", (ROOT / ".gitignore").read_text(), re.MULTILINE)


def test_the_script_runs_under_psql_as_often_as_one_likes(rescind: Rescind, url: str) -> None:
    script = rescind("db", "sql")[1]
    for _ in range(2):
        psql(url, script)
    code, out, _ = rescind("db", "check", "--url", url)
    assert code == 0 and ", trace on, notify off," in out


def test_the_script_of_another_store_is_to_be_had_by_its_scheme(rescind: Rescind) -> None:
    schema = (ROOT / "src/rescind/engines/sqlite/schema.sql").read_text()
    assert rescind("db", "sql", "--url", "sqlite:")[1] == schema
    assert rescind("--url", "sqlite:jobs.db", "db", "sql")[1] == schema


# check


def test_check_tells_how_it_is_set_up_and_that_nothing_is_wrong(rescind: Rescind, installed: str) -> None:
    code, out, err = rescind("db", "check", "--url", installed)
    assert (code, err) == (0, "")
    line, verdict = out.splitlines()
    assert re.fullmatch(r".*: version 1, postgresql [\d.]+, trace on, notify on, pg_cron [a-z ]+", line)
    assert verdict == "nothing wrong with it"
    assert facts(rescind, installed)["problems"] == []


def test_check_names_each_problem_on_a_line_and_exits_with_1(rescind: Rescind, installed: str) -> None:
    with sync.connect(installed) as queue:
        queue.submit("resize", id="cat")
    execute(installed, "UPDATE pgwf.jobs SET stage = 'waiting'")
    execute(installed, "UPDATE pgwf.settings SET clock_offset = '5 min'")
    execute(installed, "DROP INDEX pgwf.jobs_ready")
    execute(installed, "DROP FUNCTION pgwf.list_workers")
    execute(installed, "INSERT INTO pgwf.accounts VALUES ('acme', 0, 7)")

    code, out, _ = rescind("db", "check", "--url", installed)

    assert code == 1
    assert out.splitlines()[1:] == [
        "index pgwf.jobs_ready is missing: run `rescind db install`",
        "function pgwf.list_workers is missing: run `rescind db install`",
        "pgwf.settings.clock_offset is 00:05:00: it moves all times and is for tests",
        "job cat: stage is waiting, its facts say ready",
        "account of acme has 7 reserved, its jobs hold 0",
        "5 problems found",
    ]
    assert facts(rescind, installed)["problems"] == out.splitlines()[1:-1]


@pytest.mark.race
async def test_a_check_is_not_misled_by_jobs_that_come_while_it_looks(url: str) -> None:
    administration = open_administration(url)
    await administration.install()

    async def submit(name: str) -> None:
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        async with connection:
            for number in range(200):
                await connection.execute("SELECT pgwf.submit_job(%s, 'me', 'resize')", [f"{name}-{number}"])

    async with asyncio.TaskGroup() as group:
        submitting = [group.create_task(submit(name)) for name in "abcd"]
        while not all(each.done() for each in submitting):
            assert await administration.check() == []


# What can go wrong

AWAY = [
    ("postgres://u:secret@127.0.0.1:1/app", 3, "127.0.0.1"),
    ("postgres://u:secret@no.such.host.invalid/app", 3, ""),
    ("postgre://u:secret@localhost/app", 2, "no engine for 'postgre'"),
    ("host=localhost password=secret", 2, "no engine for 'host'"),
    ("postgres://u:secret@localhost:port/app", 2, "the port in the URL must be a number"),
    ("postgres://u:se/cret@localhost/app", 2, "percent-encode the password"),
    ("postgres://u:se#cret@localhost/app", 2, "percent-encode the password"),
    ("postgres://u:se?cret@localhost/app", 2, "percent-encode the password"),
    ("postgres://u:secret", 2, "the port in the URL"),
    ("postgres://u:secret@[::1/app", 2, "cannot be read"),
]


@pytest.mark.parametrize("command", ["install", "upgrade", "check"])
@pytest.mark.parametrize(("url", "code", "words"), AWAY, ids=[url for url, _, _ in AWAY])
def test_a_server_that_is_away_and_a_url_that_is_none_are_explained_without_the_password(
    rescind: Rescind, command: str, url: str, code: int, words: str
) -> None:
    left, out, err = rescind("db", command, "--url", url)
    assert (left, out) == (code, "")
    assert words in err and "cret" not in err and err.count("\n") == 1


def test_a_database_that_is_not_there_is_named(rescind: Rescind, url: str) -> None:
    code, _, err = rescind("db", "install", "--url", f"{url}_gone")
    assert code == 3 and "_gone" in err and "does not exist" in err


def test_a_newer_schema_is_left_alone(rescind: Rescind, installed: str) -> None:
    execute(installed, "UPDATE pgwf.settings SET schema_version = 99")
    for command in ("install", "upgrade", "check"):
        code, out, err = rescind("db", command, "--url", installed)
        assert (code, out) == (3, "") and "has pgwf version 99, this rescind knows 1: upgrade rescind" in err


@pytest.fixture
def user(installed: str) -> Iterator[Callable[[LiteralString], str]]:
    """A database user with these roles, by the URL to connect as them."""
    name = f"rescind_test_{uuid.uuid4().hex[:12]}"
    parts = urlsplit(installed)
    netloc = f"{name}:secret@{parts.netloc.rpartition('@')[2]}"

    def make(roles: LiteralString) -> str:
        create: LiteralString = "CREATE ROLE {} LOGIN PASSWORD 'secret' "
        execute(installed, sql.SQL(create + roles).format(sql.Identifier(name)))
        return parts._replace(netloc=netloc).geturl()

    yield make
    execute(installed, sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_user_without_rights_is_told_whom_to_ask(
    rescind: Rescind, user: Callable[[LiteralString], str]
) -> None:
    url = user("")
    for command in ("install", "upgrade", "check"):
        code, out, err = rescind("db", command, "--url", url)
        assert (code, out) == (3, "") and "may not use the schema pgwf" in err and "owner" in err


def test_an_operator_may_check_and_not_install(
    rescind: Rescind, user: Callable[[LiteralString], str]
) -> None:
    url = user("IN ROLE pgwf_operator")
    assert rescind("db", "check", "--url", url)[0] == 0
    code, _, err = rescind("db", "install", "--url", url)
    assert code == 3 and "let its owner run `rescind db install`" in err


def test_an_observer_is_told_what_a_check_takes(
    rescind: Rescind, user: Callable[[LiteralString], str]
) -> None:
    code, _, err = rescind("db", "check", "--url", user("IN ROLE pgwf_observer"))
    assert code == 3 and "GRANT pgwf_operator" in err


# SQLite


def test_a_file_is_made_and_found_to_be_sound(rescind: Rescind, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "jobs.db"
    url = f"sqlite://{path}"
    assert rescind("db", "install", "--url", url) == (0, f"{path}: version 1 installed\n", "")
    assert rescind("db", "install", "--url", url) == (0, f"{path}: version 1 is in place\n", "")
    assert rescind("db", "upgrade", "--url", url)[1].endswith("is at version 1 already, nothing to do\n")
    code, out, _ = rescind("db", "check", "--url", url)
    assert code == 0
    assert out == f"{path}: version 1, sqlite {sqlite3.sqlite_version}\nnothing wrong with it\n"


def test_a_file_whose_stages_and_accounts_are_wrong_is_told_apart(rescind: Rescind, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    with sync.connect(url) as queue:
        for need in ("a", "b"):
            queue.submit(need, id=need, singleton_key="k", delay_seconds=0)
        queue.credit("acme", 10)
        queue.submit("c", id="c", owner="acme", estimate=4)
    assert rescind("db", "check", "--url", url)[0] == 0
    with sqlite3.connect(tmp_path / "jobs.db") as file:
        file.execute("UPDATE jobs SET stage = 'leased' WHERE id = 'a'")
        file.execute("UPDATE accounts SET reserved = 5")

    code, out, _ = rescind("db", "check", "--url", url)

    assert code == 1
    assert out.splitlines()[1:] == [
        "job a: stage is leased, its facts say parked",
        "account of acme has 5 reserved, its jobs hold 4",
        "2 problems found",
    ]


def test_a_damaged_file_and_one_that_is_not_ours_are_no_queues(rescind: Rescind, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    with sync.connect(url) as queue:
        queue.submit_many([{"need": "resize", "input": "x" * 500} for _ in range(200)])
    with (tmp_path / "jobs.db").open("r+b") as file:
        file.seek(40_000)
        file.write(b"\xff" * 8000)
    code, out, _ = rescind("db", "check", "--url", url)
    assert code == 1 and "nothing wrong" not in out

    (tmp_path / "empty.db").touch()
    code, _, err = rescind("db", "check", "--url", f"sqlite://{tmp_path}/empty.db")
    assert code == 3 and "is empty: make the queue with `rescind db install`" in err

    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE theirs (id)")
    for command in ("install", "check"):
        code, _, err = rescind("db", command, "--url", f"sqlite://{tmp_path}/other.db")
        assert code == 3 and "not one of rescind's" in err


def test_memory_and_nothing_are_no_files(rescind: Rescind) -> None:
    for url in ("sqlite:", "sqlite://:memory:"):
        for command in ("install", "upgrade", "check"):
            code, _, err = rescind("db", command, "--url", url)
            assert code == 2 and "this needs a file" in err


# The group


def test_db_alone_shows_its_help_and_passes_its_options_on(rescind: Rescind, tmp_path: Path) -> None:
    code, out, _ = rescind("db")
    assert code == 2 and "install" in out and "upgrade" in out
    url = f"sqlite://{tmp_path}/jobs.db"
    assert json.loads(rescind("db", "--json", "--url", url, "install")[1])["version"] == 1
    assert json.loads(rescind("--json", "--url", url, "db", "check")[1])["problems"] == []
