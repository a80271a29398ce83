"""The PostgreSQL server of a run: started for it alone, durable, and otherwise much as it comes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.conditions import mount
from bench.contenders.place import Server
from rescind.testing import postgres

VERSION = (
    16  # 18 can skip through an index that does not fit a query, which hides that a better one is missing
)
SETTINGS = {
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",  # else checkpoints, and not the queues, decide what bulk writes cost
    "max_connections": "200",
}


@contextmanager
def started() -> Iterator[tuple[Server, dict[str, Any]]]:
    """The server, and what is to be said about it."""
    with postgres.Server(VERSION, fsync=True, settings=SETTINGS) as server:
        pid = int((server.directory / "data" / "postmaster.pid").read_text().split()[0])
        yield Server(server.url("").rstrip("/"), pid), _about(server.url(), server.directory)


def _about(url: str, directory: Path) -> dict[str, Any]:
    names = ("server_version", "fsync", *SETTINGS, "autovacuum", "wal_sync_method")
    with psycopg.connect(url) as connection:
        found = [connection.execute("SELECT current_setting(%s)", (name,)).fetchone() for name in names]
    told = {name: row[0] for name, row in zip(names, found, strict=True) if row}
    return {"version": told.pop("server_version"), "settings": told, **mount(directory)}
