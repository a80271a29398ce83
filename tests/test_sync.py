"""The sync twin: the same queue for code without an event loop, method for method."""

import inspect
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


def test_it_has_every_method_of_the_queue() -> None:
    public = {name for name, _ in inspect.getmembers(rescind.Queue, callable) if not name.startswith("_")}
    assert public == {
        name for name, _ in inspect.getmembers(sync.Queue, callable) if not name.startswith("_")
    }
