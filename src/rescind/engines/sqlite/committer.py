"""The thread that owns the writing connection. Callers that arrive while it waits for the disk share the
next transaction and its one fsync; each runs in a savepoint of its own, so a refusal undoes only itself."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

from rescind.clock import Clock
from rescind.engines.sqlite.connection import begin, translated
from rescind.engines.sqlite.transaction import Transaction
from rescind.errors import Unavailable

T = TypeVar("T")
_BATCH: Final = 256  # requests per transaction at most, so that other processes get their turn


class _Request:
    """One caller waiting for its piece of work."""

    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(self, work: Callable[[Transaction], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        if self.future.done():  # the caller went away
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Committer:
    def __init__(
        self, connection: sqlite3.Connection, path: str, clock: Clock, *, busy_seconds: float
    ) -> None:
        connection.execute("PRAGMA busy_timeout = 0")  # `begin` does the waiting
        self._busy_seconds = busy_seconds
        self._connection = connection
        self._path = path
        self._clock = clock
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="rescind-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Do `work` in a transaction; its result is handed out only once it is on disk."""
        if self._closed:
            raise Unavailable(f"{self._path} has been closed")
        request = _Request(work, asyncio.get_running_loop())
        self._requests.put(request)
        result: T = await request.future
        return result

    def close(self) -> None:
        """Finish what was asked for, then let go of the file."""
        self._closed = True
        self._requests.put(None)
        self._thread.join()
        self._connection.close()

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            batch = self._commit(request)
            _answer(batch)

    def _commit(self, first: _Request) -> list[_Request]:
        """One transaction for `first` and all who come while it runs: all of them or, when the file itself
        fails, none."""
        batch = [first]
        try:
            with translated(self._path):
                begin(self._connection, self._busy_seconds)
                try:
                    self._run_all(batch)
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
        except Exception as problem:
            for request in batch:
                request.error = problem
        return batch

    def _run_all(self, batch: list[_Request]) -> None:
        """Run the first of the batch and append those who arrive meanwhile, as long as there are any."""
        now = self._clock.now()
        for request in batch:
            self._run(request, now)
            if request is batch[-1] and len(batch) < _BATCH:
                batch.extend(self._arrived(_BATCH - len(batch)))

    def _arrived(self, most: int) -> list[_Request]:
        arrived: list[_Request] = []
        while len(arrived) < most:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                break
            if request is None:  # closing: whoever asked before is served, then the thread ends
                self._requests.put(None)
                break
            arrived.append(request)
        return arrived

    def _run(self, request: _Request, now: datetime) -> None:
        self._connection.execute("SAVEPOINT request")
        try:
            request.result = request.work(Transaction(self._connection, now))
            self._connection.execute("RELEASE request")
        except Exception as problem:
            if isinstance(problem, sqlite3.Error) and not isinstance(problem, sqlite3.IntegrityError):
                raise  # the file's trouble, not this caller's
            request.error = problem
            self._connection.execute("ROLLBACK TO request")
            self._connection.execute("RELEASE request")


def _answer(batch: list[_Request]) -> None:
    """Wake each event loop once, however many of its callers are served."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Request]] = defaultdict(list)
    for request in batch:
        by_loop[request.loop].append(request)
    for loop, requests in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed while we worked for it
            loop.call_soon_threadsafe(_resolve, requests)


def _resolve(requests: list[_Request]) -> None:
    for request in requests:
        request.resolve()
