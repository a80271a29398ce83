"""Where a contender measures: a directory for its files, and a PostgreSQL server for its databases.

Runs inside every contender's own environment, so it uses the standard library only.
"""

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Server:
    """`url` lacks the name of a database; `pid` is the process from which the server's others descend."""

    url: str
    pid: int

    def database(self, name: str) -> str:
        return f"{self.url}/{name}"

    def cpu_seconds(self) -> float | None:
        """The processor time of all its processes, the ended ones included; None where there is no /proc."""
        if not Path("/proc/self/stat").exists():
            return None
        while True:
            children = _children(self.pid)
            with suppress(FileNotFoundError, ProcessLookupError):  # one ended: its time is its parent's now
                living = [_times(pid)[0] for pid in children]
                own, ended = _times(self.pid)
                if children == _children(self.pid):
                    return own + ended + sum(living)


@dataclass(frozen=True)
class Place:
    directory: Path
    server: Server | None = None

    @property
    def postgres(self) -> Server:
        if self.server is None:
            raise RuntimeError("this contender needs a PostgreSQL server, and none was started")
        return self.server

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "directory": str(self.directory)}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Place":
        server = Server(**found["server"]) if found["server"] else None
        return cls(Path(found["directory"]), server)


def _times(pid: int) -> tuple[float, float]:
    """Processor seconds of a process itself, and of its children that have ended."""
    # The second field is a name in parentheses, which may hold spaces; utime is the 14th.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(field) for field in fields[11:15])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + system) / tick, (ended_user + ended_system) / tick


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
