"""The PostgreSQL engine: each method is one call of one function of the schema pgwf."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec

from rescind.clock import SYSTEM_CLOCK, Clock
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
    page_place,
)
from rescind.engines.postgres import installation, joining, submission
from rescind.engines.postgres.listener import Listener
from rescind.engines.postgres.refusal import from_answer
from rescind.engines.postgres.rows import (
    job_from_row,
    reports_to_json,
    settlements_to_json,
    states_to_array,
    to_json,
)
from rescind.engines.postgres.server import Server
from rescind.engines.postgres.submission import GET
from rescind.engines.postgres.trace import events_from_rows
from rescind.errors import JobNotFoundError, RescindError
from rescind.job import CancelOutcome, CancelRequest, CancelResult, Event, Job
from rescind.lease import Acknowledge, Complete, Fail, Release, Report, Reschedule, Settlement
from rescind.lifecycle import Verb
from rescind.moves import SWEEP
from rescind.policy import POLICIES, Account, check_policies
from rescind.spec import JobSpec
from rescind.state import State

T = TypeVar("T", Settlement, Report)

_VERB_OF: Final[dict[type[Settlement], Verb]] = {
    Complete: Verb.COMPLETE,
    Fail: Verb.FAIL,
    Reschedule: Verb.RESCHEDULE,
    Release: Verb.RELEASE,
    Acknowledge: Verb.ACKNOWLEDGE,
}

_SETTLE: Final = "SELECT * FROM pgwf.settle_jobs($1::json, $2, $3, $4, $5)"
_EXTEND: Final = "SELECT * FROM pgwf.extend_jobs($1::json, $2::json, $3)"
_CANCEL: Final = "SELECT * FROM pgwf.cancel_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
_COMPLETE_UNHELD: Final = """
    SELECT g.* FROM pgwf.complete_unheld_job($1, $2, $3::json) done
    CROSS JOIN LATERAL pgwf.get_jobs(ARRAY[$1]) g WHERE done"""
_RESCHEDULE_UNHELD: Final = """
    SELECT g.* FROM pgwf.reschedule_unheld_job(
        $1, $2, $3, $4, $5, coalesce($6::text::timestamptz, pgwf._now()) + make_interval(secs => $7)) moved
    CROSS JOIN LATERAL pgwf.get_jobs(ARRAY[moved.job_id]) g"""


class PostgresEngine:
    """One engine belongs to one event loop; any number of engines and processes may share a database."""

    needs_event_loop = True

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.server = Server(url, clock)
        self._listeners: set[Listener] = set()

    async def install(self, *, create: bool = True) -> None:
        if self.server.is_open:
            return
        await self.server.open()
        try:
            await installation.ensure(self.server, create=create)
        except BaseException:
            await self.server.close()  # so that it can be tried again
            raise

    async def close(self) -> None:
        for listener in self._listeners:
            listener.wake()
        await self.server.close()

    async def submit(self, specs: Sequence[JobSpec], *, connection: Any = None) -> Sequence[Job]:
        if not specs:
            return []
        if connection is not None:
            return await joining.submit(connection, specs)
        return await submission.submit(self.server, specs)

    async def claim(self, claim: Claim) -> Sequence[Job]:
        return (await self._settle([], claim)).claimed

    async def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        """One round trip, unless a job is named more than once.

        When the answer is lost (`Unavailable`), say it again: what was taken in the first time is refused as
        `LeaseLost`, whose `state` tells what came of it, and changes nothing. Jobs that were claimed in an
        answer that was lost come back when their leases lapse.
        """
        answers: list[Job | RescindError] = []
        *first, last = [*_apart(settlements)] or [[]]
        for group in first:
            answers += (await self._settle(group, None)).answers
        settled = await self._settle(last, claim)
        return Settled([*answers, *settled.answers], settled.claimed)

    async def _settle(self, settlements: Sequence[Settlement], claim: Claim | None) -> Settled:
        if claim is not None and claim.limit < 1:
            claim = None
        if not settlements and claim is None:
            return Settled([], [])
        asked: tuple[Any, ...] = (None, None, 60, 1)
        if claim is not None:
            asked = (claim.worker, [*claim.needs], claim.lease_seconds, claim.limit)
        said, seconds = settlements_to_json(settlements), _patience(asked[2])
        rows = await self.server.fetch(_SETTLE, said, *asked, seconds=seconds)
        answers: list[Job | RescindError] = []
        for settlement, row in zip(settlements, rows, strict=False):
            answers.append(_answer(row, settlement.lease.job_id, _VERB_OF[type(settlement)]))
        return Settled(answers, [job_from_row(row) for row in rows[len(settlements) :]])

    async def extend(
        self, worker: WorkerInfo, reports: Sequence[Report], lease_seconds: float | None
    ) -> Sequence[Beat]:
        info = {**msgspec.structs.asdict(worker), "worker_id": worker.id}
        beats: list[Beat] = []
        for group in [*_apart(reports)] or [[]]:
            said = (to_json(info), reports_to_json(group), lease_seconds)
            rows = await self.server.fetch(_EXTEND, *said, seconds=_patience(lease_seconds or 60))
            for report, row in zip(group, rows, strict=True):
                beats.append(_beat(row, report.lease.job_id))
        return beats

    async def cancel(
        self,
        selector: Selector,
        request: CancelRequest,
        *,
        limit: int,
        after: str = "",
        dry_run: bool = False,
    ) -> Sequence[CancelResult]:
        ids = None if selector.ids is None else list(selector.ids)
        rows = await self.server.fetch(
            _CANCEL,
            request.by,
            ids,
            selector.need,
            selector.owner,
            request.reason,
            request.force,
            selector.running,
            request.running_only,
            limit,
            after or None,
            dry_run,
        )
        verb = Verb.FORCE_CANCEL if request.force else Verb.CANCEL
        return [_cancelled(row, ids[row["place"] - 1] if ids else row["job_id"], verb) for row in rows]

    async def amend(self, job_id: str, amendment: Amendment) -> Job:
        by, to = amendment.by, amendment.to
        if to is None:
            output = (amendment.output or b"null").decode()
            rows = await self.server.fetch(_COMPLETE_UNHELD, job_id, by, output, verb=Verb.COMPLETE_UNHELD)
        else:
            at = to.available_at.isoformat() if to.available_at else None
            facts = (to.need, [*to.wait_for], to.singleton_key, at, to.delay_seconds)
            verb = Verb.RESCHEDULE_UNHELD
            rows = await self.server.fetch(_RESCHEDULE_UNHELD, job_id, by, *facts, verb=verb)
        return job_from_row(rows[0])

    async def sweep(self, *, limit: int, retention: timedelta) -> Swept:
        (row,) = await self.server.fetch("SELECT * FROM pgwf.sweep($1, $2, $3)", SWEEP, limit, retention)
        return Swept(row["lapsed"], row["archived"], row["timed_out"], row["purged"], row["more"])

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        found = {row["place"]: job_from_row(row) for row in await self.server.fetch(GET, list(ids))}
        return [found.get(place) for place in range(1, len(ids) + 1)]

    async def list(self, filter: Filter, *, limit: int, after: str | None = None) -> Page:
        rows = await self.server.fetch(
            "SELECT * FROM pgwf.list_jobs($1, $2, $3, $4, $5, $6)",
            filter.need,
            filter.owner,
            states_to_array(filter.states),
            filter.purged,
            None if after is None else page_place(after),
            limit + 1,
        )
        jobs = [job_from_row(row) for row in rows[:limit]]
        return Page(jobs, str(rows[limit - 1]["seq"]) if len(rows) > limit else None)

    async def count(self, filter: Filter) -> dict[str, dict[State, int]]:
        counts: dict[str, dict[State, int]] = defaultdict(dict)
        for row in await self.server.fetch(
            "SELECT * FROM pgwf.count_jobs($1, $2, $3, $4)",
            filter.need,
            filter.owner,
            states_to_array(filter.states),
            filter.purged,
        ):
            counts[row["need"]][State(row["state"])] = row["jobs"]
        return dict(counts)

    async def history(self, job_id: str) -> Sequence[Event]:
        events = [*events_from_rows(await self.server.fetch("SELECT * FROM pgwf.job_history($1)", job_id))]
        if not events:
            raise JobNotFoundError(job_id)
        return events

    async def changes(self, after: int, limit: int) -> Sequence[Event]:
        """Lines that are no moves are left out, so a page may be shorter than the feed behind it is long."""
        while rows := await self.server.fetch("SELECT * FROM pgwf.changes($1, $2)", after, limit):
            if events := [*events_from_rows(rows)]:
                return events
            after = rows[-1]["trace_id"]
        return []

    async def account(self, owner: str) -> Account:
        (row,) = await self.server.fetch("SELECT * FROM pgwf.account($1)", owner)
        return Account(owner, row["available"], row["reserved"])

    async def credit(self, owner: str, amount: int, *, by: str, key: str | None = None) -> Account:
        (row,) = await self.server.fetch("SELECT * FROM pgwf.credit($1, $2, $3, $4)", owner, amount, by, key)
        return Account(owner, row["available"], row["reserved"])

    async def workers(self) -> Sequence[WorkerInfo]:
        rows = await self.server.fetch("SELECT * FROM pgwf.list_workers()")
        return [
            WorkerInfo(
                id=row["worker_id"],
                needs=tuple(row["needs"]),
                slots=row["slots"],
                host=row["host"],
                pid=row["pid"],
                started_at=row["started_at"],
                seen_at=row["seen_at"],
            )
            for row in rows
        ]

    async def document(self, name: str, change: Document | None = None) -> Document:
        if change is None:
            (row,) = await self.server.fetch("SELECT * FROM pgwf.get_document($1)", name)
            return Document(name, row["revision"], msgspec.json.decode(row["body"] or "null"))
        if name == POLICIES:
            check_policies(change.body)
        put = "SELECT pgwf.put_document($1, $2, $3::jsonb) AS revision"
        (row,) = await self.server.fetch(put, name, change.revision, to_json(change.body))
        return Document(name, row["revision"], change.body)

    async def listen(self, needs: Sequence[str]) -> AsyncIterator[Hint]:
        listener = Listener(self.server, needs)
        self._listeners.add(listener)
        try:
            async for hint in listener.hints():
                yield hint
        finally:
            self._listeners.discard(listener)


def _patience(lease_seconds: float) -> float:
    """How long a worker waits for an answer: while there is time to ask once more before its lease ends."""
    return max(1.0, lease_seconds / 3)


def _apart(said: Sequence[T]) -> Iterator[list[T]]:
    """Groups in which each job is named once, in order."""
    group: list[T] = []
    ids: set[str] = set()
    for each in said:
        if each.lease.job_id in ids:
            yield group
            group, ids = [], set()
        group.append(each)
        ids.add(each.lease.job_id)
    if group:
        yield group


def _answer(row: Any, job_id: str, verb: Verb) -> Job | RescindError:
    job = None if row["job_id"] is None else job_from_row(row)
    if row["refusal"] is not None or job is None:
        return from_answer(row["refusal"], row["detail"], job_id, job, verb)
    return job


def _beat(row: Any, job_id: str) -> Beat:
    job = None if row["job_id"] is None else job_from_row(row)
    if row["refusal"] is None:
        return Beat(job_id, job)
    return Beat(job_id, job, from_answer(row["refusal"], None, job_id, job, Verb.EXTEND))


def _cancelled(row: Any, job_id: str, verb: Verb) -> CancelResult:
    job = None if row["job_id"] is None else job_from_row(row)
    if row["refusal"] is not None:
        error = from_answer(row["refusal"], None, job_id, job, verb)
        outcome = CancelOutcome.NOT_FOUND if job is None else CancelOutcome.INVALID_STATUS
        return CancelResult(job_id, outcome, False, job, error)
    outcome = CancelOutcome.SUCCESS if row["changed"] else CancelOutcome.ALREADY_CANCELLED
    return CancelResult(job_id, outcome, row["changed"], job)
