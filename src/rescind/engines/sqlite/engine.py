"""The SQLite engine: each method is one piece of work, done in the writing or the reading thread."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from rescind import moves
from rescind.clock import SYSTEM_CLOCK, Clock, wait_first
from rescind.engine import (
    Amendment,
    Beat,
    Claim,
    Document,
    Filter,
    Hint,
    Page,
    Selector,
    Settled,
    Swept,
    WorkerInfo,
)
from rescind.engines.sqlite import cancel as cancelling
from rescind.engines.sqlite import connection as connections
from rescind.engines.sqlite import dependency, feed, ledger, read, submit, sweep, work
from rescind.engines.sqlite.committer import Committer, Reader
from rescind.engines.sqlite.request import in_thread
from rescind.engines.sqlite.rows import to_json
from rescind.engines.sqlite.transaction import Transaction
from rescind.errors import DocumentConflict, InvalidInput, JobNotFoundError, StoreClosed
from rescind.job import CancelRequest, CancelResult, Event, Job
from rescind.lease import Report, Settlement
from rescind.policy import POLICIES, Account, check_policies
from rescind.spec import JobSpec
from rescind.state import State

T = TypeVar("T")
MEMORY = ":memory:"


class SQLiteEngine:
    """One engine belongs to one event loop, or to code that has none; any number of engines and processes
    may share a file."""

    needs_event_loop = False

    def __init__(
        self, path: str, *, clock: Clock = SYSTEM_CLOCK, busy_seconds: float = connections.BUSY_SECONDS
    ) -> None:
        if not path:
            raise InvalidInput("a SQLite URL needs a path: sqlite:///absolute/path.db or sqlite://:memory:")
        self.path = path
        self.clock = clock
        self._busy_seconds = busy_seconds
        self._committer: Committer | None = None
        self._reader: Reader | None = None  # in memory there is one connection, and the committer owns it
        self._listeners: set[asyncio.Event] = set()

    async def install(self, *, create: bool = True) -> None:
        if self._committer is None:
            await in_thread(lambda: self._open(create))

    def _open(self, create: bool) -> None:
        if self.path != MEMORY:
            connections.prepare(self.path, create)
        writing = self._connect()
        try:
            connections.install(writing, self.path, self._busy_seconds)
            reading = None if self.path == MEMORY else self._connect()
        except BaseException:
            writing.close()
            raise
        self._committer = Committer(writing, self.path, self.clock, busy_seconds=self._busy_seconds)
        self._reader = Reader(reading, self.path, self.clock) if reading else None

    def _connect(self) -> sqlite3.Connection:
        return connections.connect(self.path, self._busy_seconds)

    async def close(self) -> None:
        committer, self._committer = self._committer, None
        self._wake()
        for thread in (committer, self._reader):
            if thread is not None:
                await in_thread(thread.close)

    # The two ways in

    async def _write(self, work: Callable[[Transaction], T], *, news: bool = True) -> T:
        """`news` False: nothing that a listener in this process would want to know at once."""
        result = await self._opened().run(work)
        if news:
            self._wake()
        return result

    async def _read(self, look: Callable[[sqlite3.Connection, datetime], T]) -> T:
        committer = self._opened()
        if self._reader is None:
            return await committer.run(lambda tx: look(tx.connection, tx.now))
        return await self._reader.run(look)

    def _opened(self) -> Committer:
        if self._committer is None:
            raise StoreClosed(f"{self.path} is not open: it has been closed, or was never installed")
        return self._committer

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.set()

    # The protocol

    async def submit(self, specs: Sequence[JobSpec], *, connection: Any = None) -> Sequence[Job]:
        if connection is not None:
            raise InvalidInput(
                "only PostgreSQL can submit inside the caller's transaction: leave `connection` out"
            )
        return await self._write(lambda tx: submit.submit(tx, specs))

    async def claim(self, claim: Claim) -> Sequence[Job]:
        """A look first: a worker that finds nothing costs no write."""
        if not await self._read(lambda db, now: work.is_claimable(db, claim.needs, now)):
            return []
        return await self._write(lambda tx: work.claim(tx, claim), news=False)

    async def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        if not settlements:
            return Settled([], list(await self.claim(claim)) if claim else [])
        return await self._write(lambda tx: work.settle(tx, settlements, claim), news=False)

    async def extend(
        self, worker: WorkerInfo, reports: Sequence[Report], lease_seconds: float | None
    ) -> Sequence[Beat]:
        return await self._write(lambda tx: work.extend(tx, worker, reports, lease_seconds), news=False)

    async def cancel(
        self,
        selector: Selector,
        request: CancelRequest,
        *,
        limit: int,
        after: str = "",
        dry_run: bool = False,
    ) -> Sequence[CancelResult]:
        if dry_run:  # touches nothing, so it needs no write lock either
            return await self._read(
                lambda db, now: cancelling.plan(Transaction(db, now), selector, request, limit, after)
            )
        return await self._write(lambda tx: cancelling.cancel(tx, selector, request, limit, after))

    async def amend(self, job_id: str, amendment: Amendment) -> Job:
        return await self._write(lambda tx: _amend(tx, job_id, amendment))

    async def sweep(self, *, limit: int, retention: timedelta) -> Swept:
        return await self._write(lambda tx: sweep.sweep(tx, limit, retention))

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self._read(lambda db, now: read.get(db, ids, now))

    async def list(self, filter: Filter, *, limit: int, after: str | None = None) -> Page:
        return await self._read(lambda db, now: read.jobs_page(db, filter, limit, after, now))

    async def count(self, filter: Filter) -> dict[str, dict[State, int]]:
        return await self._read(lambda db, now: read.count(db, filter, now))

    async def history(self, job_id: str) -> Sequence[Event]:
        events = await self._read(lambda db, _: read.history(db, job_id))
        if not events:
            raise JobNotFoundError(job_id)
        return events

    async def changes(self, after: int, limit: int) -> Sequence[Event]:
        return await self._read(lambda db, _: read.changes(db, after, limit))

    async def account(self, owner: str) -> Account:
        return await self._read(lambda db, now: ledger.account(Transaction(db, now), owner))

    async def credit(self, owner: str, amount: int, *, by: str, key: str | None = None) -> Account:
        return await self._write(lambda tx: ledger.credit(tx, owner, amount, by, key))

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._read(lambda db, _: read.workers(db))

    async def document(self, name: str, change: Document | None = None) -> Document:
        if change is None:
            return await self._read(lambda db, _: read.document(db, name))
        return await self._write(lambda tx: _replace(tx, name, change))

    async def listen(self, needs: Sequence[str]) -> AsyncIterator[Hint]:
        """Woken at once by this engine's own writes; others' are noticed within one poll."""
        changed = asyncio.Event()
        self._listeners.add(changed)
        watch = feed.Watch(None if self.path == MEMORY else connections.watch(self.path), self.path)
        try:
            cursor = await self._read(lambda db, _: feed.start(db))
            while self._committer is not None:
                changed.clear()
                version = watch.version()  # before we look: what comes after makes us look again
                look = await self._read(lambda db, now, after=cursor: feed.look(db, needs, after, now))  # type: ignore[misc]
                for hint in look.hints:
                    yield hint
                cursor = look.cursor
                await self._until_changed(look, watch, version, changed)
        except StoreClosed:
            return  # while we looked: listening is over
        finally:
            self._listeners.discard(changed)
            watch.close()

    async def _until_changed(
        self, look: feed.Look, watch: feed.Watch, version: int, changed: asyncio.Event
    ) -> None:
        busy_until = self.clock.monotonic() + feed.BUSY_FOR_SECONDS
        while self._committer is not None:
            busy = self.clock.monotonic() < busy_until
            pause = feed.BUSY_POLL_SECONDS if busy else feed.IDLE_POLL_SECONDS
            if await wait_first(changed, pause) or look.is_due(self.clock.now()):
                return
            if watch.version() != version:
                return


def _amend(tx: Transaction, job_id: str, amendment: Amendment) -> Job:
    job = tx.get(job_id)
    if amendment.to is None:
        output = amendment.output or b"null"
        move = moves.complete_unheld(job, amendment.by, output, tx.now, tx.policy(job))
        return tx.apply(move)
    move = moves.reschedule_unheld(job, amendment.by, amendment.to, tx.now)
    dependency.check(tx, move.job)
    dependency.forget(tx, job)
    return dependency.settle_in(tx, tx.apply(move))


def _replace(tx: Transaction, name: str, change: Document) -> Document:
    if name == POLICIES:
        check_policies(change.body)
    if read.document(tx.connection, name).revision != change.revision:
        raise DocumentConflict(name, change.revision)
    tx.execute(
        "INSERT OR REPLACE INTO documents (name, revision, body) VALUES (?, ?, ?)",
        (name, change.revision + 1, to_json(change.body)),
    )
    return Document(name, change.revision + 1, change.body)
