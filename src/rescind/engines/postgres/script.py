"""The schema as one script: the files under `sql/`, in the order of their names."""

from importlib.resources import files
from typing import Final

VERSION: Final = 1  # of the schema; `sql/10_tables.sql` writes it down


def script() -> str:
    """Idempotent, in one transaction, and plain enough for `psql -f`."""
    directory = files("rescind.engines.postgres") / "sql"
    parts = sorted(
        (part for part in directory.iterdir() if part.name.endswith(".sql")), key=lambda part: part.name
    )
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)
