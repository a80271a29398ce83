"""Four processes on one SQLite file for a few seconds, the short form of `rescind.testing.hammer`."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.soak
def test_four_processes_on_one_file_break_no_invariant(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rescind.testing.hammer", "--seconds", "3", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all invariants hold" in done.stdout
    submitted, *_ = done.stdout.split()
    assert int(submitted) > 100, "too few jobs to prove anything"
