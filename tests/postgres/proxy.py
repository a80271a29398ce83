"""A network between client and server that can be watched and broken: a TCP proxy that reads along what
clients say in PostgreSQL's protocol."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

_SSL_REQUEST: Final = 80877103
_CANCEL_REQUEST: Final = 80877102

Moment = Literal["before", "after"]


class Request(msgspec.Struct, frozen=True):
    """What a client said up to the point where it waits for an answer: one round trip."""

    kind: Literal["prepare", "execute", "query"]  # the last one is a plain text, as BEGIN
    sql: str
    statement: str = ""  # the name of a prepared statement; "" leaves nothing behind in the session


class Proxy:
    """In front of the server of this URL; `url` leads there through the proxy."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._links: set[_Link] = set()
        self._to_lose: list[tuple[str, Moment]] = []
        self._port = 0
        self.requests: list[Request] = []
        self.url = ""

    async def __aenter__(self) -> "Proxy":
        await self.open_up()
        user, at, _ = self._server.netloc.rpartition("@")
        self.url = self._server._replace(netloc=f"{user}{at}127.0.0.1:{self._port}").geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    # Breaking it

    def lose(self, moment: Moment, sql: str) -> None:
        """Once: break the connection `before` a request with this text arrives, or `after` the server has
        answered it, with the answer."""
        self._to_lose.append((sql, moment))

    async def shut(self) -> None:
        """Break every connection and take no more."""
        self._listening.close()
        self.cut()
        while self._links:
            await asyncio.sleep(0.001)

    async def open_up(self) -> None:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._listening.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection."""
        for link in self._links:
            link.cut()

    def fall_silent(self) -> None:
        """No connection that there is brings anything any more, and none ends; new ones work."""
        for link in self._links:
            link.silent = True

    def executed(self, sql: str = "") -> list[Request]:
        """The calls, as opposed to preparations for them, whose text contains this."""
        return [each for each in self.requests if each.kind != "prepare" and sql in each.sql]

    # Passing on

    def hear(self, request: Request) -> Moment | None:
        self.requests.append(request)
        for sql, moment in self._to_lose:
            if request.kind != "prepare" and sql in request.sql:
                self._to_lose.remove((sql, moment))
                return moment
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection(self._server.hostname, self._server.port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            link.cut()
            self._links.discard(link)


class _Link:
    """One client's connection."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._texts: dict[str, str] = {}  # of prepared statements, by name
        self._said: Request | None = None
        self._is_losing_the_answer = False
        self.silent = False

    async def run(self) -> None:
        gone = contextlib.suppress(ConnectionError, asyncio.IncompleteReadError)
        with gone:
            if not await self._begin():
                return
        tasks = [asyncio.create_task(self._pass_requests()), asyncio.create_task(self._pass_answers())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, ConnectionError | EOFError):
                raise ended

    def cut(self) -> None:
        for writer in (self._to_client, self._to_server):
            writer.transport.abort()

    async def _begin(self) -> bool:
        """The messages before the first that has a kind. False when that is all there was."""
        while True:
            size = await self._from_client.readexactly(4)
            body = await self._from_client.readexactly(struct.unpack("!I", size)[0] - 4)
            self._to_server.write(size + body)
            (code,) = struct.unpack("!I", body[:4])
            if code != _SSL_REQUEST:
                return bool(code != _CANCEL_REQUEST)
            self._to_client.write(await self._from_server.readexactly(1))

    async def _pass_requests(self) -> None:
        async for kind, body, message in _messages(self._from_client):
            self._hear(kind, body)
            if kind in b"SHQ" and self._said is not None:
                moment, self._said = self._proxy.hear(self._said), None
                if moment == "before":
                    return
                self._is_losing_the_answer = moment == "after"
            if not self.silent:
                self._to_server.write(message)
                await self._to_server.drain()

    def _hear(self, kind: int, body: bytes) -> None:
        match chr(kind):
            case "P":
                name, text = (part.decode() for part in body.split(b"\0", 2)[:2])
                self._texts[name] = text
                self._said = Request("prepare", text, name)
            case "B":
                name = body.split(b"\0", 2)[1].decode()
                self._said = Request("execute", self._texts[name], name)
            case "Q":
                self._said = Request("query", body[:-1].decode())

    async def _pass_answers(self) -> None:
        async for kind, _, message in _messages(self._from_server):
            if self._is_losing_the_answer:
                if chr(kind) == "Z":  # ready for the next: the answer is complete, and committed
                    return
            elif not self.silent:
                self._to_client.write(message)
                await self._to_client.drain()


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes, bytes]]:
    """Kind and body of each message, and the whole of it."""
    while head := await reader.read(1):
        size = await reader.readexactly(4)
        body = await reader.readexactly(struct.unpack("!I", size)[0] - 4)
        yield head[0], body, head + size + body
