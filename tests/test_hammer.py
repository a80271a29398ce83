"""Several processes on one store for a few seconds, the short form of `rescind.testing.hammer`; and once more
while workers are killed and paused."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from rescind.testing import Factory, hammer

pytestmark = pytest.mark.soak

SECONDS: Final = 3.0
PAUSE_SECONDS: Final = 2.0  # longer than a lease lasts here


def test_four_processes_on_one_store_break_no_invariant(
    factory_between_processes: Factory, tmp_path: Path
) -> None:
    url = factory_between_processes(tmp_path).url
    assert url is not None
    command = [sys.executable, "-m", "rescind.testing.hammer", "--seconds", str(SECONDS)]
    done = subprocess.run(
        [*command, "--url", url, "--directory", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all invariants hold" in done.stdout
    submitted, *_ = done.stdout.split()
    assert int(submitted) > 100, "too few jobs to prove anything"


def test_workers_that_are_killed_and_paused_break_no_invariant(
    factory_between_processes: Factory, tmp_path: Path
) -> None:
    url = factory_between_processes(tmp_path).url
    assert url is not None
    asyncio.run(hammer.create(url))

    def spawn(role: str) -> "subprocess.Popen[bytes]":
        return hammer.spawn(role, url, tmp_path, SECONDS, faults=True)

    # Given processes that submit, cancel and work
    others = [spawn("submit"), spawn("cancel")]
    workers = [spawn(f"work-{n}") for n in range(3)]
    paused: list[tuple[float, subprocess.Popen[bytes]]] = []
    faults = 0
    # When workers are killed, or paused for longer than their leases last, and others take their places
    while any(process.poll() is None for process in others[:2]):
        time.sleep(random.uniform(0.2, 0.5))
        if paused and paused[0][0] < time.monotonic():
            others.append(_resumed(paused.pop(0)[1]))
        victim = workers.pop(0)
        if faults % 2:
            victim.kill()
            assert victim.wait(30) == -signal.SIGKILL
        else:
            victim.send_signal(signal.SIGSTOP)
            paused.append((time.monotonic() + PAUSE_SECONDS, victim))
        faults += 1
        workers.append(spawn(f"work-{2 + faults}"))
    (tmp_path / hammer.OVER).touch()
    # Then all that was acknowledged is there, and everything has ended once
    others += [_resumed(process) for _, process in paused]
    assert {process.wait(90) for process in (*others, *workers)} == {0}
    problems, ended = asyncio.run(hammer.judge(url, hammer.notes_in(tmp_path)))
    assert not problems, "\n".join(problems[:20])
    assert ended.total() > 50 and faults > 3, "too little to prove anything"


def _resumed(process: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
    process.send_signal(signal.SIGCONT)
    return process
