"""extend: one heartbeat keeps leases, carries reports, and brings cancel requests back."""

from datetime import timedelta

import pytest

from rescind.errors import JobNotFoundError, LeaseLost
from rescind.lease import Lease, Report
from rescind.testing import Harness
from rescind.testing.harness import stale


async def test_a_heartbeat_keeps_the_lease(harness: Harness) -> None:
    held = await harness.running()
    await harness.advance(50)
    kept = await harness.extend(held)
    assert kept.lease_id == held.lease_id
    assert kept.lease.expires_at > held.lease.expires_at + timedelta(seconds=40)
    await harness.advance(50)
    assert await harness.claim() == []


async def test_a_heartbeat_may_be_longer_or_shorter_than_the_claim(harness: Harness) -> None:
    held = await harness.running()
    kept = await harness.extend(held, seconds=5)
    assert kept.lease.expires_at < held.lease.expires_at


async def test_a_report_alone_leaves_the_lease_as_it_is(harness: Harness) -> None:
    held = await harness.running()
    await harness.advance(30)
    reports = [Report(lease=held.lease, progress=0.5)]
    beat = (await harness.engine.extend(harness.worker(), reports, None))[0]
    assert beat.job is not None
    assert (beat.job.progress, beat.job.lease_expires_at) == (0.5, held.lease_expires_at)


async def test_progress_is_written_down(harness: Harness) -> None:
    held = await harness.running()
    await harness.extend(held, progress=0.25, message="page 1 of 4")
    job = await harness.get(held.id)
    assert (job.progress, job.progress_message) == (0.25, "page 1 of 4")


async def test_a_heartbeat_without_progress_keeps_the_last_one(harness: Harness) -> None:
    held = await harness.running()
    await harness.extend(held, progress=0.25, message="page 1 of 4")
    await harness.extend(held)
    job = await harness.get(held.id)
    assert (job.progress, job.progress_message) == (0.25, "page 1 of 4")


async def test_usage_reported_twice_counts_once(harness: Harness) -> None:
    held = await harness.running()
    for units in (100, 100, 60, 250):
        await harness.extend(held, units=units)
    assert (await harness.get(held.id)).usage_units == 250


async def test_usage_goes_on_over_attempts(harness: Harness) -> None:
    held = await harness.running()
    await harness.extend(held, units=100)
    await harness.fail(held, units=150)
    again = await harness.claim_one()
    await harness.extend(again, units=30)
    assert (await harness.get(held.id)).usage_units == 180


async def test_the_start_of_work_is_noted_once(harness: Harness) -> None:
    held = await harness.running()
    first = await harness.extend(held, work_started=True)
    again = await harness.extend(held, work_started=True)
    assert first.work_started_at is not None and again.work_started_at == first.work_started_at


async def test_the_heartbeat_brings_the_cancel_request_and_notes_its_delivery(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id, by="ann", reason="typo")
    told = await harness.extend(held)
    assert told.cancelling
    assert (told.cancel_requested_by, told.cancel_reason) == ("ann", "typo")
    assert told.delivered_at is not None


async def test_the_lease_of_a_job_being_cancelled_is_not_extended(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id)
    await harness.advance(30)
    told = await harness.extend(held)
    assert told.lease_expires_at == held.lease_expires_at


async def test_every_heartbeat_repeats_the_request_but_its_delivery_is_noted_once(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id)
    first, again = await harness.extend(held), await harness.extend(held)
    assert first.cancelling and again.cancelling
    assert again.delivered_at == first.delivered_at


async def test_a_job_being_cancelled_still_reports(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id)
    told = await harness.extend(held, units=70, progress=0.5)
    assert (told.usage_units, told.progress) == (70, 0.5)


async def test_a_lapsed_lease_cannot_be_extended(harness: Harness) -> None:
    held = await harness.running()
    await harness.advance(61)
    with pytest.raises(LeaseLost):
        await harness.extend(held)


async def test_the_former_holder_cannot_extend_the_next_ones_lease(harness: Harness) -> None:
    silent = await harness.running()
    await harness.advance(61)
    held = await harness.claim_one(worker="worker-2")
    with pytest.raises(LeaseLost):
        await harness.extend(silent)
    assert (await harness.get(held.id)).lease_id == held.lease_id


async def test_one_heartbeat_answers_each_report_on_its_own(harness: Harness) -> None:
    # Given a lease that is good, one that is stale, one to be stopped and one on nothing
    good, bad, stopping = [await harness.running() for _ in range(3)]
    await harness.cancel(stopping.id)
    nothing = Lease("nobody", "0" * 32, "worker-1", 1, harness.now())
    leases = (good.lease, stale(bad), stopping.lease, nothing)
    # When
    beats = await harness.engine.extend(harness.worker(), [Report(lease=lease) for lease in leases], 60)
    # Then
    assert [beat.job_id for beat in beats] == [lease.job_id for lease in leases]
    assert [type(beat.error) for beat in beats] == [type(None), LeaseLost, type(None), JobNotFoundError]
    assert [bool(beat.job and beat.job.cancelling) for beat in beats] == [False, False, True, False]


async def test_a_heartbeat_without_leases_shows_that_the_worker_lives(harness: Harness) -> None:
    assert list(await harness.engine.extend(harness.worker("idle"), [], 60)) == []
    assert [worker.id for worker in await harness.engine.workers()] == ["idle"]
