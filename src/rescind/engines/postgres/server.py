"""The way to the server: the pool, and how one call is made, repeated or given up. Knows nothing of jobs."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from rescind.clock import Clock
from rescind.engines.postgres.refusal import AWAY, lost_a_race, translated
from rescind.errors import InvalidInput, StoreClosed
from rescind.lifecycle import Verb

_ATTEMPTS: Final = 10  # of a call that lost a race it may simply run again
_POOL_SIZE: Final = 10
_CONNECT_SECONDS: Final = 20.0
_CALL_SECONDS: Final = 600.0  # a server that has not answered by then is taken for gone
_GOODBYE_SECONDS: Final = 0.5  # for a call whose caller has given up
_CLOSE_SECONDS: Final = 10.0  # for calls that are under way when the engine is closed

Connection = Any  # asyncpg's own, or what its pool lends
T = TypeVar("T")


class Server:
    """One database, reached directly or through a pooler in transaction mode, where nothing may outlive a
    transaction: no LISTEN, no named prepared statements, no session settings."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.url, options = _split(url)
        self.clock = clock
        self.pooled = options.pop("pooler", "") == "transaction"
        self.size = _pool_size(options.pop("pool_size", str(_POOL_SIZE)))
        self._pool: asyncpg.Pool | None = None

    @property
    def place(self) -> str:
        """Where it is, fit to be shown: without the password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    def translated(self, verb: Verb | None = None) -> AbstractContextManager[None]:
        return translated(self.place, verb)

    async def open(self) -> None:
        with self.translated():
            self._pool = await asyncpg.create_pool(
                self.url, min_size=0, max_size=self.size, reset=_keep_as_it_is, **self._options()
            )

    async def connect(self) -> Connection:
        """A connection outside the pool, for what holds on to one."""
        with self.translated():
            return await asyncpg.connect(self.url, **self._options())

    def _options(self) -> dict[str, Any]:
        if self.pooled:  # without a cache a statement is parsed and executed in one message, under no name
            return {"statement_cache_size": 0, "timeout": _CONNECT_SECONDS}
        return {
            "timeout": _CONNECT_SECONDS,
            "server_settings": {"application_name": "rescind", "timezone": "UTC", "jit": "off"},
        }

    async def close(self) -> None:
        """Calls that are under way may end, unless the server does not answer."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with contextlib.suppress(*AWAY):  # then the pool has dropped its connections
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await pool.close()

    async def fetch(
        self, sql: str, *parameters: Any, verb: Verb | None = None, seconds: float = _CALL_SECONDS
    ) -> Sequence[Any]:
        """The rows of one call. A race that was lost without a trace is run again; an answer that does not
        come within `seconds` is not waited for, and what was asked may have been done or not."""
        with self.translated(verb):
            return await self.attempt(sql, *parameters, seconds=seconds)

    async def attempt(self, sql: str, *parameters: Any, seconds: float = _CALL_SECONDS) -> Sequence[Any]:
        """As `fetch`, with PostgreSQL's own errors."""
        try:
            return await self.again(lambda: self._once(sql, parameters, seconds))
        except (*AWAY, asyncpg.ReadOnlySQLTransactionError):
            await self._renew()
            raise

    async def again(self, call: Callable[[], Awaitable[T]]) -> T:
        """Once more, if it lost a race that leaves no trace, and a few times more."""
        for attempt in range(_ATTEMPTS - 1):
            try:
                return await call()
            except asyncpg.PostgresError as problem:
                if not lost_a_race(problem):
                    raise
                await self.clock.sleep(self.clock.random() * 0.01 * 2**attempt)
        return await call()

    async def _once(self, sql: str, parameters: Sequence[Any], seconds: float) -> Sequence[Any]:
        async with asyncio.timeout(seconds):
            return await self._call(sql, parameters)

    async def _call(self, sql: str, parameters: Sequence[Any]) -> Sequence[Any]:
        if (pool := self._pool) is None:
            raise StoreClosed(f"{self.place} is not open: it has been closed, or was never installed")
        connection = await pool.acquire()
        try:
            rows: Sequence[Any] = await connection.fetch(sql, *parameters)
            return rows
        except asyncpg.InternalServerError:
            connection.terminate()  # its session may remember what is no more
            raise
        finally:
            with contextlib.suppress(Exception):  # one that does not come to rest in time is dropped
                await pool.release(connection, timeout=_GOODBYE_SECONDS)

    async def _renew(self) -> None:
        """A connection was lost, or led to a server that may not be written to any more: the others are
        probably no better, and are made anew before their next use."""
        if self._pool is not None:
            await self._pool.expire_connections()

    async def ask(self, connection: Connection, sql: str, *parameters: Any, seconds: float) -> Sequence[Any]:
        """On a connection that the caller holds on to; when no answer comes, it is dropped."""
        with self.translated():
            try:
                async with asyncio.timeout(seconds):
                    rows: Sequence[Any] = await connection.fetch(sql, *parameters)
                    return rows
            except TimeoutError:
                connection.terminate()
                raise


async def _keep_as_it_is(_connection: Connection) -> None:
    """Our calls leave nothing behind in a session, so there is nothing to reset and no round trip to pay."""


def _split(url: str) -> tuple[str, dict[str, str]]:
    """The URL as asyncpg takes it, and the options in it that are ours."""
    try:
        parts = urlsplit(url)
    except ValueError as problem:
        raise InvalidInput(f"this URL of PostgreSQL cannot be read: {problem}") from problem
    if "@" in parts.path + parts.query.partition("=")[0] + parts.fragment:  # nothing of it may be shown
        raise InvalidInput("percent-encode the password in the URL: %2F is /, %3F is ?, %23 is #, %40 is @")
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = re.search(r":([^:\]]*)$", host)
        if port and not (port[1].isascii() and port[1].isdecimal() and int(port[1]) < 65536):
            raise InvalidInput(
                "the port in the URL must be a number below 65536, as in postgres://host:5432/name"
            )
    query = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in query if name in ("pooler", "pool_size")}
    if ours.get("pooler", "transaction") != "transaction":
        raise InvalidInput(f"pooler={ours['pooler']} is not known: leave it out, or write pooler=transaction")
    rest = urlencode([(name, value) for name, value in query if name not in ours])
    return urlunsplit(parts._replace(query=rest)), ours


def _pool_size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 1000):
        raise InvalidInput(f"pool_size must be a whole number from 1 to 1000, not {text!r}")
    return int(text)
