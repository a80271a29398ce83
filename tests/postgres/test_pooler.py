"""Through PgBouncer in transaction mode: many clients share two connections to the server, and none of them
leaves anything behind that another would meet."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

import asyncpg
import pytest

from rescind import Context, Queue, TaskStatus, Worker, connect
from rescind.engine import Selector
from rescind.errors import DuplicateJob
from rescind.testing import Harness
from rescind.testing.engines import Existing
from tests.at_work import at_work, started
from tests.postgres.bouncer import bouncer
from tests.postgres.database import execute
from tests.postgres.debian import program
from tests.postgres.proxy import Proxy

SERVER_CONNECTIONS: Final = 2
PATIENCE: Final = 10.0


@pytest.fixture
def pooled(url: str) -> Iterator[str]:
    """The URL of the database through PgBouncer."""
    with bouncer(program("pgbouncer", "pgbouncer"), url, SERVER_CONNECTIONS) as through:
        yield f"{through}?pooler=transaction"


@asynccontextmanager
async def clients(url: str, number: int) -> AsyncIterator[list[Harness]]:
    harnesses = [Harness(Existing(url), prefix=f"client-{n}") for n in range(number)]
    await asyncio.gather(*(harness.open() for harness in harnesses))
    try:
        yield harnesses
    finally:
        for harness in harnesses:
            await harness.close()


async def all_verbs(harness: Harness, name: str) -> None:
    """A day in the life of a client, on jobs of its own."""
    await harness.credit(name, 10, key=f"salary of {name}")
    jobs = await harness.submit_many(5, need=name, owner=name)
    with pytest.raises(DuplicateJob):
        await harness.submit(need=name, id=jobs[0].id)
    held = await harness.claim(name, worker=name)
    assert len(held) == 5
    assert (await harness.extend(held[0], progress=0.5)).progress == 0.5
    await harness.complete(held[0], {"by": name})
    await harness.fail(held[1], retry_seconds=None)
    await harness.reschedule(held[2], need=name)
    await harness.cancel(held[3].id)
    await harness.acknowledge(held[3])
    await harness.release(held[4])
    answers = await harness.cancel_many(Selector(need=name))
    assert [answer.changed for answer in answers] == [True, True]
    metered = await harness.submit(need=name, owner=name, estimate=7)
    assert await harness.balance(name) == (3, 7)
    await harness.complete_unheld(metered.id)
    await harness.sweep()
    assert (await harness.verbs(held[0].id)) == ["submit", "claim", "extend", "complete"]


async def test_every_verb_by_many_clients_at_once(harness: Harness, pooled: str) -> None:
    async with clients(pooled, 8) as many:
        await asyncio.gather(*(all_verbs(each, f"client-{n}") for n, each in enumerate(many)))
        await harness.sweep()
        ended = Counter(str(job.outcome) for job in await many[0].jobs())
    assert ended == {"COMPLETED": 16, "FAILED": 8, "CANCELLED": 24}


async def test_a_worker_from_submit_to_cancel(pooled: str) -> None:
    """It polls, since it cannot listen; the heartbeat is a quarter of a minute away."""
    async with connect(pooled) as queue, asyncio.timeout(3 * PATIENCE):
        worker = Worker(queue, concurrency=4)

        @worker.task("quick")
        async def quick(value: int) -> int:
            return value + 1

        @worker.task("patient")
        async def patient(_: object, context: Context) -> None:
            await context.cancelled.wait()

        async with at_work(worker):
            jobs = await queue.submit_many([{"need": "quick", "input": n} for n in range(50)])
            behind = await queue.submit("quick", 99, wait_for=[job.id for job in jobs])
            running = await started(worker, await queue.submit("patient", priority=1))
            assert (await queue.wait(behind.id)).output == 100
            await queue.cancel(running.id)
            assert (await queue.wait(running.id)).status is TaskStatus.Cancelled
        assert await queue.count(status="completed") == 51


async def test_hints_come_by_polling(harness: Harness, pooled: str) -> None:
    async with connect(pooled) as queue, aclosing(queue.engine.listen(("work",))) as hints:  # type: ignore[type-var]

        async def heard(kind: str) -> tuple[str, ...]:
            async with asyncio.timeout(PATIENCE):
                while (hint := await anext(hints)).kind != kind:
                    pass
                return hint.job_ids

        held = await harness.running()
        waiting = await harness.submit("elsewhere")
        await harness.submit()
        await heard("work")
        await harness.cancel(held.id)
        assert await heard("cancel") == (held.id,)
        await harness.cancel(waiting.id)
        await heard("sweep")


async def test_nothing_is_left_behind_on_the_connections_that_others_use_next(queue: Queue, url: str) -> None:
    """Read from the wire between engine and pooler, and asked of the server's connections themselves."""
    with bouncer(program("pgbouncer", "pgbouncer"), url, SERVER_CONNECTIONS) as through:
        async with Proxy(through) as proxy:
            async with clients(f"{proxy.url}?pooler=transaction", 4) as many:
                await asyncio.gather(*(all_verbs(each, f"client-{n}") for n, each in enumerate(many)))
                await asyncio.gather(*(_listen_for_a_moment(each) for each in many))
            assert len(proxy.requests) > 100
            assert {request.statement for request in proxy.requests} == {""}
            words = " ".join(request.sql for request in proxy.requests).upper()
            assert not any(word in words for word in ("LISTEN ", "SET ", "PG_ADVISORY_LOCK", "TEMP"))
        sessions = await asyncio.gather(*(_session(through) for _ in range(SERVER_CONNECTIONS)))
    assert sessions == [([], [], [])] * SERVER_CONNECTIONS
    assert await queue.count() > 0


async def _listen_for_a_moment(harness: Harness) -> None:
    await harness.submit()
    async with aclosing(harness.engine.listen(("work",))) as hints:  # type: ignore[type-var]
        await anext(hints)


async def _session(url: str) -> tuple[list[str], list[str], list[int]]:
    """Prepared statements, channels listened to and locks of the server connection that we are lent."""
    connection = await asyncpg.connect(url, statement_cache_size=0)
    async with connection.transaction():
        await connection.execute("SELECT pg_sleep(0.2)")  # so that all of them are lent at the same time
        statements = await connection.fetch("SELECT name FROM pg_prepared_statements WHERE name <> ''")
        channels = await connection.fetch("SELECT pg_listening_channels()")
        locks = await connection.fetch(
            "SELECT pid FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
        )
    await connection.close()
    return [row[0] for row in statements], [row[0] for row in channels], [row[0] for row in locks]


async def test_a_database_can_be_made_a_store_through_it(harness: Harness, pooled: str, url: str) -> None:
    """By several at once, and the lock that lets only one of them do it is not left with the pooler."""
    await harness.engine.close()
    execute(url, "DROP SCHEMA pgwf CASCADE")
    async with clients(pooled, 4) as many:
        assert (await many[0].submit()).id == "client-0-1"
    await harness.open()
    assert len(await harness.jobs()) == 1
