"""The command line as people and scripts use it: real processes on a real file."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rescind import Job, State, TaskStatus, sync
from rescind.lease import Rung

COMMAND = [sys.executable, "-m", "rescind.cli"]

APP = """
from rescind import PermanentError, Worker

worker = Worker()
second = Worker()
number = 3

@worker.task("echo")
async def echo(input):
    return {"got": input}

@worker.task("broken")
def broken(input):
    raise PermanentError("no [red]way\\x1b[31m")

@worker.task("patient")
async def patient(input, context):
    context.progress(0.5, "half way")
    print("started", flush=True)
    await context.cancelled.wait()
"""


def plain(job: Job) -> Any:
    return json.loads(json.dumps(job.as_dict()))


class Shell:
    """A directory with a queue in it, and commands run there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite://{directory}/jobs.db"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RESCIND_") and "COLOR" not in k}
        self.environment = {**clean, "RESCIND_URL": self.url, "HOME": str(directory)}
        self.queue = sync.connect(self.url)

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.directory,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def ok(self, *arguments: str, stdin: str = "") -> str:
        """Run what must work, and say nothing on the side; gives what it printed."""
        done = self.run(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "app.py").write_text(APP)
    shell = Shell(tmp_path)
    yield shell
    shell.queue.close()


# submit


def test_submit_prints_the_bare_id_of_a_job_that_is_on_disk(shell: Shell) -> None:
    job_id = shell.ok("submit", "resize", '{"width": 80}').strip()
    assert shell.queue.get(job_id).input == {"width": 80}


def test_submit_takes_every_option(shell: Shell) -> None:
    shell.queue.submit("first", id="a")
    (shell.directory / "input.json").write_text("[1, 2]")
    options = ["--id", "j1", "--owner", "acme", "--priority", "7", "--delay", "5m", "--wait-for", "a"]
    options += [
        "--on-dependency-cancelled",
        "cancel",
        "--on-dependency-failed",
        "release",
        "--singleton-key",
        "k",
    ]
    options += ["--max-attempts", "0", "--idempotency-key", "once", "--by", "user:alice"]
    facts = shell.json("submit", "resize", "@input.json", *options)
    job = shell.queue.get("j1")
    assert facts == plain(job) and job.input == [1, 2]
    assert (job.owner, job.priority, job.wait_for, job.singleton_key) == ("acme", 7, ("a",), "k")
    assert (job.on_dependency_cancelled, job.on_dependency_failed) == ("cancel", "release")
    assert (job.max_attempts, job.idempotency_key, job.submitted_by) == (None, "once", "user:alice")
    assert job.available_at - job.submitted_at == timedelta(minutes=5)


def test_submit_reads_stdin_and_a_time(shell: Shell) -> None:
    job_id = shell.ok(
        "submit", "resize", "-", "--at", "2100-01-31T09:00:00+00:00", stdin='"from stdin"'
    ).strip()
    job = shell.queue.get(job_id)
    assert job.input == "from stdin" and job.available_at == datetime(2100, 1, 31, 9, tzinfo=UTC)


def test_a_batch_is_submitted_in_full_or_not_at_all(shell: Shell) -> None:
    lines = """{"need": "a", "id": "one"}\n
        {"need": "b", "id": "two", "owner": "bob", "available_at": "2100-01-01"}\n"""
    assert shell.ok("submit", "--batch", "-", "--owner", "acme", stdin=lines) == "one\ntwo\n"
    assert (shell.queue.get("one").owner, shell.queue.get("two").owner) == ("acme", "bob")
    refused = shell.run("submit", "--batch", "-", stdin='{"need": "a"}\n{"need": "a", "id": "one"}\n')
    assert refused.returncode == 1 and "has been used already" in refused.stderr
    assert shell.queue.count() == 2


