"""Submitting inside the caller's own transaction, on a connection of asyncpg or psycopg."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import asyncpg
import psycopg
import pytest
from psycopg.rows import namedtuple_row

from rescind import Queue, TaskStatus, Worker, connect
from rescind.errors import (
    DependencyCycle,
    DuplicateJob,
    IdempotencyConflict,
    InsufficientTokens,
    InvalidInput,
    StoreReadOnly,
    Unavailable,
    UnknownDependency,
)
from rescind.testing import Harness
from tests.at_work import at_work, started
from tests.postgres.clients import KINDS, Client

PATIENCE: Final = 10.0


@pytest.fixture(params=KINDS)
def client(
    request: pytest.FixtureRequest, runner: asyncio.Runner, queue: Queue, url: str
) -> Iterator[Client]:
    opening: AbstractAsyncContextManager[Client] = KINDS[request.param](url, queue)
    yield runner.run(_enter(opening))
    runner.run(_leave(opening))


async def _enter(opening: AbstractAsyncContextManager[Client]) -> Client:
    return await opening.__aenter__()


async def _leave(opening: AbstractAsyncContextManager[Client]) -> None:
    await opening.__aexit__(None, None, None)


async def ids(queue: Queue) -> list[str]:
    return sorted(job.id for job in await queue.list())


# Commit and rollback


async def test_a_commit_makes_the_job_appear(client: Client, queue: Queue) -> None:
    # Given a job submitted in a transaction
    await client.begin()
    (job,) = await client.submit({"need": "mail", "input": {"to": ["ann", None, 1.5]}, "owner": "bob"})
    assert (job.need, job.input, job.owner) == ("mail", {"to": ["ann", None, 1.5]}, "bob")
    assert await queue.count() == 0
    # When it is committed, then the job is there, as it was answered
    await client.commit()
    assert await queue.get(job.id) == job


async def test_a_rollback_makes_it_vanish(client: Client, queue: Queue) -> None:
    """Also when the submit was the first statement, so that the driver has not begun a transaction yet."""
    await client.begin()
    await client.submit({"need": "mail", "id": "a"}, {"need": "mail", "id": "b", "wait_for": ["a"]})
    await client.rollback()
    assert await queue.count() == 0
    await client.begin()
    await client.execute("SELECT 1")
    await client.submit({"need": "mail", "id": "a"})
    await client.rollback()
    assert await queue.count() == 0


async def test_it_shares_the_fate_of_what_the_caller_writes_beside_it(client: Client, queue: Queue) -> None:
    await client.begin()
    await client.execute("CREATE TEMPORARY TABLE orders (id int)")
    await client.commit()
    await client.begin()
    await client.execute("INSERT INTO orders VALUES (1)")
    await client.submit({"need": "mail", "id": "with-the-order"})
    await client.commit()
    await client.begin()
    await client.execute("INSERT INTO orders VALUES (2)")
    await client.submit({"need": "mail", "id": "without"})
    await client.rollback()
    assert await ids(queue) == ["with-the-order"]


async def test_a_savepoint_of_the_caller_takes_back_what_came_after_it(client: Client, queue: Queue) -> None:
    await client.begin()
    await client.submit({"need": "mail", "id": "outer"})
    await client.execute("SAVEPOINT here")
    await client.submit({"need": "mail", "id": "inner"})
    await client.execute("ROLLBACK TO SAVEPOINT here")
    await client.submit({"need": "mail", "id": "after"})
    await client.commit()
    assert await ids(queue) == ["after", "outer"]


async def test_nested_transactions_of_the_drivers_do_the_same(queue: Queue, url: str) -> None:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await queue.submit("mail", id="asyncpg", connection=connection)
        taken_back = connection.transaction()
        await taken_back.start()
        await queue.submit("mail", id="taken-back", connection=connection)
        await taken_back.rollback()
        async with connection.transaction():
            await queue.submit("mail", id="asyncpg-inner", connection=connection)
    await connection.close()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other, other.transaction():
        await queue.submit("mail", id="psycopg", connection=other)
        async with other.transaction(force_rollback=True):
            await queue.submit("mail", id="taken-back", connection=other)
    assert await ids(queue) == ["asyncpg", "asyncpg-inner", "psycopg"]


async def test_without_a_transaction_it_is_committed_at_once(queue: Queue, url: str) -> None:
    connection = await asyncpg.connect(url)
    await queue.submit("mail", id="asyncpg", connection=connection)
    await connection.close()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        await queue.submit("mail", id="psycopg", connection=other)
        assert await ids(queue) == ["asyncpg", "psycopg"]


async def test_a_worker_hears_of_it_at_the_commit(client: Client, queue: Queue) -> None:
    worker = Worker(queue)

    @worker.task("job")
    async def quick(_: object) -> str:
        return "done"

    async with at_work(worker):
        await client.begin()
        (job,) = await client.submit({"need": "job"})
        await client.commit()
        assert (await queue.wait(job.id, timeout=PATIENCE)).output == "done"


# Refusals


REFUSED: Final[dict[str, tuple[type[Exception], dict[str, Any]]]] = {
    "duplicate": (DuplicateJob, {"id": "taken"}),
    "unknown dependency": (UnknownDependency, {"wait_for": ["nobody"]}),
    "circle": (DependencyCycle, {"id": "self", "wait_for": ["self"]}),
    "key": (IdempotencyConflict, {"idempotency_key": "k", "input": "other"}),
    "tokens": (InsufficientTokens, {"owner": "ann", "estimate": 11}),
}


@pytest.mark.parametrize("reason", REFUSED)
async def test_a_refusal_is_that_of_the_queue_and_does_not_abort_the_transaction(
    client: Client, queue: Queue, reason: str
) -> None:
    # Given a store in which some things are taken
    kind, options = REFUSED[reason]
    await queue.submit("mail", id="taken", idempotency_key="k")
    await queue.credit("ann", 10)
    with pytest.raises(kind) as expected:
        await queue.submit("mail", **options)
    # When a submit is refused in the middle of the caller's transaction
    await client.begin()
    await client.submit({"need": "mail", "id": "before"})
    with pytest.raises(kind) as refused:
        await client.submit({"need": "mail", "id": "never"}, {"need": "mail", **options})
    assert str(refused.value) == str(expected.value)
    # Then the transaction goes on without it
    await client.submit({"need": "mail", "id": "after"})
    await client.commit()
    assert await ids(queue) == ["after", "before", "taken"]
    assert (await queue.account("ann")).reserved == 0


async def test_a_transaction_that_has_failed_already_is_the_callers_affair(
    client: Client, queue: Queue
) -> None:
    await client.begin()
    with pytest.raises(Exception, match="division by zero"):
        await client.execute("SELECT 1 / 0")
    with pytest.raises(InvalidInput, match="roll this transaction back first"):
        await client.submit({"need": "mail"})
    await client.rollback()
    assert await queue.count() == 0


async def test_a_read_only_transaction_is_refused_as_such(client: Client, queue: Queue) -> None:
    await client.begin()
    await client.execute("SET TRANSACTION READ ONLY")
    with pytest.raises(StoreReadOnly):
        await client.submit({"need": "mail"})
    await client.rollback()
    assert await queue.count() == 0


async def test_a_connection_that_is_closed_is_reported_as_unavailable(queue: Queue, url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.close()
    with pytest.raises(Unavailable, match="connection is closed"):
        await queue.submit("mail", connection=connection)
    other = await psycopg.AsyncConnection.connect(url)
    await other.close()
    with pytest.raises(Unavailable, match="connection is closed"):
        await queue.submit("mail", connection=other)


# Connections of other kinds


async def test_what_is_no_connection_is_refused(queue: Queue, url: str) -> None:
    async with (
        asyncpg.create_pool(url, min_size=0, max_size=1) as pool,
        await psycopg.AsyncConnection.connect(url) as connection,
        connection.cursor() as cursor,
    ):
        for wrong in (pool, cursor, url, object(), queue):
            with pytest.raises(InvalidInput, match="must be a Connection of asyncpg or psycopg, not "):
                await queue.submit("mail", connection=wrong)
    assert await queue.count() == 0


async def test_sqlite_has_no_such_thing(tmp_path: Path, url: str) -> None:
    async with (
        connect(f"sqlite://{tmp_path}/jobs.db") as lite,
        await psycopg.AsyncConnection.connect(url) as connection,
    ):
        with pytest.raises(InvalidInput, match="only PostgreSQL"):
            await lite.submit("mail", connection=connection)


async def test_connections_may_be_set_up_as_their_owner_likes(queue: Queue, url: str) -> None:
    """With codecs and row factories that turn JSON and rows into something else."""

    class Row(asyncpg.Record):
        def __getitem__(self, name: Any) -> Any:
            raise KeyError("ask by attribute")

    class Connection(asyncpg.Connection):
        pass

    connection = await asyncpg.connect(url, record_class=Row, connection_class=Connection)
    await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    job = await queue.submit("mail", {"a": 1}, connection=connection)
    assert job == await queue.get(job.id)
    await connection.close()
    other = await psycopg.AsyncConnection.connect(
        url, row_factory=namedtuple_row, cursor_factory=psycopg.AsyncRawCursor
    )
    async with other:
        job = await queue.submit("mail", {"a": 1}, connection=other)
    assert job == await queue.get(job.id)


# Others meanwhile


async def test_a_long_transaction_holds_up_nobody_who_works_on_other_jobs(
    client: Client, harness: Harness
) -> None:
    # Given a transaction that stays open, with a job of a singleton key and one that waits for a running job
    held = await harness.running(singleton_key="printer", id="held")
    ready = await harness.submit("later", id="ready")
    await client.begin()
    await client.submit(
        {"need": "work", "id": "same-key", "singleton_key": "printer"},
        {"need": "work", "id": "behind", "wait_for": ["held", "ready"]},
    )
    async with asyncio.timeout(PATIENCE):
        # When others work meanwhile, also on jobs of that key
        await harness.submit("work", id="other", singleton_key="printer")
        free = await harness.submit("work", id="free", singleton_key="scanner")
        claimed = await harness.claim_one()
        # Then they are not held up
        assert claimed.id == free.id
        await harness.complete(claimed)
        await harness.extend(held)
        await harness.sweep()
        assert (await harness.claim_one("later")).id == ready.id
        await harness.cancel(ready.id)
    await client.commit()
    # And after its end all goes on
    await harness.complete(held)
    assert {(await harness.claim_one()).id} <= {"other", "same-key"}


async def test_a_worker_is_not_held_up_by_one_job_that_a_transaction_holds(
    client: Client, queue: Queue
) -> None:
    worker, end = Worker(queue, concurrency=2), asyncio.Event()

    @worker.task("slow")
    async def slow(_: object) -> None:
        await end.wait()

    @worker.task("quick")
    async def quick(_: object) -> str:
        return "done"

    async with at_work(worker):
        # Given a worker with a job that somebody, in a transaction that stays open, makes another wait for
        held = await started(worker, await queue.submit("slow"))
        await client.begin()
        (behind,) = await client.submit({"need": "quick", "wait_for": [held.id]})
        # When that job has ended
        end.set()
        # Then the worker goes on with others meanwhile
        for _ in range(3):
            other = await queue.submit("quick")
            assert (await queue.wait(other.id, timeout=PATIENCE)).output == "done"
        await client.commit()
        assert (await queue.wait(held.id, timeout=PATIENCE)).status is TaskStatus.Completed
        assert (await queue.wait(behind.id, timeout=PATIENCE)).output == "done"
