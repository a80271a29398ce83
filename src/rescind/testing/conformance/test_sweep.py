"""sweep: what time alone has decided, moved in bounded steps, once."""

from datetime import timedelta

from rescind.engine import Swept
from rescind.job import Outcome
from rescind.state import State, TaskStatus
from rescind.testing import Harness

DAY = timedelta(days=1).total_seconds()


async def test_with_nothing_to_do_nothing_happens(harness: Harness) -> None:
    await harness.submit()
    await harness.running(need="other")
    events = len(await harness.events())
    assert await harness.sweep() == Swept()
    assert len(await harness.events()) == events


async def test_a_lapsed_job_goes_back_to_the_queue(harness: Harness) -> None:
    held = await harness.running()
    await harness.advance(61)
    assert (await harness.sweep()).lapsed == 1
    job = await harness.get(held.id)
    assert (job.state, job.failures, job.lease_id) == (State.READY, 1, None)
    assert job.last_error == "lease of worker-1 ran out"
    last = (await harness.history(held.id))[-1]
    assert (last.verb, last.actor) == ("lapse", "rescind:sweep")


async def test_a_live_lease_is_left_alone(harness: Harness) -> None:
    held = await harness.running()
    await harness.advance(55)
    assert (await harness.sweep()).lapsed == 0
    assert await harness.get(held.id) == held


async def test_a_lapsed_last_attempt_has_failed(harness: Harness) -> None:
    held = await harness.running(max_attempts=1)
    await harness.advance(61)
    assert (await harness.get(held.id)).state is State.FAILED
    await harness.sweep()
    job = await harness.get(held.id)
    assert (job.outcome, job.failures) == (Outcome.FAILED, 1)
    assert job.finished_at is not None and job.archived_at is not None


async def test_a_cancelled_job_is_archived_with_its_status_unchanged(harness: Harness) -> None:
    job = await harness.submit()
    answer = await harness.cancel(job.id)
    assert (await harness.sweep()).archived == 1
    archived = await harness.get(job.id)
    assert (archived.outcome, archived.status) == (Outcome.CANCELLED, TaskStatus.Cancelled)
    assert answer.job is not None and archived.cancelled_at == answer.job.cancelled_at
    assert archived.archived_at is not None


async def test_a_second_sweep_moves_nothing(harness: Harness) -> None:
    await harness.cancel((await harness.submit()).id)
    await harness.running(max_attempts=1)
    await harness.advance(61)
    await harness.sweep()
    jobs = await harness.jobs()
    assert await harness.sweep() == Swept()
    assert await harness.jobs() == jobs


async def test_a_cascade_ends_within_the_same_sweep(harness: Harness) -> None:
    # Given a chain of jobs of which each is to be cancelled with the one before
    first = await harness.submit()
    chain = [first]
    for _ in range(5):
        chain.append(await harness.submit(wait_for=[chain[-1].id], on_dependency_cancelled="cancel"))
    last = await harness.submit("behind", wait_for=[chain[-1].id])
    # When the first is cancelled and one sweep passes
    await harness.cancel(first.id)
    swept = await harness.sweep()
    # Then all of the chain is archived, and what waits behind it is free
    assert swept.archived == len(chain)
    assert {(await harness.get(job.id)).outcome for job in chain} == {Outcome.CANCELLED}
    assert (await harness.claim_one("behind")).id == last.id


async def test_a_sweep_stops_at_its_limit_and_says_so(harness: Harness) -> None:
    for job in await harness.submit_many(5):
        await harness.cancel(job.id)
    steps = []
    while True:
        steps.append(await harness.sweep(limit=2))
        if not steps[-1].more:
            break
    assert sum(step.archived for step in steps) == 5
    assert all(step.archived <= 2 for step in steps)


async def test_a_cascade_longer_than_the_limit_goes_on_in_the_next_step(harness: Harness) -> None:
    jobs = [await harness.submit()]
    for _ in range(4):
        jobs.append(await harness.submit(wait_for=[jobs[-1].id], on_dependency_cancelled="cancel"))
    await harness.cancel(jobs[0].id)
    while (await harness.sweep(limit=2)).more:
        pass
    assert {(await harness.get(job.id)).outcome for job in jobs} == {Outcome.CANCELLED}


async def test_a_job_never_started_within_its_activation_timeout_has_failed(harness: Harness) -> None:
    await harness.policy(activation_timeout_seconds=120)
    job = await harness.submit()
    await harness.advance(110)
    assert (await harness.sweep()).timed_out == 0
    await harness.advance(11)
    assert (await harness.sweep()).timed_out == 1
    late = await harness.get(job.id)
    assert (late.outcome, late.last_error) == (Outcome.FAILED, "Job timed out before processing could start")


async def test_the_activation_timeout_spares_what_was_ever_started(harness: Harness) -> None:
    await harness.policy(activation_timeout_seconds=120)
    held = await harness.running()
    await harness.release(held)
    await harness.advance(1000)
    assert (await harness.sweep()).timed_out == 0


