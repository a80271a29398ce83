"""The queue as producers and operators hold it: submit, look, wait, cancel."""

import getpass
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, TypedDict, Unpack

import msgspec

from rescind import payload, telemetry
from rescind.clock import new_id
from rescind.engine import Amendment, Engine, Filter, Page, Selector, Swept, WorkerInfo
from rescind.errors import InvalidInput, JobNotFoundError, RescindError
from rescind.job import CancelAnswer, CancelOutcome, CancelRequest, CancelResult, Event, Job
from rescind.lease import Target
from rescind.policy import Account
from rescind.settings import Settings
from rescind.spec import (
    JobSpec,
    SubmitOptions,
    check_ids,
    check_integer,
    check_lookup_id,
    check_moment,
    check_need,
    check_optional_text,
    check_reason,
    check_text,
    check_timeout,
    check_wait_for,
    spec,
)
from rescind.state import FINAL_STATES, STATUS_OF, State, TaskStatus
from rescind.sweeper import sweep_all

_BULK: Final = 1000  # jobs per engine call of a bulk operation
_WAIT_SECONDS: Final = (0.005, 0.25)  # the first and the longest pause between two looks


class BulkOptions(TypedDict, total=False):
    """How all jobs of a need or an owner are cancelled."""

    by: Annotated[str | None, "in whose name; otherwise the queue's `by`"]
    force: Annotated[bool, "end running jobs here and now instead of asking them to stop"]
    running: Annotated[bool, "not only those that wait: those that run, too"]
    dry_run: Annotated[bool, "only say how many it would be"]


