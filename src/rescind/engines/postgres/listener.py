"""Hints: by LISTEN on a connection of its own, made again when it is lost; behind a pooler, by looking."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from rescind.clock import wait_first
from rescind.engine import Hint
from rescind.engines.postgres.refusal import AWAY
from rescind.engines.postgres.server import Connection, Server
from rescind.errors import StoreClosed, Unavailable

_log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0  # the longest pause between two looks at the clock's work
_POLL_SECONDS: Final = 0.1  # the pause where nobody calls
_RECONNECT_SECONDS: Final = (0.1, 5.0)
_ANSWER_SECONDS: Final = 10.0  # a connection that is silent for so long is made anew

_CANCEL: Final = "pgwf.cancel"
_SWEEP: Final = "pgwf.sweep"
_LOOK: Final = "SELECT * FROM pgwf.look($1)"
_CANCELLING: Final = "SELECT pgwf.cancelling_jobs() AS ids"


class Listener:
    def __init__(self, server: Server, needs: Sequence[str]) -> None:
        self._server = server
        self._needs = list(needs)
        self._news = asyncio.Event()
        self._heard: list[Hint] = []
        self._connection: Connection | None = None
        self._lost = False

    async def hints(self) -> AsyncIterator[Hint]:
        pause = _RECONNECT_SECONDS[0]
        try:
            while self._server.is_open:
                try:
                    async for hint in self._listen():
                        pause = _RECONNECT_SECONDS[0]
                        yield hint
                except (Unavailable, *AWAY) as problem:
                    if isinstance(problem, StoreClosed):
                        return
                    _log.warning("not listening for a moment: %s", problem)
                    self._news.clear()
                    if self._server.is_open:
                        await wait_first(self._news, pause)
                    pause = min(pause * 2, _RECONNECT_SECONDS[1])
        finally:
            await self._hang_up()

    def wake(self) -> None:
        """The engine is closing."""
        self._news.set()

    async def _listen(self) -> AsyncIterator[Hint]:
        """Until the connection is lost. What happened before we listened is looked up, each time anew."""
        if not self._server.pooled:
            await self._call()
        for hint in await self._missed():
            yield hint
        clock, look_at = self._server.clock, 0.0
        while self._server.is_open and not self._lost:
            if clock.monotonic() >= look_at:  # not at every call: what it says we know already
                hints, due_in = await self._look()
                look_at = clock.monotonic() + due_in
                for hint in hints:
                    yield hint
            heard, self._heard = self._heard, []
            for hint in heard:
                yield hint
            await wait_first(self._news, max(0.0, look_at - clock.monotonic()))
            self._news.clear()

    async def _call(self) -> None:
        await self._hang_up()
        self._lost = False
        connection = self._connection = await self._server.connect()
        connection.add_termination_listener(self._ended)
        for need in self._needs:
            await connection.add_listener(f"pgwf.need.{need}", self._work)
        await connection.add_listener(_CANCEL, self._cancel)
        await connection.add_listener(_SWEEP, self._sweep)

    def _work(self, *_: Any) -> None:
        self._hear(Hint("work"))

    def _sweep(self, *_: Any) -> None:
        self._hear(Hint("sweep"))

    def _cancel(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        self._hear(Hint("cancel", tuple(str(payload).split("\n"))))

    def _hear(self, hint: Hint) -> None:
        if hint not in self._heard:
            self._heard.append(hint)
        self._news.set()

    def _ended(self, _connection: Any) -> None:
        self._lost = True
        self._news.set()

    async def _missed(self) -> list[Hint]:
        ids = (await self._ask(_CANCELLING))[0]["ids"]
        return [Hint("cancel", tuple(ids))] if ids else []

    async def _look(self) -> tuple[list[Hint], float]:
        (seen,) = await self._ask(_LOOK, self._needs)
        hints = [Hint(kind) for kind in ("work", "sweep") if seen[kind]]
        if self._server.pooled:
            return [*hints, *await self._missed()], _POLL_SECONDS
        due_in = seen["due_in"]
        return hints, min(_LOOK_SECONDS, due_in) if due_in is not None else _LOOK_SECONDS

    async def _ask(self, sql: str, *parameters: Any) -> Sequence[Any]:
        """On the connection that listens: so it is noticed when that one has gone without a word."""
        if self._connection is None:
            return await self._server.fetch(sql, *parameters, seconds=_ANSWER_SECONDS)
        return await self._server.ask(self._connection, sql, *parameters, seconds=_ANSWER_SECONDS)

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.remove_termination_listener(self._ended)
            with contextlib.suppress(Exception):
                await connection.close(timeout=2)