def test_submit_wait_prints_the_output_and_fails_with_the_job(shell: Shell) -> None:
    worker = shell.start("worker", "app:worker")
    try:
        assert json.loads(shell.run("submit", "echo", "[1]", "--wait").stdout) == {"got": [1]}
        failed = shell.run("submit", "broken", "--wait", "--json")
        assert failed.returncode == 1 and json.loads(failed.stdout)["status"] == "failed"
        assert json.loads(failed.stderr)["error"] == "job_failed"
    finally:
        worker.terminate()
        worker.communicate()
    assert worker.returncode == 0


def test_ctrl_c_while_waiting_leaves_the_job_alone(shell: Shell) -> None:
    waiting = shell.start("submit", "nobody-serves-this", "--id", "j1", "--wait")
    assert waiting.stderr is not None
    assert "no worker serves nobody-serves-this" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate()
    assert waiting.returncode == 130 and "rescind cancel j1" in errors
    assert shell.queue.get("j1").state is State.READY


# cancel


def test_cancel_by_id_answers_for_each_and_refuses_with_1(shell: Shell) -> None:
    for job_id in ("waiting", "done", "gone"):
        shell.queue.submit("resize", id=job_id)
    shell.queue.complete_unheld("done")
    shell.queue.cancel("gone", "too late", by="user:bob")
    ids = ("waiting", "done", "gone", "unknown")
    dry = shell.run("cancel", *ids, "--dry-run", "--json")
    assert dry.returncode == 1
    assert [line["changed"] for line in map(json.loads, dry.stdout.splitlines())] == [
        True,
        False,
        False,
        False,
    ]
    assert shell.queue.get("waiting").state is State.READY

    done = shell.run("cancel", *ids, "--reason", "Duplicate", "--cancelled-by", "user:alice")
    assert done.returncode == 1
    assert done.stdout == "waiting  cancelled\ngone  already cancelled, asked by user:bob: too late\n"
    assert "cannot cancel job done: it is completed" in done.stderr
    assert "job unknown does not exist" in done.stderr
    job = shell.queue.get("waiting")
    assert (job.status, job.cancelled_by, job.last_error) == (TaskStatus.Cancelled, "user:alice", "Duplicate")


def test_cancelling_a_running_job_asks_it_to_stop_and_leaves_a_receipt(shell: Shell) -> None:
    shell.queue.submit("patient", id="j1")
    worker = shell.start("worker", "app:worker")
    try:
        assert worker.stdout is not None and worker.stdout.readline() == "started\n"
        assert "asked to stop" in shell.ok(
            "cancel", "j1", "--reason", "No longer needed", "--by", "user:alice"
        )
        job = shell.queue.wait("j1", timeout=20)
    finally:
        worker.terminate()
        worker.communicate()
    assert job.receipt is not None and job.receipt.rung is Rung.FLAG
    card = shell.ok("status", "j1")
    for words in ("cancelled", "by user:alice", "No longer needed", "stopped +", "flag: it saw the request"):
        assert words in card
    lines = shell.ok("history", "j1").splitlines()
    assert [line.split(" (")[0] for line in lines[:3]] == [
        "Version 1: pending",
        "Version 2: running",
        "Version 3: running",
    ]
    assert '(cancel_requested_by: user:alice, reason: "No longer needed")' in lines[2]
    assert 'cancelled (cancelled_by: user:alice, reason: "No longer needed", rung: flag)' in lines[-1]


def test_bulk_leaves_running_jobs_alone_unless_told_and_force_ends_one_now(shell: Shell) -> None:
    shell.queue.submit("patient", id="j1")
    worker = shell.start("worker", "app:worker")
    try:
        assert worker.stdout is not None and worker.stdout.readline() == "started\n"
        assert shell.ok("cancel", "--type", "patient", "--yes") == "no job matches\n"
        preview = shell.ok("cancel", "--type", "patient", "--running", "--dry-run")
        assert preview.endswith("1 job would be asked to stop; nothing was touched\n")
        assert "would be cancelled" in shell.ok("cancel", "j1", "--force", "--dry-run")
        (line,) = [json.loads(shell.ok("cancel", "j1", "--force", "--json"))]
    finally:
        worker.terminate()
        worker.communicate()
    assert (line["outcome"], line["job"]["status"], line["job"]["rung"]) == ("success", "cancelled", "forced")


