"""What a worker survives: handlers that misbehave, its own end, and a store that goes away."""

import asyncio
import functools
import threading
from collections.abc import Callable
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
)
from rescind.errors import Unavailable
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
    "odd generator": lambda _: Reschedule(wait_for=map(int, ["a"])),  # type: ignore[arg-type]
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
    await started(worker, job)
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


async def test_one_callers_bad_value_is_no_trouble_of_the_others(queue: Queue) -> None:
    """They share a transaction; the one that sqlite3 cannot bind is refused alone."""
    odd = msgspec.structs.replace(queue.spec("odd"), owner=object())
    submits = [queue.submit("fine") for _ in range(6)]
    answers = await asyncio.gather(queue.engine.submit([odd]), *submits, return_exceptions=True)
    assert isinstance(answers[0], Exception) and not isinstance(answers[0], Unavailable)
    assert await queue.count() == 6
