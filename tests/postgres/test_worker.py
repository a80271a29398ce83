"""A worker with many slots, which has two exchanges with the server under way by turns."""

import asyncio
from typing import Any, Final

from rescind import Queue, TaskStatus, Worker
from tests.at_work import at_work, started

SLOTS: Final = 64
PATIENCE: Final = 10.0


async def test_it_does_each_job_once_and_never_more_at_a_time_than_it_has_slots(queue: Queue) -> None:
    worker, now, most, runs = Worker(queue, concurrency=SLOTS), 0, 0, 0

    @worker.task("job")
    async def count(_: object) -> None:
        nonlocal now, most, runs
        now, runs = now + 1, runs + 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    await queue.submit_many([{"need": "job"}] * 1000)
    await worker.run(until_empty=True, handle_signals=False)
    assert await queue.count(status="completed") == runs == 1000
    assert SLOTS // 2 < most <= SLOTS


async def test_it_ends_as_soon_as_its_handlers_have(queue: Queue) -> None:
    worker, go_on = Worker(queue, concurrency=SLOTS), asyncio.Event()

    @worker.task("job")
    async def patient(_: object) -> None:
        await go_on.wait()

    for _ in range(5):
        go_on.clear()
        jobs = await queue.submit_many([{"need": "job"}] * SLOTS)
        async with asyncio.timeout(PATIENCE), at_work(worker):
            await started(worker, jobs[-1])
            worker.stop()
            go_on.set()
    assert await queue.count(status="completed") == 5 * SLOTS


async def test_while_it_drains_it_waits_quietly(queue: Queue) -> None:
    # Given a worker that has been stopped, and a handler that takes its time
    worker, go_on, exchanges = Worker(queue, concurrency=SLOTS), asyncio.Event(), 0

    @worker.task("job")
    async def patient(_: object) -> None:
        await go_on.wait()

    settle = queue.engine.settle

    async def counted(*arguments: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        return await settle(*arguments)

    queue.engine.settle = counted  # type: ignore[assignment, method-assign]
    async with at_work(worker):
        job = await started(worker, await queue.submit("job"))
        worker.stop()
        # When a moment goes by
        exchanges = 0
        await asyncio.sleep(0.3)
        # Then it has asked now and then, not all the time
        assert exchanges < 15
        go_on.set()
    assert (await queue.get(job.id)).status is TaskStatus.Completed
