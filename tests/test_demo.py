"""The demo, end to end: what it shows is what happened, and nothing of it stays behind."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "rescind.cli", "demo"]
TAKEN_BACK = {"trailer", "meeting", "spam-filter", "reviews", "wiki", "minutes", "newsletter"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Temporary files go where the test can see them, and a queue is configured that must stay untouched."""
    places = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path), "RESCIND_URL": f"sqlite://{tmp_path}/mine.db"}
    inherited = {name: value for name, value in os.environ.items() if "COLOR" not in name}
    return {**inherited, **places, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"}


def test_the_demo_tells_the_truth_and_leaves_nothing_behind(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    command = [*COMMAND, "--json", "--speed", "3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    story = json.loads(done.stdout)
    jobs = {job["id"]: job for job in story["jobs"]}
    assert {id for id, job in jobs.items() if job["status"] == "cancelled"} == TAKEN_BACK
    assert {job["status"] for id, job in jobs.items() if id not in TAKEN_BACK} == {"completed"}
    for job_id in TAKEN_BACK:
        assert jobs[job_id]["receipt"]["stopped_at"] and jobs[job_id]["reason"], job_id
    rungs = {job_id: jobs[job_id]["rung"] for job_id in TAKEN_BACK}
    assert (rungs["trailer"], rungs["meeting"], rungs["spam-filter"]) == ("flag", "flag", "raised")
    assert {rungs["wiki"], rungs["minutes"], rungs["newsletter"]} == {"pending"}
    assert jobs["minutes"]["cancelled_by"] == "job:meeting"
    assert jobs["spam-filter"]["stop_ms"] >= 600
    assert story["saved_dollars"] == pytest.approx(
        sum(job["saved_dollars"] for job in jobs.values()), abs=0.1
    )
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_it_prints_plain_lines(environment: dict[str, str]) -> None:
    command = [*COMMAND, "--speed", "5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout and "dana cancelled 7 Index the wiki" in done.stdout
    assert "7 of 10" in done.stdout and "rescind demo --interactive" in done.stdout.splitlines()[-2]


def test_interactive_cancels_what_is_pressed_and_ends_with_q(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "--interactive"]
    process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    _read_until(ours, b"Press a job's number")
    os.write(ours, b"8")
    _read_until(ours, b"8 Check the backups\x1b[0m: \x1b[33mtaken back")
    os.write(ours, b"q")
    shown = _read_until(ours, b"nothing to set up")
    assert process.wait() == 0 and b"1 of 10" in shown and b"you pressed its number" in shown
    os.close(ours)
    assert list(tmp_path.iterdir()) == []


def _read_until(terminal: int, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        seen += os.read(terminal, 65536)
    return seen
