"""Reads everything a store holds, so that the invariants can be checked on it."""

from collections.abc import Iterable
from typing import Final

from rescind.engine import Engine, Filter
from rescind.job import CancelResult, Event, Job
from rescind.testing.invariants import Run

_PAGE: Final = 1_000
_ALL: Final = 1_000_000  # a feed read on from a place in it may wait there for what seems to be missing


async def events_of(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while page := await engine.changes(events[-1].seq if events else 0, _ALL):
        events.extend(page)
    return events


async def jobs_of(engine: Engine) -> list[Job]:
    jobs: list[Job] = []
    after: str | None = None
    while True:
        page = await engine.list(Filter(), limit=_PAGE, after=after)
        jobs.extend(page.jobs)
        if page.next is None:
            return jobs
        after = page.next


async def run_of(
    engine: Engine, *, acknowledged: Iterable[str] = (), answers: Iterable[CancelResult] | None = None
) -> Run:
    """What the store says happened, with what callers were told."""
    jobs = await jobs_of(engine)
    owners = {job.owner for job in jobs if job.owner is not None}
    return Run(
        events=await events_of(engine),
        jobs=jobs,
        accounts=[await engine.account(owner) for owner in sorted(owners)],
        acknowledged=frozenset(acknowledged),
        answers=None if answers is None else list(answers),
    )
