"""A caller's own connection, whichever driver it is of, for those who submit inside its transactions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import asyncpg
import psycopg

from rescind import Job, Queue, sync


class Client(Protocol):
    async def begin(self) -> None: ...

    async def execute(self, sql: str) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def submit(self, *jobs: dict[str, Any]) -> list[Job]: ...


class Asyncpg:
    def __init__(self, queue: Queue, connection: Any) -> None:
        self.queue, self.connection = queue, connection

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str, queue: Queue) -> AsyncIterator[Client]:
        connection = await asyncpg.connect(url)
        yield cls(queue, connection)
        await connection.close()

    async def begin(self) -> None:
        self.transaction = self.connection.transaction()
        await self.transaction.start()

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()

    async def submit(self, *jobs: dict[str, Any]) -> list[Job]:
        return list(await self.queue.submit_many(jobs, connection=self.connection))


class Pooled(Asyncpg):
    """What a pool of asyncpg lends."""

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str, queue: Queue) -> AsyncIterator[Client]:
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
            yield cls(queue, connection)


class Psycopg:
    """Which begins its transactions by itself, with the first statement."""

    def __init__(self, queue: Queue, connection: Any) -> None:
        self.queue, self.connection = queue, connection

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str, queue: Queue) -> AsyncIterator[Client]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            yield cls(queue, connection)

    async def begin(self) -> None: ...

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def submit(self, *jobs: dict[str, Any]) -> list[Job]:
        return list(await self.queue.submit_many(jobs, connection=self.connection))


class PsycopgSync:
    """Through the sync twin."""

    def __init__(self, queue: sync.Queue, connection: Any) -> None:
        self.queue, self.connection = queue, connection

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str, _: Queue) -> AsyncIterator[Client]:
        with sync.connect(url, by="test") as queue, psycopg.connect(url) as connection:
            yield cls(queue, connection)

    async def begin(self) -> None: ...

    async def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def submit(self, *jobs: dict[str, Any]) -> list[Job]:
        return list(self.queue.submit_many(jobs, connection=self.connection))


KINDS: Final = {
    "asyncpg": Asyncpg.connected,
    "asyncpg-pool": Pooled.connected,
    "psycopg": Psycopg.connected,
    "psycopg-sync": PsycopgSync.connected,
}
