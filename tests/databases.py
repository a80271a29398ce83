"""Databases of a test's own on the server of the run, and psql to use them with."""

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from rescind.testing.postgres import create_database, maintenance_url, wheel_binaries


@contextmanager
def fresh_database() -> Iterator[str]:
    """The URL of an empty one, which goes afterwards."""
    name = f"rescind_test_{uuid.uuid4().hex[:12]}"
    yield create_database(maintenance_url(), name)
    with psycopg.connect(maintenance_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def psql(url: str, script: str) -> str:
    """What psql prints for a script, a row per line and nothing else; the first error is the end of it."""
    command = [str(wheel_binaries(16) / "psql"), "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", url]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
