"""Every situation × verb pair of `lifecycle.TABLE`, by every road into the situation, against the engine."""

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from rescind.engine import Selector
from rescind.errors import LeaseLost, NotAvailable, WrongState
from rescind.job import CancelRequest, Job
from rescind.lifecycle import TABLE, Refusal, Situation, Verb, refusal, situation_of
from rescind.testing import WAYS, Harness
from rescind.testing.harness import NEED, stale
from rescind.testing.situation import Brought

Attempt = Callable[[Harness, Brought], Awaitable[Job]]


async def _claim(harness: Harness, brought: Brought) -> Job:
    """A claim names no job: it refuses one by not handing it out."""
    claimed = {job.id: job for job in await harness.claim(NEED)}
    if brought.job.id in claimed:
        return claimed[brought.job.id]
    raise refusal(NotAvailable, Verb.CLAIM, brought.job, harness.now())


async def _cancel(harness: Harness, brought: Brought, *, force: bool = False) -> Job:
    request = CancelRequest(by="operator", reason="not needed", force=force)
    result = (await harness.engine.cancel(Selector(ids=(brought.job.id,)), request, limit=1))[0]
    if result.error is not None:
        raise result.error
    assert result.job is not None
    return result.job


async def _reschedule_unheld(harness: Harness, brought: Brought) -> Job:
    return await harness.reschedule_unheld(brought.job.id)


HELD: Final[dict[Verb, Attempt]] = {
    Verb.EXTEND: lambda harness, brought: harness.extend(brought.lease),
    Verb.COMPLETE: lambda harness, brought: harness.complete(brought.lease, "done"),
    Verb.FAIL: lambda harness, brought: harness.fail(brought.lease),
    Verb.RESCHEDULE: lambda harness, brought: harness.reschedule(brought.lease),
    Verb.RELEASE: lambda harness, brought: harness.release(brought.lease),
    Verb.ACKNOWLEDGE: lambda harness, brought: harness.acknowledge(brought.lease),
}
ATTEMPTS: Final[dict[Verb, Attempt]] = {
    Verb.CLAIM: _claim,
    **HELD,
    Verb.CANCEL: _cancel,
    Verb.FORCE_CANCEL: lambda harness, brought: _cancel(harness, brought, force=True),
    Verb.COMPLETE_UNHELD: lambda harness, brought: harness.complete_unheld(brought.job.id),
    Verb.RESCHEDULE_UNHELD: _reschedule_unheld,
}

ROADS: Final = [
    pytest.param(situation, road, id=f"{situation}-{road.replace(' ', '-')}")
    for situation, roads in WAYS.items()
    for road in roads
]


def test_the_suite_tries_every_verb_of_the_table_and_reaches_every_situation() -> None:
    assert ATTEMPTS.keys() == TABLE.keys()
    assert WAYS.keys() == set(Situation)
    assert all(row.keys() == set(Situation) for row in TABLE.values())


@pytest.mark.parametrize(("situation", "road"), ROADS)
async def test_each_road_leads_where_it_says(harness: Harness, situation: Situation, road: str) -> None:
    brought = await WAYS[situation][road](harness)
    assert situation_of(brought.job, harness.now()) is situation


@pytest.mark.parametrize("verb", TABLE)
@pytest.mark.parametrize(("situation", "road"), ROADS)
async def test_the_engine_does_what_the_table_says(
    harness: Harness, situation: Situation, road: str, verb: Verb
) -> None:
    # Given a job in this situation
    brought = await WAYS[situation][road](harness)
    cell = TABLE[verb][situation]
    if isinstance(cell, frozenset):
        # When the verb is tried, then it leads to where the table says, and answers what is stored
        answer = await ATTEMPTS[verb](harness, brought)
        after = await harness.get(brought.job.id)
        assert situation_of(after, harness.now()) in cell
        assert answer == after
    else:
        await _is_refused(harness, verb, brought, cell)


@pytest.mark.parametrize("verb", HELD)
@pytest.mark.parametrize(("situation", "road"), ROADS)
async def test_a_stale_lease_moves_nothing(
    harness: Harness, situation: Situation, road: str, verb: Verb
) -> None:
    brought = await WAYS[situation][road](harness)
    await _is_refused(harness, verb, Brought(brought.job, stale(brought.lease)), LeaseLost)


async def _is_refused(harness: Harness, verb: Verb, brought: Brought, kind: Refusal) -> None:
    before, events = await harness.get(brought.job.id), len(await harness.events())
    with pytest.raises(WrongState) as caught:
        await ATTEMPTS[verb](harness, brought)
    assert type(caught.value) is kind
    assert (caught.value.job_id, caught.value.status) == (before.id, before.status)
    after = await harness.get(before.id)
    if verb is Verb.CLAIM and before.lease_expires_at is not None and before.lease_expires_at < harness.now():
        # A claim that passes by writes down what time had decided already; the job is what it was.
        assert after.state is before.state
        assert (await harness.verbs(before.id))[-1] == Verb.LAPSE
        return
    assert after == before
    assert len(await harness.events()) == events
