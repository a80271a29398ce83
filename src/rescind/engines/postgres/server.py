"""The way to the server: the pool, and how one call is made, repeated or given up. Knows nothing of jobs."""

import logging
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from rescind.clock import Clock
from rescind.engines.postgres.refusal import AGAIN, translated
from rescind.errors import InvalidInput, StoreClosed
from rescind.lifecycle import Verb

_log = logging.getLogger(__name__)
_ATTEMPTS: Final = 10  # of a call that lost a race it may simply run again
_POOL_SIZE: Final = 10

Connection = Any  # asyncpg's own, or what its pool lends


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
        return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    async def open(self) -> None:
        with translated():
            self._pool = await asyncpg.create_pool(
                self.url, min_size=0, max_size=self.size, reset=_keep_as_it_is, **self._options()
            )

    async def connect(self) -> Connection:
        """A connection outside the pool, for what holds on to one."""
        with translated():
            return await asyncpg.connect(self.url, **self._options())

    def _options(self) -> dict[str, Any]:
        if self.pooled:
            return {"statement_cache_size": 0, "timeout": 20}
        return {
            "timeout": 20,
            "server_settings": {"application_name": "rescind", "timezone": "UTC", "jit": "off"},
        }

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def fetch(self, sql: str, *parameters: Any, verb: Verb | None = None) -> Sequence[Any]:
        """The rows of one call. A race that was lost without a trace is run again."""
        with translated(verb):
            return await self.attempt(sql, *parameters)

    async def attempt(self, sql: str, *parameters: Any) -> Sequence[Any]:
        """As `fetch`, with PostgreSQL's own errors."""
        for attempt in range(_ATTEMPTS):
            try:
                return await self._once(sql, parameters)
            except AGAIN:
                if attempt == _ATTEMPTS - 1:
                    raise
                await self.clock.sleep(self.clock.random() * 0.01 * 2**attempt)
        raise AssertionError("the loop returns or raises")

    async def _once(self, sql: str, parameters: Sequence[Any]) -> Sequence[Any]:
        if self._pool is None:
            raise StoreClosed(f"{self.place} is not open: it has been closed, or was never installed")
        async with self._pool.acquire() as connection:
            if not self.pooled:
                rows: Sequence[Any] = await connection.fetch(sql, *parameters)
                return rows
            async with connection.transaction():  # holds one server connection from parse to execute
                return await connection.fetch(sql, *parameters)

    async def expel_broken(self) -> None:
        """After a lost connection the others are probably gone, too."""
        if self._pool is not None:
            await self._pool.expire_connections()


async def _keep_as_it_is(_connection: Connection) -> None:
    """Our calls leave nothing behind in a session, so there is nothing to reset and no round trip to pay."""


def _split(url: str) -> tuple[str, dict[str, str]]:
    """The URL as asyncpg takes it, and the options in it that are ours."""
    parts = urlsplit(url)
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
