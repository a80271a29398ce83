"""Handlers: what they get, what they give back, and what becomes of it."""

import asyncio
import threading

import pytest

from rescind import (
    Context,
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
from tests.at_work import AT_ONCE, at_work, finish


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
