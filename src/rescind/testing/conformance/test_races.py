"""Races: several callers at once on one store, many rounds; every answer true, and the history lawful."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import pytest

from rescind.errors import JobCancelled, LeaseLost, NotAvailable, Refused
from rescind.job import CancelOutcome, CancelResult, Job, Outcome
from rescind.state import State
from rescind.testing import Harness

pytestmark = pytest.mark.race

A = TypeVar("A")
B = TypeVar("B")
Call = Coroutine[Any, Any, A]
ROUNDS: Final = 150


async def _both(number: int, one: Call[A], two: Call[B]) -> tuple[A, B]:
    """Both at once, setting out first by turns, so that each of them wins some of the rounds."""
    if number % 2:
        second, first = await asyncio.gather(two, one)
    else:
        first, second = await asyncio.gather(one, two)
    return first, second


async def _or_refusal(call: Call[A]) -> A | Refused:
    """What it answered, or how it was refused; anything else is a bug and raised."""
    try:
        return await call
    except Refused as problem:
        return problem


async def _rounds(play: Callable[[int], Awaitable[None]]) -> None:
    for number in range(ROUNDS):
        await play(number)


async def _is_lawful(harness: Harness, answers: list[CancelResult] | None = None) -> None:
    violations = await harness.violations(answers=answers)
    assert not violations, "\n".join(violations)


async def test_cancel_against_claim(harness: Harness) -> None:
    """Either the claim came first and is asked to stop, or the cancel did and nobody gets the job."""
    other = await harness.peer()
    answers: list[CancelResult] = []

    async def play(number: int) -> None:
        job = await harness.submit()
        answer, claimed = await _both(number, harness.cancel(job.id), other.claim())
        assert answer.changed and answer.job is not None
        if claimed:
            assert answer.job.cancelling
            assert (await other.acknowledge(claimed[0])).outcome is Outcome.CANCELLED
        else:
            assert answer.job.state is State.CANCELLED
        answers.append(answer)

    await _rounds(play)
    await _is_lawful(harness, answers)


async def test_cancel_against_complete(harness: Harness) -> None:
    """The job completed; the cancel either was on record before that or was told that it came too late."""
    other = await harness.peer()
    answers: list[CancelResult] = []

    async def play(number: int) -> None:
        held = await harness.running()
        answer, done = await _both(number, harness.cancel(held.id), other.complete(held, 1))
        assert done.outcome is Outcome.COMPLETED
        if answer.changed:
            assert answer.job is not None and answer.job.cancelling
            assert (await harness.get(held.id)).cancel_requested_by == "operator"
        else:
            assert answer.outcome is CancelOutcome.INVALID_STATUS
        answers.append(answer)

    await _rounds(play)
    await _is_lawful(harness, answers)


async def test_forced_cancel_against_complete(harness: Harness) -> None:
    """Exactly one of them wins, and the other one is told so."""
    other = await harness.peer()
    answers: list[CancelResult] = []

    async def play(number: int) -> None:
        held = await harness.running()
        late = _or_refusal(other.complete(held, 1))
        answer, done = await _both(number, harness.cancel(held.id, force=True), late)
        if answer.changed:
            assert isinstance(done, LeaseLost)
        else:
            assert isinstance(done, Job) and done.outcome is Outcome.COMPLETED
        answers.append(answer)

    await _rounds(play)
    await _is_lawful(harness, answers)


async def test_two_claimers(harness: Harness) -> None:
    """Each job goes to one of them."""
    other = await harness.peer()

    async def play(number: int) -> None:
        ids = {job.id for job in await harness.submit_many(1 + number % 5)}
        mine, theirs = await asyncio.gather(
            harness.claim(worker="one", limit=3), other.claim(worker="two", limit=3)
        )
        got = [job.id for job in (*mine, *theirs)]
        assert len(got) == len(set(got)) == min(len(ids), 6)
        await asyncio.gather(*(harness.complete(job) for job in (*mine, *theirs)))

    await _rounds(play)
    await _is_lawful(harness)


async def test_two_cancellers(harness: Harness) -> None:
    """`changed` is true for exactly one of them, and it is that one's name on the job."""
    other = await harness.peer()
    answers: list[CancelResult] = []

    async def play(number: int) -> None:
        job = await (harness.running() if number % 2 else harness.submit())
        both = await _both(number // 2, harness.cancel(job.id, by="ann"), other.cancel(job.id, by="bob"))
        assert sorted(answer.changed for answer in both) == [False, True]
        first = "ann" if both[0].changed else "bob"
        stored = await harness.get(job.id)
        assert stored.cancel_requested_by == first
        assert all(answer.job and answer.job.cancel_requested_by == first for answer in both)
        if number % 2:
            await harness.acknowledge(job)
        answers.extend(both)

    await _rounds(play)
    await _is_lawful(harness, answers)


async def test_sweep_against_settle(harness: Harness) -> None:
    """A lease that has run out is lost, whoever notices it first."""
    other = await harness.peer()

    async def play(number: int) -> None:
        held = await harness.running(max_attempts=1 + number % 2)
        await harness.advance(61)
        _, late = await _both(number, harness.sweep(), _or_refusal(other.complete(held, "late")))
        assert isinstance(late, LeaseLost)
        job = await harness.get(held.id)
        assert job.output is None
        if job.state is State.READY:
            await harness.complete_unheld(job.id)

    await _rounds(play)
    await _is_lawful(harness)


async def test_sweep_against_sweep(harness: Harness) -> None:
    """Two sweeps move each job once between them."""
    other = await harness.peer()

    async def play(_number: int) -> None:
        jobs = await harness.submit_many(4)
        await asyncio.gather(*(harness.cancel(job.id) for job in jobs))
        both = await asyncio.gather(harness.sweep(), other.sweep())
        assert sum(swept.archived for swept in both) == len(jobs)

    await _rounds(play)
    await _is_lawful(harness)


async def test_claimers_on_one_singleton_key(harness: Harness) -> None:
    """Whoever asks, at most one job of the key is out at a time."""
    other = await harness.peer()

    async def play(_number: int) -> None:
        await harness.submit_many(4, singleton_key="printer")
        for _ in range(4):
            claims = await asyncio.gather(*(each.claim(limit=2) for each in (harness, other, harness, other)))
            out = [job for claimed in claims for job in claimed]
            assert len(out) == 1
            await other.complete(out[0])

    await _rounds(play)
    await _is_lawful(harness)


async def test_reschedule_against_cancel(harness: Harness) -> None:
    """Rescheduled first: then it waits and is cancelled. Cancelled first: then it may not go on."""
    other = await harness.peer()
    answers: list[CancelResult] = []

    async def play(number: int) -> None:
        held = await harness.running()
        on = _or_refusal(other.reschedule(held, "next"))
        answer, moved = await _both(number, harness.cancel(held.id), on)
        assert answer.changed and answer.job is not None
        if isinstance(moved, JobCancelled):
            assert answer.job.cancelling
            await harness.acknowledge(held)
        else:
            assert isinstance(moved, Job)
            assert answer.job.state is State.CANCELLED
        assert await harness.claim("next") == []
        answers.append(answer)

    await _rounds(play)
    await _is_lawful(harness, answers)


async def test_retry_against_cancel(harness: Harness) -> None:
    """A failure and a cancel at once never lead to another attempt."""
    other = await harness.peer()
    answers: list[CancelResult] = []

    async def play(number: int) -> None:
        held = await harness.running()
        answer, failed = await _both(number, harness.cancel(held.id), other.fail(held, retry_seconds=0))
        assert answer.changed
        assert failed.state in (State.READY, State.CANCELLED)
        assert (await harness.get(held.id)).state is State.CANCELLED
        assert await harness.claim() == []
        answers.append(answer)

    await _rounds(play)
    await _is_lawful(harness, answers)


async def test_claim_against_unheld_completion(harness: Harness) -> None:
    """A job is either run or completed without a worker, never both."""
    other = await harness.peer()

    async def play(number: int) -> None:
        job = await harness.submit()
        claimed, done = await _both(number, harness.claim(), _or_refusal(other.complete_unheld(job.id)))
        assert bool(claimed) is isinstance(done, NotAvailable)
        for held in claimed:
            await harness.complete(held)

    await _rounds(play)
    await _is_lawful(harness)


async def test_two_submits_with_one_idempotency_key(harness: Harness) -> None:
    """Both callers get the same job."""
    other = await harness.peer()

    async def play(number: int) -> None:
        key = f"key-{number}"
        one, two = await asyncio.gather(
            harness.submit(id=f"one-{number}", idempotency_key=key),
            other.submit(id=f"two-{number}", idempotency_key=key),
        )
        assert one.id == two.id

    await _rounds(play)
    await _is_lawful(harness)


async def test_two_submits_of_the_last_tokens(harness: Harness) -> None:
    """One reservation fits; the other is refused and leaves no job."""
    other = await harness.peer()

    async def play(number: int) -> None:
        owner = f"owner-{number}"
        await harness.credit(owner, 10)
        results = await _both(
            number,
            _or_refusal(harness.submit(id=f"one-{number}", owner=owner, estimate=10)),
            _or_refusal(other.submit(id=f"two-{number}", owner=owner, estimate=10)),
        )
        assert sorted(isinstance(result, Refused) for result in results) == [False, True]
        assert await harness.balance(owner) == (0, 10)

    await _rounds(play)
    await _is_lawful(harness)


async def test_metered_cancel_against_complete_settles_once(harness: Harness) -> None:
    other = await harness.peer()
    answers: list[CancelResult] = []
    await harness.credit("ann", 10 * ROUNDS)

    async def play(number: int) -> None:
        held = await harness.running(owner="ann", estimate=10)
        late = _or_refusal(other.complete(held, units=4000, work_started=True))
        answer, done = await _both(number, harness.cancel(held.id), late)
        assert answer.changed is isinstance(done, LeaseLost)
        assert (await harness.get(held.id)).committed == (0 if answer.changed else 4)
        answers.append(answer)

    await _rounds(play)
    await _is_lawful(harness, answers)
