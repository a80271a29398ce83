"""Asking a thread: a caller in an event loop suspends, one without blocks.

A coroutine that awaits nothing but these runs to its end in a plain thread, with no event loop at all: that
is what makes the sync twin of the queue cheap.
"""

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

from rescind.clock import running_loop
from rescind.errors import StoreClosed, Unavailable

T = TypeVar("T")
W = TypeVar("W", bound=Callable[..., Any])


class Request(Generic[W]):
    """Work for a thread, and its answer."""

    __slots__ = ("_done", "_future", "error", "loop", "result", "work")

    def __init__(self, work: W) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.loop = running_loop()
        self._future = self.loop.create_future() if self.loop else None
        self._done = None if self.loop else threading.Lock()  # held until there is an answer
        if self._done is not None:
            self._done.acquire()

    def __await__(self) -> Generator[Any, None, Any]:
        if self._future is not None:
            yield from self._future
        elif self._done is not None:
            self._done.acquire()
        if self.error is not None:
            raise self.error
        return self.result

    def wake(self) -> None:
        """Let the caller go on; to be called in its event loop, if it has one."""
        if self._done is not None:
            self._done.release()
        elif self._future is not None and not self._future.done():  # done: the caller went away
            self._future.set_result(None)


class ConnectionThread(Generic[W]):
    """A thread that owns a connection and serves requests for it, one `_serve` after the other."""

    def __init__(self, connection: sqlite3.Connection, path: str, name: str) -> None:
        self._connection = connection
        self._path = path
        self._requests: queue.SimpleQueue[Request[W] | None] = queue.SimpleQueue()
        self._open = True
        self._pid = os.getpid()  # threads do not survive a fork
        self._door = threading.Lock()  # nobody comes in after the last request
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def ask(self, work: W) -> Request[W]:
        if os.getpid() != self._pid:
            raise Unavailable(f"{self._path} was opened before a fork: connect again in the child process")
        request = Request(work)
        with self._door:
            if not self._open:
                raise StoreClosed(f"{self._path} has been closed")
            self._requests.put(request)
        return request

    def close(self) -> None:
        """Finish what was asked for, then let go of the file."""
        with self._door:
            if self._open:
                self._open = False
                self._requests.put(None)
        self._thread.join()
        self._connection.close()

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            self._serve(request)

    def _serve(self, first: Request[W]) -> None:
        """Answer this request, and any others it takes from the queue itself."""
        raise NotImplementedError


async def in_thread(work: Callable[[], T]) -> T:
    """Do something slow once, in a thread of its own."""
    request = Request(work)

    def do() -> None:
        try:
            request.result = work()
        except BaseException as problem:
            request.error = problem
        answer([request])

    threading.Thread(target=do, name="rescind-sqlite-open", daemon=True).start()
    result: T = await request
    return result


def answer(requests: Iterable[Request[Any]]) -> None:
    """Wake each event loop once, however many of its callers are served."""
    by_loop: dict[asyncio.AbstractEventLoop | None, list[Request[Any]]] = defaultdict(list)
    for request in requests:
        by_loop[request.loop].append(request)
    for loop, waiting in by_loop.items():
        if loop is None:
            _wake(waiting)
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed while we worked for it
                loop.call_soon_threadsafe(_wake, waiting)


def _wake(requests: list[Request[Any]]) -> None:
    for request in requests:
        request.wake()
