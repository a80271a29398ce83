"""How often the engine talks to the server, counted on the wire."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from rescind import Queue, Worker, connect
from rescind.engine import Claim, Document, Filter, Selector
from rescind.lease import Complete, Report
from rescind.settings import Settings
from rescind.testing import Harness
from rescind.testing.engines import Existing
from tests.at_work import at_work, started
from tests.postgres.proxy import Proxy

JOBS: Final = 400
SLOTS: Final = 20


async def test_a_worker_settles_and_claims_a_whole_batch_per_round_trip(queue: Queue, url: str) -> None:
    # Given many jobs, and a worker with some slots on a connection that is being watched
    await queue.submit_many([{"need": "job"}] * JOBS)
    async with Proxy(url) as proxy, connect(proxy.url) as watched:
        worker = Worker(watched, concurrency=SLOTS)

        @worker.task("job")
        async def quick(_: object) -> str:
            return "done"

        # When it does them all
        proxy.requests.clear()
        await worker.run(until_empty=True, handle_signals=False)
    # Then it has exchanged batches as large as its slots, or half of them by turns: each settles what one
    # before it has brought, and brings more
    assert await queue.count(status="completed") == JOBS
    exchanges = proxy.executed("settle_jobs")
    assert JOBS / SLOTS < len(exchanges) <= 2 * JOBS / SLOTS + 4
    # And besides there is only what a worker says when it begins and ends
    assert len(proxy.requests) - len(exchanges) < 25, proxy.requests


async def test_a_heartbeat_is_one_round_trip_for_all_leases(queue: Queue, url: str) -> None:
    # Given a worker that holds many leases
    hasty = Settings(lease_seconds=3, heartbeat_seconds=0.1, grace_seconds=0.1, kill_after_seconds=0.1)
    jobs = await queue.submit_many([{"need": "job"}] * SLOTS)
    async with Proxy(url) as proxy, connect(proxy.url, settings=hasty) as watched:
        worker, go_on = Worker(watched, concurrency=SLOTS), asyncio.Event()

        @worker.task("job")
        async def patient(_: object) -> None:
            await go_on.wait()

        async with at_work(worker):
            await started(worker, jobs[-1])
            # When three heartbeats have gone by
            before = {job.id: job.lease_expires_at for job in await queue.list(limit=SLOTS)}
            proxy.requests.clear()
            while len(beats := proxy.executed("extend_jobs")) < 3:
                await asyncio.sleep(0.01)
            # Then all leases have moved on
            after = {job.id: job.lease_expires_at for job in await queue.list(limit=SLOTS)}
            assert len(beats) < SLOTS
            assert all(after[id] > before[id] for id in before)  # type: ignore[operator] # they are leased
            go_on.set()


@asynccontextmanager
async def one_statement(proxy: Proxy, name: str) -> AsyncIterator[None]:
    proxy.requests.clear()
    yield
    assert [request.kind for request in proxy.executed()] == ["execute"], (name, proxy.requests)
    assert f"pgwf.{name}(" in proxy.executed()[0].sql


async def test_every_method_of_the_engine_is_one_statement(url: str) -> None:
    async with Proxy(url) as proxy:
        watched = Harness(Existing(proxy.url), prefix="watched")
        await watched.open()
        for name, call in await _calls(watched):
            async with one_statement(proxy, name):
                await call
        await watched.close()


async def _calls(harness: Harness) -> list[tuple[str, Coroutine[Any, Any, Any]]]:
    """Every method with as many jobs as it takes, and the function of SQL that it is."""
    engine, worker = harness.engine, harness.worker()
    await harness.submit_many(10)
    held = await harness.claim(limit=5)
    waiting = await harness.submit_many(4, need="other")
    claim = Claim(worker=worker.id, needs=("work",), limit=5, lease_seconds=60)
    ids = [job.id for job in (*held, *waiting)]
    return [
        ("submit_jobs", harness.submit_many(50)),
        ("extend_jobs", engine.extend(worker, [Report(lease=job.lease) for job in held], 60)),
        ("settle_jobs", engine.settle([Complete(lease=job.lease, output=b"1") for job in held], claim)),
        ("settle_jobs", engine.claim(claim)),
        ("complete_unheld_job", harness.complete_unheld(waiting[0].id)),
        ("reschedule_unheld_job", harness.reschedule_unheld(waiting[1].id)),
        ("cancel_jobs", harness.cancel_many(Selector(ids=tuple(ids)))),
        ("cancel_jobs", harness.cancel_many(Selector(need="work", running=True), dry_run=True)),
        ("sweep", harness.sweep()),
        ("get_jobs", engine.get(ids)),
        ("list_jobs", engine.list(Filter(), limit=10)),
        ("count_jobs", engine.count(Filter())),
        ("job_history", engine.history(ids[0])),
        ("changes", engine.changes(0, 10)),
        ("credit", engine.credit("ann", 5, by="tester")),
        ("account", engine.account("ann")),
        ("list_workers", engine.workers()),
        ("put_document", engine.document("trial", Document("trial", 0, {"a": 1}))),
        ("get_document", engine.document("trial")),
    ]
