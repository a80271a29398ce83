"""Where contenders run: rescind in this interpreter, each peer in a virtual environment made on demand."""

import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"


@dataclass(frozen=True)
class Contender:
    """Somebody to measure: the module that speaks the protocol, the exact versions it needs installed, and
    whether it needs the PostgreSQL server."""

    name: str
    module: str
    requirements: tuple[str, ...] = ()
    needs_server: bool = False

    @property
    def is_peer(self) -> bool:
        return bool(self.requirements)


CONTENDERS = {
    each.name: each
    for each in (
        Contender("rescind-sqlite", "bench.contenders.rescind_sqlite"),
        Contender("huey-sqlite", "bench.contenders.huey_sqlite", ("huey==3.5.4",)),
        Contender("rescind-postgres", "bench.contenders.rescind_postgres", needs_server=True),
        Contender(
            "pgqueuer-postgres",
            "bench.contenders.pgqueuer_postgres",
            ("pgqueuer==1.6.0", "asyncpg==0.32.0", "psycopg[binary]==3.3.8"),
            needs_server=True,
        ),
        Contender(
            "procrastinate-postgres",
            "bench.contenders.procrastinate_postgres",
            ("procrastinate==3.10.0", "psycopg[binary]==3.3.8"),
            needs_server=True,
        ),
    )
}


def interpreter(contender: Contender, cache: Path = CACHE) -> Path:
    """The Python that runs a contender, with its requirements installed."""
    if not contender.is_peer:
        return Path(sys.executable)
    tag = f"py{sys.version_info.major}.{sys.version_info.minor}"
    # Named for all it holds, so that another version gets an environment of its own.
    home = cache / "envs" / re.sub(r"[^\w.]+", "-", "-".join([contender.name, *contender.requirements, tag]))
    python = home / "bin" / "python"
    ready = home / "ready"
    if not ready.exists():  # made again when a first attempt was interrupted
        venv.create(home, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, *contender.requirements], check=True, stdout=sys.stderr)
        ready.touch()
    return python
