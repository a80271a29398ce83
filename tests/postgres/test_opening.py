"""Opening a queue that cannot be opened: each reason is an error of its own, and none tells the password."""

import asyncio
import logging
import uuid
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest

from rescind import Queue, Worker, connect, sync
from rescind.engine import open_engine
from rescind.engines.postgres import installation
from rescind.engines.postgres.engine import PostgresEngine
from rescind.engines.postgres.script import VERSION
from rescind.errors import (
    InvalidInput,
    NoSuchStore,
    RescindError,
    StoreReadOnly,
    StoreTooNew,
    StoreTooOld,
    Unavailable,
)
from rescind.testing.postgres import Server
from tests.at_work import at_work
from tests.postgres.database import execute
from tests.postgres.proxy import Proxy

SECRET: Final = "Geheimnis%21"  # as it is written in a URL


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Which asks one user for a password, and lets another make nothing."""
    with Server() as server:
        execute(server.url(), "CREATE ROLE ann LOGIN PASSWORD 'Geheimnis!'")
        execute(server.url(), "CREATE ROLE bob LOGIN")
        execute(server.url(), "CREATE ROLE eve LOGIN CONNECTION LIMIT 0")
        rules = server.directory / "data" / "pg_hba.conf"
        rules.write_text("host all ann 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        execute(server.url(), "SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def empty(server: Server) -> str:
    """The URL of a database without anything in it."""
    return server.create_database(f"trial_{uuid.uuid4().hex[:12]}")


def name_of(url: str) -> str:
    return urlsplit(url).path[1:]


def as_user(url: str, user: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}@{parts.hostname}:{parts.port}").geturl()


async def refusal(url: str, *, create: bool = True) -> RescindError:
    with pytest.raises(RescindError) as refused:
        await connect(url, create=create)
    return refused.value


def told(problem: BaseException | None) -> str:
    """Everything that an error and those behind it say."""
    words = []
    while problem is not None:
        words.append(f"{problem!r} {problem}")
        problem = problem.__cause__ or problem.__context__
    return "\n".join(words)


# The server


async def test_a_server_that_is_not_there(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Proxy(server.url()) as proxy:
        nowhere = as_user(proxy.url, f"ann:{SECRET}")
    problem = await refusal(nowhere)
    assert type(problem) is Unavailable
    place = urlsplit(nowhere)
    assert f"postgres://127.0.0.1:{place.port}/postgres cannot be reached: " in str(problem)
    assert "Connect call failed" in str(problem)
    assert "Geheimnis" not in told(problem) + caplog.text


async def test_a_host_that_has_no_address() -> None:
    problem = await refusal("postgres://ann:Geheimnis%21@no-such-host.invalid:5432/queue")
    assert type(problem) is Unavailable
    assert "postgres://no-such-host.invalid:5432/queue cannot be reached" in str(problem)
    assert "Geheimnis" not in told(problem)


async def test_a_wrong_password(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    problem = await refusal(as_user(server.url(), f"ann:{SECRET}wrong"))
    assert type(problem) is Unavailable
    assert 'password authentication failed for user "ann"' in str(problem)
    assert "Geheimnis" not in told(problem) + caplog.text


async def test_the_right_password(empty: str) -> None:
    execute(empty, f"GRANT CREATE ON DATABASE {name_of(empty)} TO ann")
    async with connect(as_user(empty, f"ann:{SECRET}")) as queue:
        assert await queue.count() == 0


async def test_a_user_that_is_not_there(server: Server) -> None:
    problem = await refusal(as_user(server.url(), "nobody"))
    assert type(problem) is Unavailable
    assert 'role "nobody" does not exist' in str(problem)


async def test_a_user_with_too_many_connections(server: Server) -> None:
    problem = await refusal(as_user(server.url(), "eve"))
    assert type(problem) is Unavailable
    assert 'too many connections for role "eve"' in str(problem)


async def test_a_database_that_is_not_there(server: Server) -> None:
    problem = await refusal(server.url("nowhere"))
    assert type(problem) is NoSuchStore
    assert 'database "nowhere" does not exist' in str(problem)


async def test_the_sync_twin_says_the_same(server: Server) -> None:
    with pytest.raises(NoSuchStore, match='database "nowhere" does not exist'):
        await asyncio.to_thread(sync.connect, server.url("nowhere"))


@pytest.mark.parametrize(
    "url",
    [
        "postgres://ann:Geheimnis/1@127.0.0.1/queue",
        "postgres://ann:Geheimnis?1@127.0.0.1/queue",
        "postgres://ann:Geheimnis#1@127.0.0.1/queue",
        "postgres://ann:Geheimnis@127.0.0.1:http/queue",
        "postgres://ann:Geheimnis@[127.0.0.1/queue",
        "postgres://ann:Geheimnis@127.0.0.1/queue?sslmode=perhaps",
        "postgres://ann:Geheimnis@127.0.0.1/queue?pooler=session",
        "postgres://ann:Geheimnis@127.0.0.1/queue?pool_size=0",
        "postgres://ann:Geheimnis@127.0.0.1/queue?pool_size=many",
        "postgers://ann:Geheimnis@127.0.0.1/queue",
    ],
)
async def test_a_url_that_makes_no_sense(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await connect(url)
    assert "Geheimnis" not in told(refused.value)


# The schema


async def test_a_schema_that_is_missing_is_made_only_when_that_is_wanted(empty: str) -> None:
    problem = await refusal(empty, create=False)
    assert type(problem) is NoSuchStore
    assert str(problem) == f"{as_shown(empty)} has no pgwf schema: make it with `rescind db install`"
    async with connect(empty):
        pass
    async with connect(empty, create=False) as queue:
        assert await queue.count() == 0


def as_shown(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.hostname}:{parts.port}").geturl()


async def test_a_user_who_may_not_make_the_schema(empty: str) -> None:
    problem = await refusal(as_user(empty, "bob"))
    assert type(problem) is StoreReadOnly
    assert "this database user may not make or change the schema pgwf" in str(problem)
    assert execute(empty, "SELECT to_regnamespace('pgwf')") == [(None,)]


async def test_a_user_without_a_role_may_not_use_it_and_one_with_a_role_may(empty: str) -> None:
    async with connect(empty):
        pass
    problem = await refusal(as_user(empty, "bob"))
    assert type(problem) is StoreReadOnly
    assert "permission denied for schema pgwf" in str(problem) and "pgwf_producer" in str(problem)
    execute(empty, "GRANT pgwf_producer TO bob")
    try:
        async with connect(as_user(empty, "bob")) as queue:
            await queue.submit("work")
            with pytest.raises(StoreReadOnly, match="permission denied for function sweep"):
                await queue.sweep()
    finally:
        execute(empty, "REVOKE pgwf_producer FROM bob")


@pytest.mark.parametrize(("by", "kind"), [(1, StoreTooNew), (-1, StoreTooOld)])
async def test_a_schema_of_another_version(empty: str, by: int, kind: type[RescindError]) -> None:
    async with connect(empty):
        pass
    execute(empty, "UPDATE pgwf.settings SET schema_version = schema_version + %s", by)
    problem = await refusal(empty)
    assert type(problem) is kind
    assert f"pgwf version {VERSION + by}" in str(problem)
    assert ("upgrade rescind" if by > 0 else "rescind db upgrade") in str(problem)


async def test_a_schema_that_is_taken_away_under_an_open_queue(empty: str) -> None:
    async with connect(empty) as queue:
        execute(empty, "DROP SCHEMA pgwf CASCADE")
        with pytest.raises(NoSuchStore, match="has no pgwf schema"):
            await queue.submit("work")


async def test_an_install_that_failed_can_be_tried_again(empty: str) -> None:
    async with Proxy(empty) as proxy:
        await proxy.shut()
        engine = open_engine(proxy.url)
        with pytest.raises(Unavailable):
            await engine.install()
        await proxy.open_up()
        await engine.install()
        assert await engine.workers() == []
        await engine.close()


async def test_a_database_that_is_read_only_for_a_while(empty: str) -> None:
    # Given connections that lead to where nothing can be written, as they do after a failover
    async with connect(empty) as queue:
        job = await queue.submit("work")
    execute(empty, f"ALTER DATABASE {name_of(empty)} SET default_transaction_read_only = on")
    async with connect(empty) as queue:
        assert await queue.get(job.id) == job
        with pytest.raises(StoreReadOnly, match="read-only"):
            await queue.submit("work")
        # When that has been put right, then they are not used any more
        execute(
            f"{empty}?options=-cdefault_transaction_read_only%3Doff",
            f"ALTER DATABASE {name_of(empty)} RESET default_transaction_read_only",
        )
        await queue.submit("work")


@pytest.mark.race
async def test_many_may_open_an_empty_database_at_once(empty: str) -> None:
    engines = [open_engine(empty) for _ in range(6)]
    await asyncio.gather(*(engine.install() for engine in engines))
    for engine in engines:
        assert await engine.workers() == []
        await engine.close()
    assert execute(empty, "SELECT trace, notify FROM pgwf.settings") == [(True, True)]


@pytest.mark.race
async def test_the_schema_may_be_installed_again_while_a_worker_uses_it(queue: Queue, url: str) -> None:
    worker = Worker(queue, concurrency=4)

    @worker.task("job")
    async def quick(_: object) -> None: ...

    operator = PostgresEngine(url)
    await operator.install()
    ids: list[str] = []

    async def submit() -> None:
        for _ in range(100):
            ids.append((await queue.submit("job")).id)

    async with at_work(worker):
        submitting = [asyncio.create_task(submit()) for _ in range(4)]
        for _ in range(4):
            await installation.install(operator.server)
        await asyncio.gather(*submitting)
        for id in ids:
            assert (await queue.wait(id, timeout=30)).attempt == 1
    await operator.close()
