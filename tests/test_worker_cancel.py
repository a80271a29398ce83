"""How a cancel reaches a running handler, what it takes to stop it, and what the receipt says."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rescind import CancelledByRequest, Context, Queue, Reschedule, TaskStatus, Worker
from rescind.lease import Rung
from tests.at_work import AT_ONCE, at_work, finish, started


async def test_a_running_job_stops_when_its_handler_looks(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def polite(_: object, context: Context) -> None:
        while not await context.is_cancellation_requested():
            await asyncio.sleep(0.001)

    async with at_work(worker):
        job = await started(worker, await queue.submit("job"))
        answer = await queue.cancel(job.id, reason="enough", by="user:alice")
        assert (answer.changed, answer.status, answer.cancel_requested) == (True, TaskStatus.Running, True)
        ended = await queue.wait(job.id, timeout=30)
    assert (ended.status, ended.last_error, ended.cancelled_by) == (
        TaskStatus.Cancelled,
        "enough",
        "user:alice",
    )
    assert not ended.cancel_requested
    receipt = ended.receipt
    assert receipt and receipt.rung is Rung.FLAG
    assert receipt.delivered_at and receipt.acknowledged_at and receipt.stopped_at
    assert receipt.requested_at <= receipt.delivered_at <= receipt.acknowledged_at <= receipt.stopped_at


async def test_a_thread_stops_at_its_checkpoint(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    def loop(_: object, context: Context) -> None:
        while True:
            context.cancelled.wait_blocking(0.001)
            context.raise_if_cancelled()

    async with at_work(worker):
        job = await started(worker, await queue.submit("job"))
        await queue.cancel(job.id)
        assert (await queue.wait(job.id, timeout=30)).rung is Rung.FLAG


async def test_after_the_grace_an_async_handler_gets_an_exception_and_may_clean_up(queue: Queue) -> None:
    worker, cleaned = Worker(queue), asyncio.Event()

    @worker.task("job", grace_seconds=0.01)
    async def stubborn(_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async with at_work(worker):
        job = await started(worker, await queue.submit("job"))
        await queue.cancel(job.id)
        assert (await queue.wait(job.id, timeout=30)).rung is Rung.RAISED
    assert cleaned.is_set()


async def test_a_deaf_thread_is_given_up_and_its_slot_stays_closed(patient_queue: Queue) -> None:
    queue = patient_queue
    worker, let_go = Worker(queue, concurrency=1), threading.Event()

    @worker.task("job", grace_seconds=0)
    def deaf(_: object) -> str:
        let_go.wait()
        return "too late"

    async with at_work(worker):
        job = await started(worker, await queue.submit("job"))
        behind = await queue.submit("job")
        await queue.cancel(job.id)
        ended = await queue.wait(job.id, timeout=30)
        assert (ended.status, ended.rung, ended.output) == (TaskStatus.Cancelled, Rung.ABANDONED, None)
        assert (await queue.get(behind.id)).attempt == 0
        let_go.set()
        assert (await queue.wait(behind.id, timeout=30)).output == "too late"
    assert (await queue.get(job.id)).output is None


async def test_a_job_that_finishes_anyway_is_completed_with_the_request_on_record(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def nearly_done(_: object, context: Context) -> str:
        await context.cancelled.wait()
        return "done"

    async with at_work(worker):
        job = await started(worker, await queue.submit("job"))
        await queue.cancel(job.id, reason="too late")
        ended = await queue.wait(job.id, timeout=30)
    assert (ended.status, ended.output, ended.last_error) == (TaskStatus.Completed, "done", None)
    assert ended.receipt and ended.receipt.reason == "too late"


async def test_a_failure_after_the_request_is_a_cancel_and_is_not_retried(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job", retry=AT_ONCE)
    async def fall_over(_: object, context: Context) -> None:
        await context.cancelled.wait()
        raise ValueError("connection torn down")

    async with at_work(worker):
        job = await started(worker, await queue.submit("job"))
        await queue.cancel(job.id, reason="stop")
        ended = await queue.wait(job.id, timeout=30)
    assert (ended.status, ended.attempt, ended.last_error) == (TaskStatus.Cancelled, 1, "stop")


@pytest.mark.parametrize("way", ["wait", "is_set", "wait_blocking"])
async def test_the_receipt_says_when_the_handler_noticed_whichever_way(queue: Queue, way: str) -> None:
    worker = Worker(queue)

    async def waits(_: object, context: Context) -> None:
        await context.cancelled.wait()

    async def looks(_: object, context: Context) -> None:
        while not context.cancelled.is_set():
            await asyncio.sleep(0.001)

    def blocks(_: object, context: Context) -> None:
        context.cancelled.wait_blocking()

    ways: dict[str, Callable[..., Any]] = {"wait": waits, "is_set": looks, "wait_blocking": blocks}
    worker.task("job")(ways[way])
    async with at_work(worker):
        job = await started(worker, await queue.submit("job"))
        await queue.cancel(job.id)
        receipt = (await queue.wait(job.id, timeout=30)).receipt
    assert receipt and receipt.acknowledged_at and receipt.acknowledged_at >= receipt.requested_at


async def test_what_was_used_is_counted_when_the_cancel_overtakes_a_reschedule(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def move_on(_: object, context: Context) -> Reschedule:
        context.usage(7)
        await queue.cancel(context.job.id)
        return Reschedule(delay_seconds=60)

    job = await queue.submit("job")
    await worker.run(until_empty=True, handle_signals=False)
    assert ((ended := await queue.get(job.id)).status, ended.usage_units) == (TaskStatus.Cancelled, 7)


async def test_a_forced_cancel_is_the_end_whatever_the_worker_says(queue: Queue) -> None:
    worker, seen = Worker(queue), asyncio.Event()

    @worker.task("job")
    async def eager(_: object, context: Context) -> str:
        await context.cancelled.wait()
        seen.set()
        return "done anyway"

    async with at_work(worker):
        job = await started(worker, await queue.submit("job"))
        answer = await queue.cancel(job.id, force=True)
        assert (answer.status, answer.rung) == (TaskStatus.Cancelled, Rung.FORCED)
        await asyncio.wait_for(seen.wait(), 30)  # the handler is stopped all the same
    ended = await queue.get(job.id)
    assert (ended.status, ended.output) == (TaskStatus.Cancelled, None)


async def test_raising_the_stop_without_a_request_is_a_failure(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job", retry=AT_ONCE)
    async def liar(_: object) -> None:
        raise CancelledByRequest("nobody asked")

    assert (await finish(queue, worker, max_attempts=1)).status is TaskStatus.Failed


async def test_dependents_of_a_cancelled_job_start_without_waiting_for_a_sweep(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def quick(_: object) -> str:
        return "ran"

    first = await queue.submit("nobody-serves-this")
    second = await queue.submit("job", wait_for=[first.id])
    async with at_work(worker):
        before = time.monotonic()
        await queue.cancel(first.id)
        ended = await queue.wait(second.id, timeout=30)
    assert ended.output == "ran"
    assert time.monotonic() - before < queue.settings.sweep_seconds