def test_bulk_cancel_takes_the_waiting_jobs_of_a_need_and_owner(shell: Shell) -> None:
    for number in range(4):
        shell.queue.submit("old", owner="acme" if number % 2 else "bob", id=f"old{number}")
    shell.queue.submit("new", owner="acme", id="new")
    preview = shell.ok("cancel", "--type", "old", "--dry-run")
    assert preview.endswith("4 jobs would be cancelled; nothing was touched\n")
    assert shell.queue.count(status="cancelled") == 0
    assert shell.ok("cancel", "--task-type", "old", "--owner", "acme") == "2 jobs cancelled\n"
    assert shell.ok("cancel", "--owner", "bob", "--reason", "bob left") == "2 jobs cancelled\n"
    assert shell.queue.get("old0").cancel_reason == "bob left"
    assert shell.ok("cancel", "--type", "old") == "no job matches\n"
    assert shell.queue.get("new").state is State.READY


@pytest.mark.parametrize(
    ("options", "answer", "asked", "code", "cancelled"),
    [((), "n", True, 1, 0), ((), "y", True, 0, 2), (("--yes",), "", False, 0, 2)],
)
def test_a_bulk_cancel_on_a_terminal_says_how_many_and_asks(
    shell: Shell, options: tuple[str, ...], answer: str, asked: bool, code: int, cancelled: int
) -> None:
    for _ in range(2):
        shell.queue.submit("old")
    ours, theirs = pty.openpty()
    process = shell.start("cancel", "--type", "old", *options, stdin=theirs)
    os.write(ours, f"{answer}\n".encode())
    _, errors = process.communicate()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code and ("Cancel 2 jobs?" in errors) is asked
    assert shell.queue.count(status="cancelled") == cancelled


def test_ctrl_c_stops_a_bulk_cancel_between_two_steps_and_says_what_was_done(shell: Shell) -> None:
    shell.queue.submit_many({"need": "old"} for _ in range(3000))
    process = shell.start("cancel", "--type", "old", "--yes", "--json")
    assert process.stdout is not None
    # One line read of a thousand: the pipe is full, so the process is still in its first step.
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    lines = [json.loads(line) for line in [first, *process.stdout]]
    _, errors = process.communicate()
    assert process.returncode == 130
    assert (
        json.loads(errors)["error"] == "interrupted"
        and "1,000 jobs cancelled" in json.loads(errors)["message"]
    )
    assert len(lines) == shell.queue.count(status="cancelled") == 1000
    assert shell.queue.count(status="pending") == 2000


# looking


def test_status_shows_what_there_is_and_refuses_what_there_is_not(shell: Shell) -> None:
    shell.queue.submit("first", id="a")
    shell.queue.submit("second", {"secret": "x" * 1000}, id="b", owner="acme", wait_for=["a"])
    done = shell.run("status", "a", "nope", "b")
    assert done.returncode == 1 and "job nope does not exist" in done.stderr
    for words in ("PENDING_JOBS", "acme", "waits for", "… (all of it: --json)"):
        assert words in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    facts = shell.json("status", "b")
    assert facts == plain(shell.queue.get("b")) and "lease_id" not in facts


def test_list_filters_pages_and_cuts_nothing_in_a_pipe(shell: Shell) -> None:
    need = "n" * 53
    for number in range(3):
        shell.queue.submit(need, id=f"j{number}", owner="acme")
    shell.queue.submit("other", id="other")
    page = shell.json("list", "--need", need, "--owner", "acme", "--status", "pending", "--limit", "2")
    assert [job["id"] for job in page["jobs"]] == ["j2", "j1"]
    rest = shell.json("list", "--type", need, "--limit", "2", "--after", page["next"])
    assert ([job["id"] for job in rest["jobs"]], rest["next"]) == (["j0"], None)
    table = shell.ok("list")
    assert table.count(need) == 3 and "\x1b" not in table


