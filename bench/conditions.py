"""The conditions of a run, in full: a figure without them means nothing."""

import os
import platform
import sqlite3
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def conditions(directory: Path) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "sqlite": sqlite3.sqlite_version,
        "directory": _shown(directory),
        **mount(directory),
        "fsync_us": _fsync_us(directory, growing=False),
        "fsync_growing_us": _fsync_us(directory, growing=True),
        "load_average": load_average(),
    }


def load_average() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _shown(directory: Path) -> str:
    """Where somebody keeps the source tree is no condition of the run."""
    here = Path.cwd()
    return str(directory.relative_to(here)) if directory.is_relative_to(here) else str(directory)


def mount(directory: Path) -> dict[str, str]:
    """File system and device of the longest mount point above the directory."""
    try:
        mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return {"file_system": "unknown", "device": "unknown"}
    above = [mount for mount in mounts if directory.resolve().is_relative_to(mount[1])]
    device, _, kind = max(above, key=lambda mount: len(mount[1]))
    return {"file_system": kind, "device": device}


def _fsync_us(directory: Path, *, growing: bool, times: int = 200) -> float:
    """The median of writing 4 KiB and one fsync, over existing blocks or at the end of a growing file."""
    path = directory / "fsync-probe"
    block, took = b"x" * 4096, []
    with path.open("w+b", buffering=0) as file:
        if not growing:
            file.write(block * times)
            os.fsync(file.fileno())
            file.seek(0)
        for _ in range(times):
            begun = time.perf_counter()
            file.write(block)
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begun)
    path.unlink()
    return round(statistics.median(took) * 1e6, 1)