async def test_the_activation_timeout_spares_what_cannot_start_yet(harness: Harness) -> None:
    await harness.policy(activation_timeout_seconds=120)
    other = await harness.submit("elsewhere")
    blocked = await harness.submit(wait_for=[other.id])
    delayed = await harness.submit(delay_seconds=5000)
    await harness.advance(1000)
    assert (await harness.sweep()).timed_out == 0
    assert [(await harness.get(job.id)).outcome for job in (blocked, delayed)] == [None, None]


async def test_the_activation_timeout_counts_from_when_the_job_was_free_to_start(harness: Harness) -> None:
    # Given one that waited for a job and one that waited for its time
    await harness.policy(activation_timeout_seconds=120)
    other = await harness.submit("elsewhere")
    blocked = await harness.submit(wait_for=[other.id])
    delayed = await harness.submit(delay_seconds=500)
    await harness.advance(501)
    await harness.complete_unheld(other.id)
    # When
    await harness.advance(110)
    early = await harness.sweep()
    await harness.advance(11)
    late = await harness.sweep()
    # Then
    assert (early.timed_out, late.timed_out) == (0, 2)
    assert {(await harness.get(job.id)).outcome for job in (blocked, delayed)} == {Outcome.FAILED}


async def test_young_jobs_in_front_do_not_hide_a_late_one(harness: Harness) -> None:
    # Given jobs submitted long ago but freed just now, and one that is truly late
    await harness.policy(activation_timeout_seconds=120)
    other = await harness.submit("elsewhere")
    for _ in range(5):
        await harness.submit(wait_for=[other.id])
    late = await harness.submit()
    await harness.advance(200)
    await harness.complete_unheld(other.id)
    # When a sweep may move fewer than there are
    await harness.sweep(limit=2)
    # Then
    assert (await harness.get(late.id)).outcome is Outcome.FAILED


async def test_the_activation_timeout_is_each_needs_own(harness: Harness) -> None:
    await harness.policy("hasty", activation_timeout_seconds=60)
    await harness.policy("calm", activation_timeout_seconds=6000)
    hasty, calm, free = [await harness.submit(need) for need in ("hasty", "calm", "free")]
    await harness.advance(61)
    assert (await harness.sweep()).timed_out == 1
    outcomes = [(await harness.get(job.id)).outcome for job in (hasty, calm, free)]
    assert outcomes == [Outcome.FAILED, None, None]


async def test_a_job_timed_out_behind_a_singleton_key_lets_the_key_go(harness: Harness) -> None:
    await harness.policy("hasty", activation_timeout_seconds=60)
    await harness.submit("hasty", singleton_key="printer")
    behind = await harness.submit("calm", singleton_key="printer")
    await harness.advance(61)
    await harness.sweep()
    assert [job.id for job in await harness.claim("calm", "hasty")] == [behind.id]


async def test_past_its_retention_a_job_loses_its_payload_and_keeps_its_record(harness: Harness) -> None:
    held = await harness.running(input="in")
    await harness.complete(held, "out")
    await harness.advance(2 * DAY)
    assert (await harness.sweep(retention=timedelta(days=3))).purged == 0
    assert (await harness.sweep(retention=timedelta(days=1))).purged == 1
    job = await harness.get(held.id)
    assert (job.input, job.output, job.status) == (None, None, TaskStatus.Archived)
    assert (job.outcome, job.state) == (Outcome.COMPLETED, State.COMPLETED)
    assert await harness.verbs(held.id) == ["submit", "claim", "complete", "purge"]


async def test_every_kind_of_end_is_purged_and_nothing_else(harness: Harness) -> None:
    done = await harness.running()
    await harness.complete(done)
    failed = await harness.running()
    await harness.fail(failed, retry_seconds=None)
    cancelled = await harness.submit()
    await harness.cancel(cancelled.id)
    waiting = await harness.submit(delay_seconds=100 * DAY)
    await harness.sweep()
    await harness.advance(31 * DAY)
    assert (await harness.sweep()).purged == 3
    assert (await harness.get(waiting.id)).purged_at is None


async def test_an_idempotency_key_is_kept_for_thirty_days(harness: Harness) -> None:
    first = await harness.submit(idempotency_key="k", delay_seconds=100 * DAY)
    await harness.advance(29 * DAY)
    await harness.sweep()
    assert (await harness.submit(idempotency_key="k")).id == first.id
    await harness.advance(2 * DAY)
    await harness.sweep()
    second = await harness.submit(idempotency_key="k")
    assert second.id != first.id
    assert (await harness.get(first.id)).idempotency_key is None


async def test_a_purge_does_not_shorten_the_life_of_an_idempotency_key(harness: Harness) -> None:
    held = await harness.running(idempotency_key="k")
    await harness.complete(held)
    await harness.advance(2 * DAY)
    await harness.sweep(retention=timedelta(days=1))
    assert (await harness.submit(idempotency_key="k")).id == held.id


async def test_workers_not_heard_of_for_long_are_forgotten(harness: Harness) -> None:
    await harness.engine.extend(harness.worker("old"), [], 60)
    await harness.advance(2 * DAY)
    await harness.engine.extend(harness.worker("new"), [], 60)
    await harness.sweep()
    assert [worker.id for worker in await harness.engine.workers()] == ["new"]
