"""The worker: what handlers get and give back, how cancels reach them, and how it stops itself."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from rescind import (
    CancelledByRequest,
    Context,
    InvalidInput,
    Job,
    PermanentError,
    Queue,
    Reschedule,
    Retry,
    RetryableError,
    State,
    TaskStatus,
    Worker,
)
from rescind.clock import SystemClock
from rescind.errors import InvalidSettings
from rescind.lease import Rung

AT_ONCE = Retry(first_seconds=0, jitter=0)


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """The worker runs during the block and has drained after it."""
    running = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield
    finally:
        worker.stop()
        await running


async def finish(queue: Queue, worker: Worker, need: str = "job", input: Any = None, **options: Any) -> Job:
    """Submit one job and let the worker run until nothing is left."""
    job = await queue.submit(need, input, **options)
    await worker.run(queue, until_empty=True, handle_signals=False)
    return await queue.get(job.id)


def nothing(_: object) -> None: ...


async def started(queue: Queue, job: Job) -> Job:
    while (now := await queue.get(job.id)).state is not State.ACTIVE:
        await asyncio.sleep(0.002)
    return now


# What handlers get and give back


async def test_a_handler_may_take_the_input_alone(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def double(number: int) -> int:
        return number * 2

    job = await finish(queue, worker, input=21)
    assert (job.status, job.output, job.attempt) == (TaskStatus.Completed, 42, 1)


async def test_a_handler_may_take_the_context_too(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def tell(_: object, context: Context) -> list[object]:
        return [context.job.need, context.attempt, context.token, bool(context.is_cancellation_requested())]

    assert (await finish(queue, worker)).output == ["job", 1, 1, False]


async def test_a_plain_function_runs_in_a_thread_of_its_own(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    def where(_: object) -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (await finish(queue, worker)).output is False


async def test_none_is_a_result_like_any_other_when_nobody_cancelled(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def nothing(_: object) -> None:
        return None

    job = await finish(queue, worker)
    assert (job.status, job.output) == (TaskStatus.Completed, None)


@pytest.mark.parametrize("output", [object(), float("nan"), "x" * 300_000])
async def test_a_result_that_cannot_be_stored_fails_the_job_for_good(queue: Queue, output: object) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def bad(_: object) -> object:
        return output

    job = await finish(queue, worker)
    assert (job.status, job.attempt) == (TaskStatus.Failed, 1)
    assert "output" in (job.last_error or "")


async def test_a_failing_job_is_retried_until_its_attempts_are_used_up(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job", retry=AT_ONCE)
    async def fail(_: object) -> None:
        raise ValueError("no luck")

    job = await finish(queue, worker, max_attempts=3)
    assert (job.status, job.attempt, job.failures) == (TaskStatus.Failed, 3, 3)
    assert job.last_error == "ValueError: no luck"


async def test_a_retry_waits_longer_each_time(queue: Queue, clock: SystemClock) -> None:
    worker = Worker(queue)

    @worker.task("job", retry=Retry(first_seconds=10, factor=3, jitter=0))
    async def fail(_: object) -> None:
        raise ValueError("no luck")

    job = await finish(queue, worker)
    assert job.state is State.AWAITING_FUTURE
    assert (job.available_at - (await queue.history(job.id))[-1].at).total_seconds() == 10
    clock.shift(11)
    await worker.run(queue, until_empty=True, handle_signals=False)
    job = await queue.get(job.id)
    assert (job.available_at - (await queue.history(job.id))[-1].at).total_seconds() == 30


async def test_a_permanent_error_is_not_retried(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job", retry=AT_ONCE)
    async def fail(_: object) -> None:
        raise PermanentError("never")

    job = await finish(queue, worker)
    assert (job.status, job.attempt, job.last_error) == (TaskStatus.Failed, 1, "PermanentError: never")


async def test_a_retryable_error_may_name_its_delay(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job", retry=AT_ONCE)
    async def fail(_: object) -> None:
        raise RetryableError("busy", delay=500)

    job = await finish(queue, worker)
    assert job.state is State.AWAITING_FUTURE
    assert (job.available_at - (await queue.history(job.id))[-1].at).total_seconds() == 500


async def test_a_job_moves_from_need_to_need(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("fetch")
    async def fetch(_: object) -> Reschedule:
        return Reschedule(need="store")

    @worker.task("store")
    async def store(_: object, context: Context) -> int:
        return context.attempt

    job = await finish(queue, worker, "fetch")
    assert (job.status, job.need, job.output) == (TaskStatus.Completed, "store", 2)


async def test_a_rescheduled_job_can_wait_for_others_and_for_its_time(queue: Queue) -> None:
    first = await queue.submit("other")
    worker = Worker(queue)

    @worker.task("job")
    async def wait(_: object) -> Reschedule:
        return Reschedule(wait_for=[first.id], delay_seconds=0)

    job = await finish(queue, worker)
    assert (job.state, job.wait_for) == (State.PENDING_JOBS, (first.id,))


async def test_a_reschedule_to_an_unknown_job_comes_back_as_an_error(queue: Queue) -> None:
    """Settling is refused, so the lease lapses and the attempt counts as failed; nothing is half done."""
    worker = Worker(queue)

    @worker.task("job")
    async def wrong(_: object) -> Reschedule:
        return Reschedule(wait_for=["nobody"])

    job = await finish(queue, worker, max_attempts=1)
    assert job.status is TaskStatus.Failed
    assert "unknown jobs: nobody" in (job.last_error or "")


async def test_progress_is_seen_while_the_job_runs(queue: Queue) -> None:
    worker, go_on = Worker(queue), asyncio.Event()

    @worker.task("job")
    async def half(_: object, context: Context) -> None:
        context.progress(0.5, "half way")
        await go_on.wait()

    async with at_work(worker):
        job = await queue.submit("job")
        while (now := await queue.get(job.id)).progress is None:
            await asyncio.sleep(0.002)
        go_on.set()
    assert (now.progress, now.progress_message, now.state) == (0.5, "half way", State.ACTIVE)
    assert [event.verb for event in await queue.history(job.id)] == ["submit", "claim", "complete"]


async def test_usage_adds_up_over_attempts(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job", retry=AT_ONCE)
    def spend(_: object, context: Context) -> None:
        context.usage(3)
        context.usage(4)
        if context.attempt == 1:
            raise ValueError("again")

    assert (await finish(queue, worker)).usage_units == 14


async def test_mark_started_is_written_before_it_returns(queue: Queue) -> None:
    worker = Worker(queue)
    seen: list[object] = []

    @worker.task("job")
    async def paid(_: object, context: Context) -> None:
        await context.mark_started()
        seen.append((await queue.get(context.job.id)).work_started_at)

    job = await finish(queue, worker)
    assert seen == [job.work_started_at] != [None]


# How cancels reach handlers


async def test_a_running_job_stops_when_its_handler_looks(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def polite(_: object, context: Context) -> None:
        while not await context.is_cancellation_requested():
            await asyncio.sleep(0.001)

    async with at_work(worker):
        job = await started(queue, await queue.submit("job"))
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
        job = await started(queue, await queue.submit("job"))
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
        job = await started(queue, await queue.submit("job"))
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
        job = await started(queue, await queue.submit("job"))
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
        job = await started(queue, await queue.submit("job"))
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
        job = await started(queue, await queue.submit("job"))
        await queue.cancel(job.id, reason="stop")
        ended = await queue.wait(job.id, timeout=30)
    assert (ended.status, ended.attempt, ended.last_error) == (TaskStatus.Cancelled, 1, "stop")


async def test_a_forced_cancel_is_the_end_whatever_the_worker_says(queue: Queue) -> None:
    worker, seen = Worker(queue), asyncio.Event()

    @worker.task("job")
    async def eager(_: object, context: Context) -> str:
        await context.cancelled.wait()
        seen.set()
        return "done anyway"

    async with at_work(worker):
        job = await started(queue, await queue.submit("job"))
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


# Time


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_timeout_is_a_failure_that_may_be_retried(queue: Queue, kind: str) -> None:
    worker = Worker(queue)
    options = {"timeout_seconds": 0.01, "grace_seconds": 5, "retry": AT_ONCE}

    async def slow(_: object, context: Context) -> str | None:
        if context.attempt == 2:
            return "second time"
        await context.cancelled.wait()
        return None

    def slow_thread(_: object, context: Context) -> str | None:
        if context.attempt == 2:
            return "second time"
        context.cancelled.wait_blocking()
        return None

    worker.task("job", **options)(slow if kind == "async" else slow_thread)  # type: ignore[arg-type]
    job = await finish(queue, worker)
    assert (job.status, job.output, job.failures) == (TaskStatus.Completed, "second time", 1)
    errors = [event.reason for event in await queue.history(job.id) if event.verb == "fail"]
    assert errors == ["timed out after 0.01 s"]


async def test_a_worker_that_lost_its_lease_stops_the_handler_and_cannot_settle(
    queue: Queue, clock: SystemClock
) -> None:
    """The clock jumps past the lease; another worker takes the job; the first learns of it and is refused."""
    first, second = Worker(queue, name="first", concurrency=1), Worker(queue, name="second")
    taken_back = asyncio.Event()

    @first.task("job")
    async def slow(_: object, context: Context) -> str:
        await context.cancelled.wait()
        taken_back.set()
        return "first"

    @second.task("job")
    async def fast(_: object) -> str:
        return "second"

    running = asyncio.create_task(first.run(handle_signals=False))
    job = await started(queue, await queue.submit("job"))
    clock.shift(queue.settings.lease_seconds + 1)
    await second.run(queue, until_empty=True, handle_signals=False)
    await asyncio.wait_for(taken_back.wait(), 30)
    first.stop()
    await running
    ended = await queue.get(job.id)
    assert (ended.output, ended.attempt, ended.failures) == ("second", 2, 1)


# The worker itself


async def test_a_worker_runs_no_more_jobs_at_a_time_than_it_has_slots(queue: Queue) -> None:
    worker = Worker(queue, concurrency=3)
    now, most = 0, 0

    @worker.task("job")
    async def count(_: object) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    await queue.submit_many([{"need": "job"}] * 20)
    await worker.run(until_empty=True, handle_signals=False)
    assert most == 3
    assert await queue.count(status="completed") == 20


async def test_stopping_lets_running_handlers_end(queue: Queue) -> None:
    worker, go_on = Worker(queue), asyncio.Event()

    @worker.task("job")
    async def slow(_: object) -> str:
        await go_on.wait()
        return "in peace"

    running = asyncio.create_task(worker.run(handle_signals=False))
    job = await started(queue, await queue.submit("job"))
    worker.stop()
    later = await queue.submit("job")
    go_on.set()
    await running
    assert (await queue.get(job.id)).output == "in peace"
    assert (await queue.get(later.id)).attempt == 0


async def test_stopping_twice_releases_what_runs_without_counting_a_failure(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def endless(_: object) -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(worker.run(handle_signals=False))
    job = await started(queue, await queue.submit("job"))
    worker.stop()
    worker.stop()
    await running
    ended = await queue.get(job.id)
    assert (ended.state, ended.attempt, ended.failures) == (State.READY, 1, 0)


async def test_a_worker_shows_itself(queue: Queue) -> None:
    worker = Worker(queue, name="shown", concurrency=7)

    worker.task("job")(nothing)
    async with at_work(worker):
        while not (shown := await queue.workers()):
            await asyncio.sleep(0.002)
    assert [(each.id, each.needs, each.slots) for each in shown] == [("shown", ("job",), 7)]


def test_a_handler_is_checked_where_it_is_registered() -> None:
    worker = Worker()
    with pytest.raises(InvalidInput, match=r"\(input\) or \(input, context\)"):
        worker.task("job")(lambda: None)
    with pytest.raises(InvalidInput, match=r"\(input\) or \(input, context\)"):
        worker.task("job")(lambda a, b, c: (a, b, c))
    worker.task("job")(nothing)
    with pytest.raises(InvalidInput, match="already"):
        worker.task("job")(nothing)
    with pytest.raises(InvalidInput, match="need"):
        worker.task("")(nothing)


async def test_a_worker_without_tasks_or_with_unknown_needs_does_not_start(queue: Queue) -> None:
    worker = Worker(queue)
    with pytest.raises(InvalidInput, match="serves nothing"):
        await worker.run()
    worker.task("mail")(nothing)
    with pytest.raises(InvalidInput, match="unknown need fax: this worker serves mail"):
        await worker.run(needs=["fax"])


async def test_a_lease_too_short_for_the_ladder_is_refused(queue: Queue) -> None:
    short = Queue(queue.engine, msgspec.structs.replace(queue.settings, lease_seconds=20))
    worker = Worker(short)
    worker.task("job")(nothing)
    with pytest.raises(InvalidSettings, match="lease_seconds is 20, but must be at least 45"):
        await worker.run()


async def test_settling_and_claiming_share_a_round_trip(queue: Queue) -> None:
    worker = Worker(queue, concurrency=5)
    worker.task("job")(nothing)
    await queue.submit_many([{"need": "job"}] * 50)
    await worker.run(until_empty=True, handle_signals=False)
    events = await queue.engine.changes(0, 1000)
    # One transaction has one time.
    shared = {e.at for e in events if e.verb == "claim"} & {e.at for e in events if e.verb == "complete"}
    assert shared
