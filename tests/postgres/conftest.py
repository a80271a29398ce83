"""What tests of the PostgreSQL engine may ask for: a store of its own, and a queue on it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from rescind import Queue
from rescind.settings import Settings
from rescind.testing import Harness
from rescind.testing.engines import Postgres


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cron: waits for pg_cron, which comes by once a minute")


@pytest.fixture
def harness(runner: asyncio.Runner, tmp_path: Path) -> Iterator[Harness]:
    """An empty database. Whatever the test did there must obey the invariants."""
    harness = Harness(Postgres(tmp_path))
    runner.run(harness.open())
    try:
        yield harness
        assert runner.run(harness.violations()) == []
        assert disagreements(harness.store.url) == []
    finally:
        runner.run(harness.close())


@pytest.fixture
def url(harness: Harness) -> str:
    """Of that database."""
    assert harness.store.url is not None
    return harness.store.url


@pytest.fixture
def queue(harness: Harness) -> Queue:
    """On the engine of the harness."""
    return Queue(harness.engine, Settings(), by="test")


def disagreements(url: str | None) -> list[tuple[object, ...]]:
    """Where the schema disagrees with itself."""
    assert url is not None
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT * FROM pgwf.check()").fetchall()
