"""How a job gets into each situation of the lifecycle: several ways each, by public methods only."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import msgspec

from rescind.job import Job
from rescind.lease import Lease
from rescind.lifecycle import Situation
from rescind.testing.harness import NEED, Harness, lease_on

_LONG: Final = 10 * 60.0  # seconds: beyond any lease here


class Brought(msgspec.Struct, frozen=True):
    """A job in the situation asked for, and the last lease anybody had on it."""

    job: Job
    lease: Lease


Way = Callable[[Harness], Awaitable[Brought]]


async def _as_it_is(harness: Harness, job_id: str, lease: Lease | None = None) -> Brought:
    job = await harness.get(job_id)
    return Brought(job, lease or lease_on(job))


def submitted(**options: Any) -> Way:
    async def way(harness: Harness) -> Brought:
        return await _as_it_is(harness, (await harness.submit(**options)).id)

    return way


async def _blocked(harness: Harness) -> Job:
    """A job that waits for another, which nobody can claim."""
    other = await harness.submit("elsewhere")
    return await harness.submit(wait_for=[other.id])


async def _waits(harness: Harness) -> Brought:
    return await _as_it_is(harness, (await _blocked(harness)).id)


async def _waits_for_both(harness: Harness) -> Brought:
    """For its time and for a job; the time comes first."""
    other = await harness.submit("elsewhere")
    job = await harness.submit(wait_for=[other.id], delay_seconds=3600)
    return await _as_it_is(harness, job.id)


async def _rescheduled(harness: Harness, **target: Any) -> Brought:
    held = await harness.running()
    await harness.reschedule(held, NEED, **target)
    return await _as_it_is(harness, held.id, held.lease)


async def _rescheduled_to_wait(harness: Harness) -> Brought:
    other = await harness.submit("elsewhere")
    return await _rescheduled(harness, wait_for=(other.id,))


async def _rescheduled_to_later(harness: Harness) -> Brought:
    return await _rescheduled(harness, available_at=harness.now() + timedelta(hours=1))


async def _to_retry_later(harness: Harness) -> Brought:
    held = await harness.running()
    await harness.fail(held, retry_seconds=3600)
    return await _as_it_is(harness, held.id, held.lease)


async def _to_retry_now(harness: Harness) -> Brought:
    held = await harness.running()
    await harness.fail(held, retry_seconds=0)
    return await _as_it_is(harness, held.id, held.lease)


async def _released(harness: Harness) -> Brought:
    held = await harness.running()
    await harness.release(held)
    return await _as_it_is(harness, held.id, held.lease)


async def _its_time_came(harness: Harness) -> Brought:
    job = await harness.submit(delay_seconds=60)
    await harness.advance(61)
    return await _as_it_is(harness, job.id)


async def _unblocked(harness: Harness) -> Brought:
    other = await harness.submit("elsewhere")
    job = await harness.submit(wait_for=[other.id])
    await harness.complete_unheld(other.id)
    return await _as_it_is(harness, job.id)


async def _lapsed(harness: Harness, **options: Any) -> Brought:
    """Its worker fell silent, and nobody has looked since."""
    held = await harness.running(**options)
    await harness.advance(_LONG)
    return await _as_it_is(harness, held.id, held.lease)


async def _lapsed_for_good(harness: Harness) -> Brought:
    return await _lapsed(harness, max_attempts=1)


async def _lapsed_and_swept(harness: Harness) -> Brought:
    brought = await _lapsed(harness)
    await harness.sweep()
    return await _as_it_is(harness, brought.job.id, brought.lease)


async def _claimed(harness: Harness) -> Brought:
    held = await harness.running()
    return await _as_it_is(harness, held.id)


async def _claimed_again(harness: Harness) -> Brought:
    held = await harness.running()
    await harness.fail(held)
    again = await harness.claim_one()
    return await _as_it_is(harness, again.id)


async def _extended(harness: Harness) -> Brought:
    held = await harness.running()
    await harness.extend(held, progress=0.5)
    return await _as_it_is(harness, held.id)


async def _being_cancelled(harness: Harness, **options: Any) -> Brought:
    held = await harness.running(**options)
    await harness.cancel(held.id)
    return await _as_it_is(harness, held.id)


async def _told_to_stop(harness: Harness) -> Brought:
    brought = await _being_cancelled(harness)
    await harness.extend(brought.lease)
    return await _as_it_is(harness, brought.job.id)


async def _completed(harness: Harness) -> Brought:
    held = await harness.running()
    await harness.complete(held, {"answer": 42})
    return await _as_it_is(harness, held.id, held.lease)


async def _completed_despite_cancel(harness: Harness) -> Brought:
    brought = await _being_cancelled(harness)
    await harness.complete(brought.lease)
    return await _as_it_is(harness, brought.job.id, brought.lease)


async def _completed_unheld(harness: Harness) -> Brought:
    job = await harness.submit()
    await harness.complete_unheld(job.id)
    return await _as_it_is(harness, job.id)


async def _purged(harness: Harness) -> Brought:
    brought = await _completed(harness)
    await harness.advance(timedelta(days=31).total_seconds())
    await harness.sweep()
    return await _as_it_is(harness, brought.job.id, brought.lease)


async def _failed_for_good(harness: Harness) -> Brought:
    held = await harness.running()
    await harness.fail(held, retry_seconds=None)
    return await _as_it_is(harness, held.id, held.lease)


async def _failed_too_often(harness: Harness) -> Brought:
    held = await harness.running(max_attempts=1)
    await harness.fail(held)
    return await _as_it_is(harness, held.id, held.lease)


async def _timed_out(harness: Harness) -> Brought:
    await harness.policy(NEED, activation_timeout_seconds=60)
    job = await harness.submit()
    await harness.advance(61)
    await harness.sweep()
    return await _as_it_is(harness, job.id)


async def _cancelled_while_ready(harness: Harness) -> Brought:
    job = await harness.submit()
    await harness.cancel(job.id)
    return await _as_it_is(harness, job.id)


async def _cancelled_while_blocked(harness: Harness) -> Brought:
    job = await _blocked(harness)
    await harness.cancel(job.id)
    return await _as_it_is(harness, job.id)


async def _cancelled_and_archived(harness: Harness) -> Brought:
    brought = await _cancelled_while_ready(harness)
    await harness.sweep()
    return await _as_it_is(harness, brought.job.id)


async def _stopped_by_its_worker(harness: Harness) -> Brought:
    brought = await _being_cancelled(harness)
    await harness.acknowledge(brought.lease)
    return await _as_it_is(harness, brought.job.id, brought.lease)


async def _forced(harness: Harness) -> Brought:
    held = await harness.running()
    await harness.cancel(held.id, force=True)
    return await _as_it_is(harness, held.id, held.lease)


async def _lapsed_while_cancelling(harness: Harness) -> Brought:
    brought = await _being_cancelled(harness)
    await harness.advance(_LONG)
    return await _as_it_is(harness, brought.job.id, brought.lease)


async def _cancelled_with_its_dependency(harness: Harness) -> Brought:
    other = await harness.submit("elsewhere")
    job = await harness.submit(wait_for=[other.id], on_dependency_cancelled="cancel")
    await harness.cancel(other.id)
    await harness.sweep()
    return await _as_it_is(harness, job.id)


WAYS: Final[dict[Situation, dict[str, Way]]] = {
    Situation.AWAITING_FUTURE: {
        "delayed": submitted(delay_seconds=3600),
        "delayed and waiting": _waits_for_both,
        "to be retried later": _to_retry_later,
        "rescheduled to later": _rescheduled_to_later,
    },
    Situation.PENDING_JOBS: {"waiting": _waits, "rescheduled to wait": _rescheduled_to_wait},
    Situation.READY: {
        "fresh": submitted(),
        "its time came": _its_time_came,
        "unblocked": _unblocked,
        "released": _released,
        "to be retried now": _to_retry_now,
        "rescheduled": _rescheduled,
        "lapsed": _lapsed,
        "lapsed and swept": _lapsed_and_swept,
    },
    Situation.ACTIVE: {"claimed": _claimed, "claimed again": _claimed_again, "extended": _extended},
    Situation.CANCELLING: {"asked to stop": _being_cancelled, "told to stop": _told_to_stop},
    Situation.COMPLETED: {
        "completed": _completed,
        "completed despite a cancel": _completed_despite_cancel,
        "completed unheld": _completed_unheld,
        "purged": _purged,
    },
    Situation.FAILED: {
        "failed for good": _failed_for_good,
        "failed too often": _failed_too_often,
        "lapsed for good": _lapsed_for_good,
        "timed out": _timed_out,
    },
    Situation.CANCELLED: {
        "cancelled while ready": _cancelled_while_ready,
        "cancelled while blocked": _cancelled_while_blocked,
        "cancelled and archived": _cancelled_and_archived,
        "stopped by its worker": _stopped_by_its_worker,
        "forced": _forced,
        "lapsed while cancelling": _lapsed_while_cancelling,
        "cancelled with its dependency": _cancelled_with_its_dependency,
    },
}
"""Every situation, and by which roads a job comes to be in it."""