class Queue:
    """Hold one per process. `by` names the actor of what you do, unless a call says otherwise."""

    def __init__(self, engine: Engine, settings: Settings, *, by: str | None = None) -> None:
        self.engine = engine
        self.settings = settings
        self.by = check_text(by or f"user:{_login()}", "by")

    async def close(self) -> None:
        """Let go of the store; what was acknowledged is on disk."""
        await self.engine.close()

    async def __aenter__(self) -> "Queue":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Submitting

    def spec(self, need: str, input: Any = None, **options: Unpack[SubmitOptions]) -> JobSpec:
        """A checked job that is not submitted yet, for `submit_many`."""
        named: dict[str, Any] = {
            **options,
            "id": options.get("id") or new_id(self.engine.clock),
            "by": options.get("by") or self.by,
        }
        return spec(need, input, payload_limit_bytes=self.settings.payload_limit_bytes, **named)

    async def submit(
        self, need: str, input: Any = None, *, connection: Any = None, **options: Unpack[SubmitOptions]
    ) -> Job:
        """Ask for work; `SubmitOptions` says what can be added. When this returns the job is on disk; given
        your own `connection` to PostgreSQL (asyncpg, psycopg), it is there when you commit."""
        return (await self._submit([self.spec(need, input, **options)], connection))[0]

    async def submit_many(
        self, jobs: Iterable[JobSpec | Mapping[str, Any]], *, connection: Any = None
    ) -> Sequence[Job]:
        """Submit all or none, in one step. Each is a `spec()`, or a mapping of `submit`'s arguments."""
        specs = [each if isinstance(each, JobSpec) else self._from_mapping(each) for each in jobs]
        return await self._submit(specs, connection)

    async def _submit(self, specs: Sequence[JobSpec], connection: Any) -> Sequence[Job]:
        jobs = await self.engine.submit(specs, connection=connection)
        for job in jobs:
            telemetry.child(telemetry.SUBMITTED, job.need).inc()
        return jobs

    def _from_mapping(self, fields: Mapping[str, Any]) -> JobSpec:
        try:
            return self.spec(**fields)
        except TypeError as problem:
            raise InvalidInput(f"not the arguments of a submit: {problem}") from problem

    # Looking

    async def get(self, job_id: str) -> Job:
        """The job as it stands; `JobNotFoundError` when there is none."""
        job = (await self.engine.get([check_lookup_id(job_id)]))[0]
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    async def list(
        self,
        *,
        need: str | None = None,
        owner: str | None = None,
        status: TaskStatus | str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page:
        """Jobs, newest first; pass a page's `next` as `after` for the one behind it."""
        wanted = _filter(need, owner, status)
        check_integer(limit, "limit", 1, _BULK)
        return await self.engine.list(wanted, limit=limit, after=check_optional_text(after, "after"))

    async def count(
        self, *, need: str | None = None, owner: str | None = None, status: TaskStatus | str | None = None
    ) -> int:
        """How many jobs there are, narrowed as in `list`."""
        counts = await self.engine.count(_filter(need, owner, status))
        return sum(number for states in counts.values() for number in states.values())

    async def stats(self) -> Mapping[str, Mapping[State, int]]:
        """How many jobs each need has in each state."""
        return await self.engine.count(Filter())

    async def history(self, job_id: str) -> Sequence[Event]:
        """Every move of a job: what, when, who, why."""
        return await self.engine.history(check_lookup_id(job_id))

    async def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """Wait until a job has ended; TimeoutError when it has not in time."""
        clock = self.engine.clock
        deadline = None if timeout is None else clock.monotonic() + check_timeout(timeout)
        pause, longest = _WAIT_SECONDS
        while (job := await self.get(job_id)).state not in FINAL_STATES:
            left = longest if deadline is None else deadline - clock.monotonic()
            if left <= 0:
                raise TimeoutError(f"job {job_id} is still {job.state} after {timeout:g} s")
            await clock.sleep(min(pause, left))
            pause = min(pause * 1.5, longest)
        return job

    async def workers(self) -> Sequence[WorkerInfo]:
        """The workers seen within the last day, and when."""
        return await self.engine.workers()

    # Cancelling

    async def cancel(
        self, job_id: str, reason: str | None = None, *, by: str | None = None, force: bool = False
    ) -> CancelAnswer:
        """Take a job back. Waiting: it is cancelled now. Running: it is asked to stop, and will not run
        again whatever it says; `force` ends it here and now. The answer is the job as it stands, and
        `changed` says whether it was this call that did it."""
        return await self._cancel_one(job_id, self._request(reason, by, force))

    async def request_cancellation(
        self, job_id: str, reason: str | None = None, *, by: str | None = None
    ) -> CancelAnswer:
        """As `cancel`, for a job that runs; one that waits is refused."""
        request = msgspec.structs.replace(self._request(reason, by, False), running_only=True)
        return await self._cancel_one(job_id, request)

    async def cancel_many(
        self, ids: Iterable[str], reason: str | None = None, *, by: str | None = None, force: bool = False
    ) -> dict[str, CancelResult]:
        """One answer per id; none is raised."""
        request = self._request(reason, by, force)
        keys = (each if isinstance(each, Hashable) else repr(each) for each in check_ids(ids, "ids"))
        wanted = tuple(dict.fromkeys(keys))
        answers: dict[str, CancelResult] = {}
        for start in range(0, len(wanted), _BULK):
            group = Selector(ids=wanted[start : start + _BULK])
            answers |= {result.id: result for result in await self._cancel(group, request, "", False)}
        return answers

    async def cancel_by_type(
        self, need: str, reason: str | None = None, **options: Unpack[BulkOptions]
    ) -> int:
        """Cancel every waiting job of a need and say how many; `BulkOptions` says what can be added."""
        return await self._cancel_kind(reason, need=check_need(need), **options)

    async def cancel_by_owner(
        self, owner: str, reason: str | None = None, **options: Unpack[BulkOptions]
    ) -> int:
        """As `cancel_by_type`, for the jobs of an owner."""
        return await self._cancel_kind(reason, owner=check_text(owner, "owner"), **options)

    async def _cancel_kind(
        self,
        reason: str | None,
        *,
        need: str | None = None,
        owner: str | None = None,
        by: str | None = None,
        force: bool = False,
        running: bool = False,
        dry_run: bool = False,
    ) -> int:
        selector = Selector(need=need, owner=owner, running=running)
        groups = self._cancel_all(selector, self._request(reason, by, force), dry_run)
        return sum([sum(result.changed for result in group) async for group in groups])

    async def cancel_matching(
        self,
        selector: Selector,
        reason: str | None = None,
        *,
        by: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> AsyncIterator[Sequence[CancelResult]]:
        """The bulk cancels step by step: stop iterating and what is not done yet stays untouched."""
        async for group in self._cancel_all(selector, self._request(reason, by, force), dry_run):
            yield group

    async def _cancel_all(
        self, selector: Selector, request: CancelRequest, dry_run: bool
    ) -> AsyncIterator[Sequence[CancelResult]]:
        after = ""
        while group := await self._cancel(selector, request, after, dry_run):
            yield group
            if selector.ids is not None or len(group) < _BULK:
                return
            after = group[-1].id

    async def _cancel_one(self, job_id: str, request: CancelRequest) -> CancelAnswer:
        (result,) = await self._cancel(Selector(ids=(job_id,)), request, "", False)
        if result.error is not None:
            raise result.error
        assert result.job is not None
        return CancelAnswer(**msgspec.structs.asdict(result.job), changed=result.changed)

    async def _cancel(
        self, selector: Selector, request: CancelRequest, after: str, dry_run: bool
    ) -> Sequence[CancelResult]:
        """Every cancel comes by here. What cannot be an id is answered in its place, without the store."""
        refused = [_refusal(each) for each in selector.ids or ()]
        asked = _without(selector, refused)
        answers = iter(
            await self.engine.cancel(asked, request, limit=_BULK, after=after, dry_run=dry_run)
            if asked.ids != ()
            else ()
        )
        results = [refusal or next(answers) for refusal in refused] or list(answers)
        if not dry_run:
            for result in results:
                _count(result)
        return results

    def _request(self, reason: str | None, by: str | None, force: bool) -> CancelRequest:
        return CancelRequest(by=check_text(by or self.by, "by"), reason=check_reason(reason), force=force)

    # Without a lease

    async def complete_unheld(self, job_id: str, output: Any = None, *, by: str | None = None) -> Job:
        """Declare a job done that nobody is working on."""
        body = payload.encode(output, "output", self.settings.payload_limit_bytes)
        amendment = Amendment(by=check_text(by or self.by, "by"), output=body)
        return await self.engine.amend(check_lookup_id(job_id), amendment)

    async def reschedule_unheld(
        self,
        job_id: str,
        need: str,
        *,
        wait_for: Sequence[str] = (),
        singleton_key: str | None = None,
        available_at: datetime | None = None,
        by: str | None = None,
    ) -> Job:
        """Give a job that nobody is working on other facts: what it needs, what and how long it waits for."""
        to = Target(
            need=check_need(need),
            wait_for=check_wait_for(wait_for),
            singleton_key=check_optional_text(singleton_key, "singleton_key"),
            available_at=check_moment(available_at, "available_at"),
        )
        amendment = Amendment(by=check_text(by or self.by, "by"), to=to)
        return await self.engine.amend(check_lookup_id(job_id), amendment)

    # Keeping house

    async def sweep(self) -> Swept:
        """Do at once what the sweepers of the workers do on a schedule."""
        return await sweep_all(self.engine, self.settings.retention)

    async def account(self, owner: str) -> Account:
        """What an owner can spend, and what running jobs have set aside."""
        return await self.engine.account(check_text(owner, "owner"))

    async def credit(
        self, owner: str, amount: int, *, by: str | None = None, key: str | None = None
    ) -> Account:
        """Add tokens to an owner's account; the same `key` again adds nothing."""
        return await self.engine.credit(
            check_text(owner, "owner"),
            check_integer(amount, "amount", 1, 2**53),
            by=check_text(by or self.by, "by"),
            key=check_optional_text(key, "key"),
        )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user entry
        return "unknown"


def _filter(need: str | None, owner: str | None, status: TaskStatus | str | None) -> Filter:
    wanted = Filter(need=check_optional_text(need, "need"), owner=check_optional_text(owner, "owner"))
    if status is None:
        return wanted
    try:
        named = TaskStatus(status)
    except ValueError:
        raise InvalidInput(f"no status {status!r}: one of {', '.join(TaskStatus)}") from None
    if named is TaskStatus.Archived:
        return msgspec.structs.replace(wanted, purged=True)
    states = frozenset(state for state, its in STATUS_OF.items() if its is named)
    return msgspec.structs.replace(wanted, states=states, purged=False)


def _refusal(job_id: str) -> CancelResult | None:
    """The answer to what cannot be the id of a job; the store need not be asked."""
    try:
        check_lookup_id(job_id)
    except RescindError as problem:
        return CancelResult(job_id, CancelOutcome.NOT_FOUND, False, None, problem)
    return None


def _without(selector: Selector, refused: Sequence[CancelResult | None]) -> Selector:
    if not any(refused):
        return selector
    ids = (each for each, refusal in zip(selector.ids or (), refused, strict=True) if refusal is None)
    return msgspec.structs.replace(selector, ids=tuple(ids))


def _count(result: CancelResult) -> None:
    need = result.job.need if result.job else "unknown"
    telemetry.child(telemetry.CANCEL_REQUESTS, need, result.outcome.value).inc()
    if result.changed and result.job and result.job.state is State.CANCELLED:
        telemetry.child(telemetry.CANCELLED, need).inc()
