"""The sync twin: the same queue for code without an event loop, method for method and type for type."""

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rescind
from rescind import sync
from rescind.engine import Selector


def test_it_submits_looks_and_cancels(tmp_path: Path) -> None:
    with sync.connect(f"sqlite://{tmp_path}/jobs.db") as queue:
        job = queue.submit("mail", {"to": "ann"})
        assert queue.get(job.id).input == {"to": "ann"}
        assert queue.cancel(job.id, reason="no").changed
        assert queue.wait(job.id, timeout=5).status is rescind.TaskStatus.Cancelled
        assert queue.count(status="cancelled") == 1
        queue.submit_many([queue.spec("fax"), {"need": "fax"}])
        groups = list(queue.cancel_matching(Selector(need="fax")))
        assert [len(group) for group in groups] == [2]


def test_its_errors_are_those_of_the_queue(tmp_path: Path) -> None:
    with (
        sync.connect(f"sqlite://{tmp_path}/jobs.db") as queue,
        pytest.raises(rescind.JobNotFoundError, match="nobody"),
    ):
        queue.cancel("nobody")
    with pytest.raises(rescind.InvalidInput):
        sync.connect("mysql://nowhere")


def test_threads_may_share_it(tmp_path: Path) -> None:
    with sync.connect(f"sqlite://{tmp_path}/jobs.db") as queue, ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda n: queue.submit("mail", n), range(200)))
        assert len({job.id for job in jobs}) == queue.count() == 200


def test_it_shows_the_signatures_of_the_queue() -> None:
    assert inspect.signature(sync.connect) == inspect.signature(rescind.connect)
    assert inspect.signature(sync.Queue.spec) == inspect.signature(rescind.Queue.spec)


def test_it_has_every_method_of_the_queue() -> None:
    public = {name for name, _ in inspect.getmembers(rescind.Queue, callable) if not name.startswith("_")}
    assert public == {
        name for name, _ in inspect.getmembers(sync.Queue, callable) if not name.startswith("_")
    }


RIGHT = """
import asyncio
from typing import assert_type

from rescind import CancelAnswer, Job, Settings, connect, sync
from rescind.engine import Selector
from rescind.spec import JobSpec

with sync.connect("sqlite://:memory:", by="ann", settings=Settings()) as queue:
    assert_type(queue, sync.Queue)
    assert_type(queue.spec("mail", 1, priority=2), JobSpec)
    job = queue.submit("mail", {"to": "ann"}, priority=5, wait_for=[])
    assert_type(job, Job)
    assert_type(queue.cancel(job.id, "typo", force=True), CancelAnswer)
    assert_type(queue.cancel_by_type("mail", "old", by="ann", running=True, dry_run=True), int)
    for group in queue.cancel_matching(Selector(owner="ann")):
        assert_type(group[0].changed, bool)


async def main() -> None:
    async with connect("sqlite://:memory:") as queue:
        assert_type(await queue.submit("mail", delay_seconds=1.5), Job)
        assert_type(await queue.cancel_by_owner("ann", force=True), int)


asyncio.run(main())
"""
WRONG = """
from rescind import connect, sync

sync.connect(nonsense=1)  # wrong
sync.connect(7)  # wrong
queue = sync.connect()
queue.spec("mail", prioriti=1)  # wrong
queue.submit("mail", priority="high")  # wrong
queue.cancel_by_type("mail", forse=True)  # wrong
queue.cancel_by_owner("ann", dry_run="yes")  # wrong
queue.wait("one", timeout="soon")  # wrong


async def main() -> None:
    async with connect() as queue:
        await queue.submit("mail", prioriti=1)  # wrong
        await queue.cancel_by_type("mail", running="yes")  # wrong
"""


def test_type_checkers_know_what_it_takes_and_gives(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "right.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stdout.splitlines() if ": error:" in line]
    wrong = [number for number, line in enumerate(WRONG.splitlines(), 1) if "# wrong" in line]
    assert [line.split(": error:")[0] for line in complaints] == [f"wrong.py:{number}" for number in wrong]


FORKED = """
import asyncio, os, sys
from rescind.errors import StoreClosed
from rescind.sync import _Portal

portal = _Portal()
child = os.fork()
if child == 0:
    try:
        portal.call(asyncio.sleep(0))
    except StoreClosed:
        os._exit(0)
    os._exit(1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
portal.close()
sys.exit(code)
"""


def test_a_queue_with_an_event_loop_refuses_to_be_used_after_a_fork() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], timeout=30, check=False)
    assert done.returncode == 0
