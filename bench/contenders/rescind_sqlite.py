"""rescind on SQLite, as a contender: the default settings, each store in a file of its own."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.contenders import rescind_claims
from bench.contenders.place import Place
from bench.contenders.protocol import serve
from bench.contenders.rescind_measures import PAYLOAD, Measures, versions
from rescind import Settings


@contextmanager
def _store(place: Place) -> Iterator[str]:
    home = Path(tempfile.mkdtemp(dir=place.directory))
    try:
        yield f"sqlite://{home / 'rescind.db'}"
    finally:
        shutil.rmtree(home)


def _about() -> dict[str, Any]:
    return {
        "versions": {**versions(), "sqlite": sqlite3.sqlite_version},
        "settings": {
            "synchronous": "FULL",
            "journal_mode": "wal",
            "payload": PAYLOAD,
            "lease_seconds": Settings().lease_seconds,
            "history": "every move is recorded",
        },
    }


def main() -> None:
    serve(_about(), {**Measures(_store).named(), **rescind_claims.MEASURES})


if __name__ == "__main__":
    main()
