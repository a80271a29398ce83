"""The two threads of an engine: one writes and shares its syncs, one reads and never waits behind them."""

import queue
import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from rescind.clock import Clock
from rescind.engines.sqlite.connection import begin, is_trouble_with_the_file, translated
from rescind.engines.sqlite.request import ConnectionThread, Request, answer
from rescind.engines.sqlite.transaction import Transaction

T = TypeVar("T")
Work: TypeAlias = Callable[[Transaction], Any]
Look: TypeAlias = Callable[[sqlite3.Connection, datetime], Any]
_BATCH: Final = 256  # requests per transaction at most, so that other processes get their turn


class _HalfDone(Exception):
    """A request wrote something before it was refused."""


class Reader(ConnectionThread[Look]):
    def __init__(self, connection: sqlite3.Connection, path: str, clock: Clock) -> None:
        self._clock = clock
        super().__init__(connection, path, "rescind-sqlite-reader")

    async def run(self, look: Callable[[sqlite3.Connection, datetime], T]) -> T:
        result: T = await self.ask(look)
        return result

    def _serve(self, first: Request[Look]) -> None:
        try:
            with translated(self._path):
                first.result = first.work(self._connection, self._clock.now())
        except Exception as problem:
            first.error = problem
        answer([first])


class Committer(ConnectionThread[Work]):
    """Callers that arrive while it waits for the disk share the next transaction and its one fsync. Nearly
    all who are refused are so before they write anything; for the rest the transaction is run again, with
    a savepoint for each."""

    def __init__(
        self, connection: sqlite3.Connection, path: str, clock: Clock, *, busy_seconds: float
    ) -> None:
        connection.execute("PRAGMA busy_timeout = 0")  # `begin` does the waiting
        self._busy_seconds = busy_seconds
        self._clock = clock
        super().__init__(connection, path, "rescind-sqlite-writer")

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Do `work` in a transaction; its result is handed out only once it is on disk."""
        result: T = await self.ask(work)
        return result

    def _serve(self, first: Request[Work]) -> None:
        """One transaction for `first` and all who come while it runs: all of them or, when the file itself
        fails, none."""
        batch = [first]
        try:
            with translated(self._path):
                try:
                    self._transact(self._run_all, batch)
                except _HalfDone:  # nobody has been answered yet, so all can be done again
                    self._transact(self._run_apart, batch)
        except Exception as problem:
            for request in batch:
                request.error = problem
        answer(batch)

    def _transact(self, run: Callable[[list[Request[Work]]], None], batch: list[Request[Work]]) -> None:
        begin(self._connection, self._busy_seconds)
        try:
            run(batch)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _run_all(self, batch: list[Request[Work]]) -> None:
        """Run the first of the batch and append those who arrive meanwhile, as long as there are any."""
        for request in batch:
            before = self._connection.total_changes
            self._run(request)
            if request.error is not None and self._connection.total_changes != before:
                raise _HalfDone
            if request is batch[-1] and len(batch) < _BATCH:
                batch.extend(self._arrived(_BATCH - len(batch)))

    def _run_apart(self, batch: list[Request[Work]]) -> None:
        """Each in a savepoint of its own, so that one who is refused after writing undoes only itself."""
        for request in batch:
            request.error = None
            self._connection.execute("SAVEPOINT request")
            self._run(request)
            if request.error is not None:
                self._connection.execute("ROLLBACK TO request")
            self._connection.execute("RELEASE request")

    def _run(self, request: Request[Work]) -> None:
        try:
            request.result = request.work(Transaction(self._connection, self._clock.now()))
        except Exception as problem:
            if is_trouble_with_the_file(problem):
                raise
            request.error = problem

    def _arrived(self, most: int) -> list[Request[Work]]:
        arrived: list[Request[Work]] = []
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
