"""The worker itself: slots, timeouts, leases, and how it stops."""

import asyncio

import msgspec
import pytest

from rescind import (
    Context,
    InvalidInput,
    Queue,
    State,
    TaskStatus,
    Worker,
)
from rescind.clock import SystemClock
from rescind.errors import InvalidSettings
from tests.at_work import AT_ONCE, at_work, finish, nothing, started


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
    job = await started(first, await queue.submit("job"))
    clock.shift(queue.settings.lease_seconds + 1)
    await second.run(queue, until_empty=True, handle_signals=False)
    await asyncio.wait_for(taken_back.wait(), 30)
    first.stop()
    await running
    ended = await queue.get(job.id)
    assert (ended.output, ended.attempt, ended.failures) == ("second", 2, 1)


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
    job = await started(worker, await queue.submit("job"))
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
    job = await started(worker, await queue.submit("job"))
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
