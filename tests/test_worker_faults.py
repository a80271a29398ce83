"""What a worker survives: handlers that misbehave, its own end, and a store that goes away."""

import asyncio
import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rescind import (
    Context,
    Queue,
    Reschedule,
    RetryableError,
    State,
    TaskStatus,
    Worker,
    connect,
    sync,
)
from rescind.errors import InvalidInput, StoreBusy, StoreClosed, Unavailable
from rescind.lease import Rung
from rescind.worker.ladder import Stop
from tests.at_work import AT_ONCE, started

# Handlers that misbehave


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


async def _raise(error: BaseException) -> None:
    raise error


def _wrapped() -> Callable[[Any], Any]:
    async def inner(_: object) -> str:
        return "done"

    @functools.wraps(inner)
    def outer(value: object) -> Any:
        return asyncio.run(inner(value))

    return outer


def _returns_a_coroutine(_: object) -> Any:
    return asyncio.sleep(0)


async def _odd_progress(_: object, context: Context) -> None:
    context.progress(0.1, "\udce4")


BAD: dict[str, Callable[..., Any]] = {
    "endless delay": lambda _: _raise(RetryableError("later", delay=float("inf"))),
    "far delay": lambda _: _raise(RetryableError("later", delay=1e12)),
    "unprintable": lambda _: _raise(Unprintable()),
    "surrogate": lambda _: _raise(ValueError("file \udce4.txt")),
    "exit": lambda _: _raise(SystemExit(3)),
    "odd progress": _odd_progress,
    "usage": lambda _, context: context.usage(2**70),
    "progress": lambda _, context: context.progress(0.1, {"a": 1}),
    "odd key": lambda _: Reschedule(singleton_key="\udce4"),
    "no key": lambda _: Reschedule(singleton_key=("a",)),  # type: ignore[arg-type]
    "sync wrapper": _wrapped(),
    "coroutine": _returns_a_coroutine,
    "stop iteration": lambda _: next(iter(())),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_handler_ends_its_own_job_and_no_other(
    queue: Queue, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")  # the test runner cannot pass on a log with lone surrogates in it
    worker = Worker(queue)
    bad = BAD[name]

    async def call(value: object, context: Context) -> Any:
        result = bad(value, context) if "context" in bad.__code__.co_varnames else bad(value)
        return await result if asyncio.iscoroutine(result) else result

    worker.task("bad", retry=AT_ONCE)(bad if name in ("sync wrapper", "coroutine") else call)

    @worker.task("good")
    async def good(_: object) -> str:
        return "fine"

    first = await queue.submit("bad", max_attempts=1)
    others = await queue.submit_many([{"need": "good"}] * 5)
    await worker.run(until_empty=True, handle_signals=False)
    assert [(await queue.get(job.id)).output for job in others] == ["fine"] * 5
    ended = await queue.get(first.id)
    expected = TaskStatus.Completed if name in ("sync wrapper", "odd progress") else TaskStatus.Failed
    assert ended.status is expected, ended.last_error


async def test_a_failure_is_logged_with_its_traceback(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def fail(_: object) -> None:
        raise ValueError("no luck")

    job = await queue.submit("job", max_attempts=1)
    await worker.run(until_empty=True, handle_signals=False)
    (record,) = [each for each in caplog.records if each.exc_info]
    assert job.id in record.getMessage() and "no luck" in str(record.exc_info)


async def test_a_thread_can_mark_its_start_too(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    def paid(_: object, context: Context) -> None:
        context.mark_started()

    job = await queue.submit("job")
    await worker.run(until_empty=True, handle_signals=False)
    assert (await queue.get(job.id)).work_started_at is not None


# How it stopped is told truly


@pytest.mark.parametrize("why", [Stop.LOST, Stop.SHUTDOWN])
async def test_a_handler_stopped_half_way_is_never_completed(queue: Queue, why: Stop) -> None:
    """The store was away, so the worker stopped the handler; then it came back before the lease ended."""
    worker, running = Worker(queue), asyncio.Event()

    @worker.task("job")
    async def half_way(_: object, context: Context) -> None:
        running.set()
        try:
            await context.cancelled.wait()
        except asyncio.CancelledError:
            return

    working = asyncio.create_task(worker.run(handle_signals=False))
    job = await queue.submit("job")
    await running.wait()
    assert worker._loop is not None
    (attempt,) = worker._loop._attempts.values()
    worker.stop()
    attempt.ask_to_stop(why)
    await working
    ended = await queue.get(job.id)
    assert (ended.state, ended.failures) == (State.READY, 0)


async def test_the_receipt_names_the_rung_even_when_the_handler_fails_on_its_way_out(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job", grace_seconds=0)
    async def stubborn(_: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("torn down") from None

    working = asyncio.create_task(worker.run(handle_signals=False))
    job = await queue.submit("job")
    await started(queue, job)
    await queue.cancel(job.id)
    ended = await queue.wait(job.id, timeout=30)
    assert (ended.status, ended.rung) == (TaskStatus.Cancelled, Rung.RAISED)
    worker.stop()
    await working


async def test_a_deaf_handler_keeps_its_singleton_key_until_it_ends(patient_queue: Queue) -> None:
    queue, let_go = patient_queue, threading.Event()
    worker = Worker(queue)

    @worker.task("job", timeout_seconds=0.01, grace_seconds=0, retry=AT_ONCE)
    def deaf(value: str) -> str:
        if value == "first":
            let_go.wait()
        return value

    working = asyncio.create_task(worker.run(handle_signals=False))
    first = await queue.submit("job", "first", singleton_key="k", max_attempts=1)
    second = await queue.submit("job", "second", singleton_key="k")
    assert (await queue.wait(first.id, timeout=30)).status is TaskStatus.Failed
    assert (await queue.get(second.id)).attempt == 0
    let_go.set()
    assert (await queue.wait(second.id, timeout=30)).output == "second"
    worker.stop()
    await working


# The worker's own end


async def test_a_cancelled_run_stops_its_handlers_and_gives_their_jobs_back(queue: Queue) -> None:
    worker, stopped = Worker(queue), asyncio.Event()

    @worker.task("job")
    async def endless(_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    working = asyncio.create_task(worker.run(handle_signals=False))
    job = await queue.submit("job")
    await started(queue, job)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    ended = await queue.get(job.id)
    assert stopped.is_set()
    assert (ended.state, ended.attempt, ended.failures) == (State.READY, 1, 0)


async def test_a_claim_under_way_when_the_worker_is_stopped_is_given_back(queue: Queue) -> None:
    worker, ran = Worker(queue), False

    @worker.task("job")
    async def never(_: object) -> None:
        nonlocal ran
        ran = True

    job = await queue.submit("job")
    settle = queue.engine.settle

    async def stopped_meanwhile(*arguments: Any) -> Any:
        settled = await settle(*arguments)
        worker.stop()
        return settled

    queue.engine.settle = stopped_meanwhile  # type: ignore[assignment, method-assign]
    await worker.run(handle_signals=False)
    ended = await queue.get(job.id)
    assert not ran
    assert (ended.state, ended.attempt, ended.failures) == (State.READY, 1, 0)


async def test_until_empty_does_not_take_unavailable_for_empty(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def quick(_: object) -> None: ...

    job = await queue.submit("job")
    settle, refusals = queue.engine.settle, [StoreBusy("locked")]

    async def busy_once(*arguments: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await settle(*arguments)

    queue.engine.settle = busy_once  # type: ignore[assignment, method-assign]
    await worker.run(until_empty=True, handle_signals=False)
    assert (await queue.get(job.id)).status is TaskStatus.Completed


async def test_a_worker_whose_queue_is_closed_ends(tmp_path: Path) -> None:
    queue = await connect(f"sqlite://{tmp_path}/closed.db")
    worker = Worker(queue)

    @worker.task("job")
    async def quick(_: object) -> None: ...

    working = asyncio.create_task(worker.run(handle_signals=False))
    while not await queue.workers():
        await asyncio.sleep(0.002)
    await queue.close()
    await asyncio.wait_for(working, 30)
    with pytest.raises(StoreClosed):
        await queue.count()


async def test_a_worker_can_be_run_again_and_stopped_only_while_it_runs(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def quick(_: object) -> None: ...

    worker.stop()
    for _ in range(2):
        job = await queue.submit("job")
        await worker.run(until_empty=True, handle_signals=False)
        worker.stop()
        assert (await queue.get(job.id)).status is TaskStatus.Completed
    with pytest.raises(InvalidInput, match="concurrency"):
        await worker.run(concurrency=-1)


async def test_a_signal_stops_all_the_workers_of_a_process(queue: Queue) -> None:
    workers = [Worker(queue, name=name) for name in ("a", "b")]
    for worker in workers:
        worker.task("job")(lambda value: value)
    working = [asyncio.create_task(worker.run()) for worker in workers]
    while len(await queue.workers()) < 2:
        await asyncio.sleep(0.002)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*working), 30)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def _ask_in_child(queue: sync.Queue) -> None:
    try:
        queue.count()
    except Unavailable as problem:
        sys.exit(7 if "fork" in str(problem) else 1)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_queue_opened_before_a_fork_refuses_in_the_child(tmp_path: Path) -> None:
    with sync.connect(f"sqlite://{tmp_path}/jobs.db") as queue:
        child = multiprocessing.get_context("fork").Process(target=_ask_in_child, args=(queue,))
        child.start()
        child.join(30)
        assert child.exitcode == 7


async def test_one_callers_bad_value_is_no_trouble_of_the_others(queue: Queue) -> None:
    """They share a transaction; the one that sqlite3 cannot bind is refused alone."""
    odd = msgspec.structs.replace(queue.spec("odd"), owner=object())
    submits = [queue.submit("fine") for _ in range(6)]
    answers = await asyncio.gather(queue.engine.submit([odd]), *submits, return_exceptions=True)
    assert isinstance(answers[0], Exception) and not isinstance(answers[0], Unavailable)
    assert await queue.count() == 6