def test_nothing_anybody_wrote_steers_the_terminal(shell: Shell) -> None:
    shell.queue.submit("a[bold]b", id="j1", owner="[/]")
    shell.queue.cancel("j1", "\x1b[31mred\x07 [link=x]y[/link]")
    for command in (("list",), ("status", "j1"), ("history", "j1")):
        shown = shell.ok(*command)
        assert "\x1b" not in shown and "\x07" not in shown
        assert r"\x1b[31mred\x07 [link=x]y[/link]" in shown


def test_history_reads_like_the_seeds_example(shell: Shell) -> None:
    shell.queue.submit("resize", id="j1", by="user:bob")
    shell.queue.cancel("j1", "No longer needed", by="user:alice")
    first, second = shell.ok("history", "j1").splitlines()
    assert re.fullmatch(r"Version 1: pending \(created\)  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  user:bob", first)
    assert second.startswith('Version 2: cancelled (cancelled_by: user:alice, reason: "No longer needed")  ')
    assert second.endswith("  user:alice")
    events = [json.loads(line) for line in shell.ok("history", "j1", "--json").splitlines()]
    assert [(event["version"], event["verb"], event["status"]) for event in events] == [
        (1, "submit", "pending"),
        (2, "cancel", "cancelled"),
    ]


def test_stats_and_sweep(shell: Shell) -> None:
    shell.queue.submit("resize")
    shell.queue.cancel(shell.queue.submit("resize").id)
    assert shell.json("stats") == {"resize": {"READY": 1, "CANCELLED": 1}}
    assert shell.ok("stats").splitlines()[-1].split() == ["resize", "1", "1"]
    assert shell.json("sweep") == {"lapsed": 0, "archived": 1, "timed_out": 0, "purged": 0}
    assert shell.ok("sweep") == "nothing to do\n"


# worker


def test_worker_serves_what_it_is_narrowed_to_and_logs_readable_lines(shell: Shell) -> None:
    shell.queue.submit("echo", 1, id="mine")
    shell.queue.submit("broken", id="other")
    done = shell.run("worker", "app:worker", "--need", "echo", "--concurrency", "2", "--until-empty")
    assert done.returncode == 0 and done.stdout == ""
    assert re.match(r"\d\d:\d\d:\d\d info    app:worker starts as ", done.stderr)
    assert shell.queue.get("mine").output == {"got": 1} and shell.queue.get("other").attempt == 0
    logged = shell.run("worker", "app:worker", "--until-empty", "--json", "--url", shell.url)
    assert {json.loads(line)["logger"] for line in logged.stderr.splitlines()} >= {"rescind.cli"}
    assert shell.queue.get("other").state is State.FAILED


def test_exit_codes_of_a_real_process(shell: Shell) -> None:
    (shell.directory / "other.db").write_text("not a database, but long enough to be taken for one" * 20)
    unavailable = shell.run("list", "--url", "sqlite:other.db", "--json")
    assert unavailable.returncode == 3 and unavailable.stdout == ""
    assert json.loads(unavailable.stderr)["error"] == "store_corrupt"
    usage = shell.run("worker", "app")
    assert usage.returncode == 2 and usage.stderr.count("\n") == 1
    version = shell.run("--version")
    assert version.returncode == 0 and version.stdout.startswith("rescind ")


def test_bytes_that_are_no_text_are_refused_in_a_line(shell: Shell) -> None:
    for arguments in ((b"cancel", b"a\xff"), (b"submit", b"add", b'"a\xff"')):
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=shell.directory,
            env=shell.environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 2 and done.stdout == b""
        assert done.stderr.endswith(b"is not UTF-8 text\n") and done.stderr.count(b"\n") == 1
    assert shell.queue.count() == 0


def test_a_reader_that_leaves_early_is_no_error(shell: Shell) -> None:
    shell.queue.submit_many({"need": "old", "input": "x" * 1000} for _ in range(200))
    process = shell.start("list", "--limit", "200", "--json")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()


def test_shell_completion_offers_the_commands(shell: Shell) -> None:
    shell.environment |= {"_RESCIND_COMPLETE": "complete_bash", "COMP_WORDS": "rescind ca", "COMP_CWORD": "1"}
    assert shell.run().stdout.strip() == "cancel"
