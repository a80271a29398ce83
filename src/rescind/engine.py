"""The seam between rescind and a store: the Engine protocol, the small values it speaks in, and `open`.

An engine holds data access only. It asks `lifecycle.py` what a move does, makes it durable, and answers.
Every method is a batch, none is optional, and a refusal is a typed error or, inside a batch, a value.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from rescind.clock import SYSTEM_CLOCK, Clock
from rescind.errors import InvalidInput, RescindError
from rescind.job import CancelRequest, CancelResult, Event, Job
from rescind.lease import Report, Settlement, Target
from rescind.policy import Account
from rescind.spec import JobSpec
from rescind.state import State

T = TypeVar("T")


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A worker asks for up to `limit` jobs of these needs."""

    worker: str
    needs: tuple[str, ...]
    limit: int
    lease_seconds: float


class Settled(msgspec.Struct, frozen=True):
    """One answer per settlement, in order, and what the claim that rode along brought."""

    answers: list[Job | RescindError]
    claimed: list[Job]


class Beat(msgspec.Struct, frozen=True):
    """What one report got back: the job as it now is (its `cancelling` and lease expiry are what the
    worker came for), or the refusal."""

    job_id: str
    job: Job | None
    error: RescindError | None = None


class Selector(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs a cancel means: these ids, or those of a need or an owner that still wait
    (`running=True`: that run, too)."""

    ids: tuple[str, ...] | None = None
    need: str | None = None
    owner: str | None = None
    running: bool = False

    def __post_init__(self) -> None:
        if self.ids is None and self.need is None and self.owner is None:
            raise InvalidInput("say which jobs to cancel: by ids, by need or by owner")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What a list or a count is narrowed to; an empty `states` means all, `purged` None both."""

    need: str | None = None
    owner: str | None = None
    states: frozenset[State] = frozenset()
    purged: bool | None = None


class Page(msgspec.Struct, frozen=True):
    """Jobs, newest first. `next` continues the list; None: there is no more."""

    jobs: list[Job]
    next: str | None

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


def page_place(cursor: str) -> int:
    """The place in the order of submits that a page's `next` names."""
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise InvalidInput(f"no page begins after {cursor!r}: pass on the `next` of the page before")
    return int(cursor)


class Amendment(msgspec.Struct, frozen=True, kw_only=True):
    """A move without a lease: complete with `output` (JSON), or reschedule `to` new facts."""

    by: str
    output: bytes | None = None
    to: Target | None = None


class Swept(msgspec.Struct, frozen=True):
    """What one sweep moved; `more` says that it stopped at its limit."""

    lapsed: int = 0
    archived: int = 0
    timed_out: int = 0
    purged: int = 0
    more: bool = False


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    needs: tuple[str, ...]
    slots: int
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime | None = None


class Document(msgspec.Struct, frozen=True):
    """A small record changed by compare-and-swap; revision 0 means that it does not exist yet."""

    name: str
    revision: int
    body: Any = None


class Hint(msgspec.Struct, frozen=True):
    """Something may have happened. A hint may be lost, doubled or wrong; it only saves waiting."""

    kind: Literal["work", "cancel", "sweep"]
    job_ids: tuple[str, ...] = ()


class Engine(Protocol):
    clock: Clock
    needs_event_loop: bool  # may its methods be awaited only inside one? (`listen` always needs one)

    async def install(self, *, create: bool = True) -> None:
        """Open the store and bring it up to date, or make it if it is not there yet; safe to repeat."""

    async def submit(self, specs: Sequence[JobSpec], *, connection: Any = None) -> Sequence[Job]:
        """All or none. A spec with a known idempotency key gets the job that has it. On the caller's own
        `connection`, where the engine has such a thing, it becomes part of the caller's transaction."""

    async def claim(self, claim: Claim) -> Sequence[Job]: ...

    async def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        """End leases and, in the same round trip, take new work."""

    async def extend(
        self, worker: WorkerInfo, reports: Sequence[Report], lease_seconds: float | None
    ) -> Sequence[Beat]:
        """One heartbeat: the worker is alive, its leases go on, and it learns what is to stop.
        With `lease_seconds` None only the reports are written."""

    async def cancel(
        self,
        selector: Selector,
        request: CancelRequest,
        *,
        limit: int,
        after: str = "",
        dry_run: bool = False,
    ) -> Sequence[CancelResult]:
        """By ids: one answer per id. Else the next `limit` matching jobs, behind the one with id `after`."""

    async def amend(self, job_id: str, amendment: Amendment) -> Job: ...

    async def sweep(self, *, limit: int, retention: timedelta) -> Swept: ...

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]: ...

    async def list(self, filter: Filter, *, limit: int, after: str | None = None) -> Page: ...

    async def count(self, filter: Filter) -> dict[str, dict[State, int]]:
        """How many jobs each need has in each state."""

    async def history(self, job_id: str) -> Sequence[Event]: ...

    async def changes(self, after: int, limit: int) -> Sequence[Event]:
        """The feed of everything that happened, in order, from a place in it."""

    async def account(self, owner: str) -> Account: ...

    async def credit(self, owner: str, amount: int, *, by: str, key: str | None = None) -> Account: ...

    async def workers(self) -> Sequence[WorkerInfo]: ...

    async def document(self, name: str, change: Document | None = None) -> Document:
        """Read a document, or replace it when its revision is still the one in `change`."""

    def listen(self, needs: Sequence[str]) -> AsyncIterator[Hint]:
        """Hints for a worker serving these needs, until the iterator is closed."""

    async def close(self) -> None: ...


