"""The invariants of any run, checked from the ordered history and the records it left. Pure.

Each checker returns what it found wrong, one sentence per violation; `check_all` runs them all. Simulations,
soak tests and the conformance suite share them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, get_type_hints

import msgspec

from rescind.job import Billing, CancelResult, Event, Job, Outcome
from rescind.lifecycle import Verb, snapshot, state_of
from rescind.moves import UNTOLD
from rescind.policy import Account
from rescind.state import State

_HINTS: Final = get_type_hints(Job)
_HELD_VERBS: Final = frozenset(
    {Verb.EXTEND, Verb.COMPLETE, Verb.FAIL, Verb.RESCHEDULE, Verb.RELEASE, Verb.ACKNOWLEDGE}
)
_CANCELS: Final = frozenset({Verb.CANCEL, Verb.FORCE_CANCEL})
_UNSEEN: Final = UNTOLD | {"state"}  # what a history does not repeat, and what is derived


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a run left behind: its whole history in order and its records, and what callers were told.
    `answers` None: not every cancel's answer was kept, so they are not compared."""

    events: Sequence[Event]
    jobs: Sequence[Job]
    accounts: Sequence[Account] = ()
    acknowledged: frozenset[str] = frozenset()
    answers: Sequence[CancelResult] | None = None


class Step(msgspec.Struct, frozen=True):
    """One event with the job as the history before it tells, and as it tells after it."""

    event: Event
    before: Job | None
    after: Job

    @property
    def verb(self) -> str:
        return self.event.verb

    def __str__(self) -> str:
        return f"event {self.event.seq} ({self.verb} by {self.event.actor}) of job {self.event.job_id}"


class Story(msgspec.Struct, frozen=True):
    """A run with its history replayed."""

    run: Run
    steps: list[Step]
    final: dict[str, Job]


def replay(run: Run) -> Story:
    """Fold every event's changes over the job it belongs to."""
    final: dict[str, Job] = {}
    steps = []
    for event in run.events:
        before = final.get(event.job_id)
        after = _fold(before, event)
        final[event.job_id] = after
        steps.append(Step(event, before, after))
    return Story(run, steps, final)


def _fold(before: Job | None, event: Event) -> Job:
    facts = {name: msgspec.convert(value, _HINTS[name]) for name, value in event.changes.items()}
    if before is not None:
        return msgspec.structs.replace(before, **facts)
    blank: dict[str, Any] = {
        "need": "",
        "submitted_at": event.at,
        "submitted_by": "",
        "available_at": event.at,
    }
    return Job(**{**blank, **facts, "id": event.job_id})


Checker = Callable[[Story], Iterator[str]]


def no_loss_no_ghost(story: Story) -> Iterator[str]:
    """Acknowledged submits exist, and everything that exists was submitted once."""
    stored = Counter(job.id for job in story.run.jobs)
    for job_id in sorted(story.run.acknowledged - stored.keys()):
        yield f"job {job_id} was acknowledged and is gone"
    for job_id in sorted(story.final.keys() - stored.keys()):
        yield f"job {job_id} has a history and no record"
    for job_id, number in stored.items():
        if number > 1:
            yield f"job {job_id} is stored {number} times"
        if job_id not in story.final:
            yield f"job {job_id} has a record and no history"
    for step in story.steps:
        if (step.before is None) is not (step.verb == Verb.SUBMIT):
            yield f"{step}: a job begins with its one submit"


def exclusive(story: Story) -> Iterator[str]:
    """Leases of a job never overlap, lease ids are unique, and `attempt` grows by one per claim."""
    lease_ids: dict[str, str] = {}
    for step in story.steps:
        before, after = step.before, step.after
        attempts = after.attempt - (before.attempt if before else 0)
        if attempts != (1 if step.verb == Verb.CLAIM else 0):
            yield f"{step}: attempt grew by {attempts}"
        if step.verb != Verb.CLAIM or before is None:
            continue
        if _held(before, step.event.at):
            yield f"{step}: {before.lease_worker} holds it until {before.lease_expires_at}"
        if after.lease_id is None or after.lease_id in lease_ids:
            yield f"{step}: lease id {after.lease_id} was used for job {lease_ids.get(after.lease_id or '')}"
        lease_ids[after.lease_id or ""] = after.id


