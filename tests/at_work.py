"""What tests of the worker share: putting one to work, and waiting for a job to be taken."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from rescind import Job, Queue, Retry, Worker

AT_ONCE: Final = Retry(first_seconds=0, jitter=0)


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


async def started(worker: Worker, job: Job) -> Job:
    """Wait until the worker runs the job's handler: a claim that is still on its way may be given back."""
    assert worker.queue is not None
    while not _runs(worker, job):
        await asyncio.sleep(0.002)
    await asyncio.sleep(0)  # it has made its first step
    return await worker.queue.get(job.id)


def _runs(worker: Worker, job: Job) -> bool:
    attempts = worker._loop._attempts.values() if worker._loop else ()
    return any(attempt.job.id == job.id and attempt.is_running for attempt in attempts)
