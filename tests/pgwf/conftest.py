"""Sessions on a database of this process that has the schema and no jobs."""

import functools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from rescind.engines.postgres.script import script
from rescind.testing.engines import Postgres
from rescind.testing.postgres import own_database
from tests.pgwf.client import Client, Connect


@functools.cache
def _install() -> None:
    with closing(Client(own_database().url)) as client:
        if client.value("SELECT to_regclass('pgwf.settings')") is None:
            client.rows(script())


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An empty database as the bare script leaves it: tracing, and notifying nobody."""
    _install()
    Postgres(tmp_path)  # whose making empties the database of this process
    own_database().execute("UPDATE pgwf.settings SET notify = false")
    return own_database().url


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    with ExitStack() as sessions:
        yield lambda: sessions.enter_context(closing(Client(url)))


@pytest.fixture
def db(connect: Connect) -> Client:
    return connect()