def fenced(story: Story) -> Iterator[str]:
    """Whoever extended or settled held the current lease at that moment."""
    for step in story.steps:
        if step.verb not in _HELD_VERBS or step.before is None:
            continue
        if not _held(step.before, step.event.at):
            yield f"{step}: nobody held it"
        elif step.before.lease_worker != step.event.actor:
            yield f"{step}: {step.before.lease_worker} held it"


def one_end(story: Story) -> Iterator[str]:
    """A job has one outcome; afterwards only its payload and its keys may go."""
    for step in story.steps:
        before, after = step.before, step.after
        if before is None or before.outcome is None:
            continue
        if step.verb != Verb.PURGE:
            yield f"{step}: it had ended as {before.outcome}"
        if after.outcome is not before.outcome or after.finished_at != before.finished_at:
            yield f"{step}: changed how or when it ended"


def cancel_is_final(story: Story) -> Iterator[str]:
    """After a cancel a running attempt may finish or stop; nothing else happens to the job any more."""
    for step in story.steps:
        before, after = step.before, step.after
        if before is None or before.cancel_requested_at is None:
            continue
        if _request(before) != _request(after):
            yield f"{step}: overwrote the cancel request of {before.cancel_requested_by}"
        if not _ends_truthfully(step, before):
            yield f"{step}: led to {step.event.state} after the cancel by {before.cancel_requested_by}"


def _ends_truthfully(step: Step, before: Job) -> bool:
    was = state_of(before, step.event.at)
    if was is State.ACTIVE and step.verb == Verb.COMPLETE:
        return step.event.state is State.COMPLETED
    if was is State.ACTIVE and step.verb == Verb.EXTEND:  # it may report, but its lease does not grow
        return step.event.state is was and step.after.lease_expires_at == before.lease_expires_at
    if before.outcome is not None:
        return step.event.state is was
    return step.event.state is State.CANCELLED


def _request(job: Job) -> tuple[datetime | None, str | None, str | None]:
    return job.cancel_requested_at, job.cancel_requested_by, job.cancel_reason


def truthful(story: Story) -> Iterator[str]:
    """As many callers were told that their cancel changed something as there are cancels on record."""
    if story.run.answers is None:
        return
    told = Counter(answer.id for answer in story.run.answers if answer.changed)
    done = Counter(
        step.event.job_id
        for step in story.steps
        if step.verb in _CANCELS and not step.event.actor.startswith("job:")
    )
    for job_id in sorted(told.keys() | done.keys()):
        if told[job_id] != done[job_id]:
            yield f"job {job_id}: {told[job_id]} cancels said `changed`, {done[job_id]} are on record"
    for answer in story.run.answers:
        yield from _believable(answer, story.final.get(answer.id))


def _believable(answer: CancelResult, final: Job | None) -> Iterator[str]:
    if answer.job is None:
        if final is not None:
            yield f"job {answer.id}: a cancel answered that it does not exist"
        return
    if answer.error is None and (final is None or final.cancel_requested_at is None):
        yield f"job {answer.id}: a cancel answered {answer.outcome} and left no request"
    if answer.job.state is State.CANCELLED and final and final.outcome not in (None, Outcome.CANCELLED):
        yield f"job {answer.id}: a cancel answered CANCELLED and it ended as {final.outcome}"


def gates(story: Story) -> Iterator[str]:
    """A claim implies time reached, dependencies met, attempts left and its singleton key free."""
    holders: dict[str, dict[str, Job]] = defaultdict(dict)
    ended: set[str] = set()
    for step in story.steps:
        before, after, at = step.before, step.after, step.event.at
        if step.verb == Verb.CLAIM and before is not None:
            yield from (f"{step}: {problem}" for problem in _closed_gates(before, at))
            for other in holders[before.singleton_key or ""].values():
                if _held(other, at):
                    yield f"{step}: job {other.id} holds singleton key {before.singleton_key}"
        if step.verb == Verb.UNBLOCK and before is not None:
            for dependency in set(before.wait_for) - set(after.wait_for) - ended:
                yield f"{step}: job {dependency} has not ended"
        if after.outcome is not None:
            ended.add(after.id)
        _follow_key(holders, before, after)


