"""Which SQLite files are opened and how: new ones, old ones, strangers', damaged ones."""

import random
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from rescind.engine import Claim, Filter, open_engine
from rescind.engines.sqlite import connection as connections
from rescind.engines.sqlite.engine import SQLiteEngine
from rescind.errors import StoreClosed, StoreCorrupt, StoreReadOnly, StoreTooNew, Unavailable
from rescind.testing.record import jobs_of
from tests.sqlite_files import filled, job, opened

DAY: Final = timedelta(days=1)


async def refused(path: Path | str) -> Unavailable:
    """How opening this file ends."""
    with pytest.raises(Unavailable) as caught:
        async with opened(path):
            pass
    return caught.value


# Opening


def test_a_url_names_the_file() -> None:
    for url, path in (
        ("sqlite:///tmp/a.db", "/tmp/a.db"),
        ("sqlite:a.db", "a.db"),
        ("SQLite:/tmp/a.db", "/tmp/a.db"),
        ("sqlite:///tmp/a b%20.db", "/tmp/a b%20.db"),
        ("sqlite://:memory:", ":memory:"),
    ):
        engine = open_engine(url)
        assert isinstance(engine, SQLiteEngine) and engine.path == path


async def test_a_missing_directory_is_created(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet" / "queue.db"
    async with opened(path) as engine:
        await engine.submit([job("one")])
    assert path.exists()


@pytest.mark.parametrize(
    "name", ["with space.db", "per%20cent.db", "what?mode=ro.db", "#1.db", "züri-鴨.db", "a'b.db"]
)
async def test_any_file_name_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path / name) as engine:
        await engine.submit([job("one")])
    assert (tmp_path / name).exists()


async def test_what_was_submitted_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    await filled(path)
    async with opened(path) as engine:
        assert len(await jobs_of(engine)) == 500


async def test_installing_twice_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db") as engine:
        await engine.submit([job("one")])
        await engine.install()
        assert (await engine.get(["one"]))[0] is not None


async def test_an_empty_file_becomes_a_queue(tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    async with opened(tmp_path / "queue.db") as engine:
        await engine.submit([job("one")])


async def test_an_engine_that_was_not_opened_or_was_closed_says_so(tmp_path: Path) -> None:
    engine = SQLiteEngine(str(tmp_path / "queue.db"))
    with pytest.raises(StoreClosed, match=r"queue\.db is not open"):
        await engine.submit([job("one")])
    await engine.install()
    await engine.close()
    for call in (engine.submit([job("one")]), engine.get(["one"]), engine.sweep(limit=1, retention=DAY)):
        with pytest.raises(StoreClosed, match=r"queue\.db"):
            await call


async def test_acknowledged_means_on_disk(tmp_path: Path) -> None:
    with closing(connections.connect(str(tmp_path / "queue.db"), 1)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


# Files that are not ours, or not ours any more


async def test_a_file_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    await filled(path)
    with closing(sqlite3.connect(path)) as newer:
        newer.execute(f"PRAGMA user_version = {connections.SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    problem = await refused(path)
    assert isinstance(problem, StoreTooNew)
    assert f"{path} was written by a newer rescind" in str(problem) and "upgrade rescind" in str(problem)
    assert path.read_bytes() == before


async def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "addresses.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE jobs (id INTEGER, name TEXT)")
        other.execute("INSERT INTO jobs VALUES (1, 'Ann')")
        other.commit()
    before = path.read_bytes()
    problem = await refused(path)
    assert isinstance(problem, StoreCorrupt)
    assert str(problem) == f"{path} is a SQLite database, but not one of rescind's: choose another file"
    assert path.read_bytes() == before
    assert not path.with_name("addresses.db-wal").exists()


@pytest.mark.parametrize("size", [100, 4096, 100_000])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, size: int) -> None:
    path = tmp_path / "holiday.jpg"
    before = random.Random(size).randbytes(size)
    path.write_bytes(before)
    problem = await refused(path)
    assert isinstance(problem, StoreCorrupt)
    assert str(path) in str(problem)
    assert path.read_bytes() == before


async def test_a_damaged_file_is_reported_as_damaged_by_whatever_meets_the_damage(tmp_path: Path) -> None:
    # Given a queue with noise in the pages where its jobs begin
    path = tmp_path / "queue.db"
    await filled(path)
    with closing(sqlite3.connect(path)) as database:
        pages = database.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'jobs'").fetchall()
    body = bytearray(path.read_bytes())
    for (page,) in pages:
        body[(page - 1) * 4096 : page * 4096] = random.Random(page).randbytes(4096)
    path.write_bytes(body)
    # When it is used, then every way in says the same
    async with opened(path) as engine:
        claim = Claim(worker="w", needs=("work",), limit=5, lease_seconds=60)
        for call in (
            engine.list(Filter(), limit=1000),
            engine.submit([job("new")]),
            engine.settle([], claim),
            engine.count(Filter()),
        ):
            with pytest.raises(StoreCorrupt, match=r"queue\.db is damaged"):
                await call


async def test_a_truncated_file_is_reported_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    await filled(path)
    path.write_bytes(path.read_bytes()[: 4096 * 3 + 100])
    with pytest.raises(StoreCorrupt):
        async with opened(path) as engine:
            await engine.submit([job("new")])


async def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert isinstance(await refused(tmp_path), StoreReadOnly)


async def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problem = await refused(tmp_path / "file" / "queue.db")
    assert isinstance(problem, StoreReadOnly)
    assert "cannot be created" in str(problem)
