"""How a worker ends: stopped, cancelled, signalled, out of work, or with its store gone."""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rescind import (
    Context,
    Queue,
    State,
    TaskStatus,
    Worker,
    connect,
    sync,
)
from rescind.errors import InvalidInput, InvalidSettings, StoreBusy, StoreClosed, StoreFull, Unavailable
from tests.at_work import nothing, started


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
    await started(worker, job)
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
    sweep, busy = queue.engine.sweep, [StoreBusy("locked")]

    async def sweep_busy_once(**options: Any) -> Any:
        if busy:
            raise busy.pop()
        return await sweep(**options)

    queue.engine.sweep = sweep_busy_once  # type: ignore[method-assign]
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


async def test_at_shutdown_a_thread_is_told_before_its_job_is_given_away(queue: Queue) -> None:
    worker, told = Worker(queue), threading.Event()

    @worker.task("job")
    def polite(_: object, context: Context) -> None:
        while True:
            context.cancelled.wait_blocking(0.001)
            if context.is_cancellation_requested():
                told.set()
                return

    working = asyncio.create_task(worker.run(handle_signals=False))
    job = await started(worker, await queue.submit("job"))
    worker.stop()
    assert not told.is_set()  # while it drains nobody asked for the job to stop
    worker.stop()
    await working
    ended = await queue.get(job.id)
    assert told.is_set()
    assert (ended.state, ended.failures) == (State.READY, 0)


async def test_a_handler_that_breaks_because_it_was_interrupted_has_not_failed(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def torn(_: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("torn down") from None

    working = asyncio.create_task(worker.run(handle_signals=False))
    job = await started(worker, await queue.submit("job", max_attempts=1))
    worker.stop()
    worker.stop()
    await working
    assert ((ended := await queue.get(job.id)).state, ended.failures) == (State.READY, 0)


async def test_a_store_that_is_away_does_not_keep_a_worker_from_ending(queue: Queue) -> None:
    worker, go_on = Worker(queue), asyncio.Event()

    @worker.task("job")
    async def slow(_: object) -> None:
        await go_on.wait()

    working = asyncio.create_task(worker.run(handle_signals=False))
    await started(worker, await queue.submit("job"))

    async def away(*_: Any) -> Any:
        raise StoreFull("no room")

    queue.engine.settle = away  # type: ignore[assignment, method-assign]
    go_on.set()
    worker.stop()
    worker.stop()
    await asyncio.wait_for(working, 30)


async def test_a_heartbeat_that_hangs_does_not_keep_a_handler_beyond_its_lease(queue: Queue) -> None:
    hasty = msgspec.structs.replace(
        queue.settings, lease_seconds=0.4, heartbeat_seconds=0.1, grace_seconds=0.1, kill_after_seconds=0.1
    )
    worker, told = Worker(Queue(queue.engine, hasty)), asyncio.Event()

    @worker.task("job")
    async def watchful(_: object, context: Context) -> None:
        await context.cancelled.wait()
        told.set()

    async def hang(*_: Any) -> Any:
        await asyncio.Event().wait()

    working = asyncio.create_task(worker.run(handle_signals=False))
    while not await queue.workers():
        await asyncio.sleep(0.002)
    queue.engine.extend = hang  # type: ignore[assignment, method-assign]
    await queue.submit("job")
    await asyncio.wait_for(told.wait(), 30)
    worker.stop()
    await working


async def test_until_empty_waits_for_closed_slots_and_what_a_sweep_sets_free(
    patient_queue: Queue,
) -> None:
    queue, let_go = patient_queue, threading.Event()
    worker = Worker(queue, concurrency=1)

    @worker.task("deaf", timeout_seconds=0.01, grace_seconds=0)
    def deaf(_: object) -> None:
        let_go.wait()

    @worker.task("job")
    async def quick(_: object) -> str:
        let_go.set()
        return "ran"

    given_up = await queue.submit("deaf", max_attempts=1, priority=9)
    cancelled = await queue.submit("nobody-serves-this")
    behind = await queue.submit("job", wait_for=[cancelled.id])
    await queue.cancel(cancelled.id)
    working = asyncio.create_task(worker.run(until_empty=True, handle_signals=False))
    await queue.wait(given_up.id, timeout=30)
    let_go.set()
    await asyncio.wait_for(working, 30)
    assert (await queue.get(behind.id)).output == "ran"


async def test_signals_are_given_back_as_they_were(queue: Queue) -> None:
    worker = Worker(queue)
    worker.task("job")(nothing)
    mine = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        before = signal.getsignal(signal.SIGTERM)
        await worker.run(until_empty=True)
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, mine)


async def test_a_tasks_own_grace_must_fit_into_the_lease_too(queue: Queue) -> None:
    worker = Worker(queue)
    worker.task("job", grace_seconds=50)(nothing)
    with pytest.raises(InvalidSettings, match="must be at least 85"):
        await worker.run()