def _closed_gates(job: Job, at: datetime) -> Iterator[str]:
    if job.available_at > at:
        yield f"its time is {job.available_at}"
    if job.wait_for:
        yield f"it waits for {', '.join(job.wait_for)}"
    if job.max_attempts is not None and job.failures >= job.max_attempts:
        yield f"it has failed {job.failures} times of {job.max_attempts}"
    if job.outcome is not None:
        yield f"it has ended as {job.outcome}"


def _follow_key(holders: dict[str, dict[str, Job]], before: Job | None, after: Job) -> None:
    if before is not None and before.singleton_key is not None:
        holders[before.singleton_key].pop(before.id, None)
    if after.singleton_key is not None and after.lease_id is not None:
        holders[after.singleton_key][after.id] = after


def audit(story: Story) -> Iterator[str]:
    """Replaying a job's history gives its record; every event has its place, its actor and a true state."""
    places = [event.seq for event in story.run.events]
    if places != sorted(set(places)):
        yield "the feed is not in order"
    for step in story.steps:
        if not step.event.actor:
            yield f"{step}: names no actor"
        if step.event.state is not state_of(step.after, step.event.at):
            yield f"{step}: says {step.event.state}, its facts say {state_of(step.after, step.event.at)}"
    for job in story.run.jobs:
        if job.id in story.final:
            yield from _differences(job, story.final[job.id])


def _differences(stored: Job, told: Job) -> Iterator[str]:
    for field in _HINTS:
        if field in _UNSEEN:
            continue
        there, here = getattr(stored, field), getattr(told, field)
        if there != here:
            yield f"job {stored.id}: {field} is {there!r}, its history says {here!r}"


def money(story: Story) -> Iterator[str]:
    """One settlement per reservation, never more than was reserved; what is set aside is what jobs hold."""
    settled: Counter[str] = Counter()
    for step in story.steps:
        if step.before is not None and step.before.billing is not step.after.billing:
            settled[step.after.id] += 1
            if step.before.billing is not Billing.RESERVED or settled[step.after.id] > 1:
                yield f"{step}: settled a reservation that was {step.before.billing}"
    held: Counter[str] = Counter()
    for job in story.run.jobs:
        yield from _settlement(job)
        if job.billing is Billing.RESERVED and job.owner is not None:
            held[job.owner] += job.estimate or 0
    for account in story.run.accounts:
        if account.available < 0 or account.reserved != held[account.owner]:
            yield f"{account} does not fit the {held[account.owner]} that jobs hold"


def _settlement(job: Job) -> Iterator[str]:
    if job.billing is Billing.RESERVED and job.outcome is not None:
        yield f"job {job.id} has ended and its reservation has not"
    if (job.billing is Billing.NONE) is not (job.estimate is None):
        yield f"job {job.id} has estimate {job.estimate} and billing {job.billing}"
    if (job.billing is Billing.COMMITTED) is not (0 < job.committed <= (job.estimate or 0)):
        yield f"job {job.id} is {job.billing} with {job.committed} of {job.estimate}"


def _held(job: Job, at: datetime) -> bool:
    return snapshot(job, at).state is State.ACTIVE


CHECKERS: Final[tuple[Checker, ...]] = (
    no_loss_no_ghost,
    exclusive,
    fenced,
    one_end,
    cancel_is_final,
    truthful,
    gates,
    audit,
    money,
)


def check_all(run: Run) -> list[str]:
    """Every violation of every invariant, each with the name of the one it breaks."""
    story = replay(run)
    return [f"{check.__name__}: {problem}" for check in CHECKERS for problem in check(story)]