def open_engine(url: str, *, clock: Clock = SYSTEM_CLOCK) -> Engine:
    """The engine a URL names; nothing is touched before `install`."""
    scheme, place = _split(url)
    if scheme == "sqlite":
        from rescind.engines.sqlite.engine import SQLiteEngine

        return SQLiteEngine(place, clock=clock)
    with _extra("postgres"):
        from rescind.engines.postgres.engine import PostgresEngine

    return PostgresEngine(str(url), clock=clock)


class Administration(Protocol):
    """What an operator does to a store as a whole; jobs are the engine's affair. Nothing is touched before a
    method is called, and `script` touches nothing at all."""

    place: str  # where the store is, fit to be shown: no password

    async def install(self) -> list[str]:
        """Make the store, or make its schema anew over what is there; nothing stored is lost. Remarks."""

    async def upgrade(self) -> list[str]:
        """Bring a store of an older version to this one; one of this version is left alone. Remarks."""

    def script(self) -> str:
        """The schema, for those who would rather run it themselves."""

    async def check(self) -> list[str]:
        """What is wrong with it, a sentence each."""

    async def facts(self) -> dict[str, Any]:
        """What an operator wants to know besides: versions and switches, by name."""

    async def version(self) -> int | None:
        """Of the schema; None: there is none."""


def open_administration(url: str, *, clock: Clock = SYSTEM_CLOCK) -> Administration:
    scheme, place = _split(url)
    if scheme == "sqlite":
        from rescind.engines.sqlite.administration import SQLiteAdministration

        return SQLiteAdministration(place)
    with _extra("postgres"):
        from rescind.engines.postgres.administration import PostgresAdministration

    return PostgresAdministration(str(url), clock=clock)


def _split(url: str) -> tuple[Literal["sqlite", "postgres"], str]:
    scheme, _, place = str(url).partition(":")
    match scheme.lower():
        case "sqlite":
            return "sqlite", place.removeprefix("//")
        case "postgres" | "postgresql":
            return "postgres", place
    secret = "@" in place or "password" in str(url)
    shown = scheme.partition("=")[0] if secret else str(url)
    raise InvalidInput(
        f"no engine for {shown!r}: use postgres://user@host/database, sqlite:///absolute/path.db "
        "or sqlite:relative/path.db"
    )


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """What is imported inside comes with an extra of this name."""
    try:
        yield
    except ModuleNotFoundError as problem:
        raise InvalidInput(f"this URL needs {problem.name}: pip install 'rescind[{name}]'") from problem
