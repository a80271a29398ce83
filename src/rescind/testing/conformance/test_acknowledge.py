"""acknowledge: the handler stopped because it was asked to."""

from datetime import timedelta

import pytest

from rescind.errors import LeaseLost, WrongState
from rescind.job import Outcome
from rescind.lease import Rung
from rescind.testing import Harness


@pytest.mark.parametrize("rung", [Rung.FLAG, Rung.RAISED])
async def test_an_acknowledged_cancel_ends_the_job_and_says_what_it_took(
    harness: Harness, rung: Rung
) -> None:
    held = await harness.running()
    await harness.cancel(held.id, by="ann", reason="typo")
    stopped = await harness.acknowledge(held, rung)
    assert (stopped.outcome, stopped.rung, stopped.last_error) == (Outcome.CANCELLED, rung, "typo")
    assert (stopped.cancelled_by, stopped.lease_id) == ("ann", None)
    assert stopped.cancelled_at == stopped.stopped_at == stopped.finished_at


async def test_a_request_seen_without_a_heartbeat_counts_as_delivered_then(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id)
    seen = harness.now() - timedelta(milliseconds=1)
    stopped = await harness.acknowledge(held, acknowledged_at=seen)
    assert stopped.acknowledged_at == stopped.delivered_at == seen


async def test_nobody_can_acknowledge_what_nobody_asked(harness: Harness) -> None:
    held = await harness.running()
    with pytest.raises(WrongState) as caught:
        await harness.acknowledge(held)
    assert not isinstance(caught.value, LeaseLost)
    assert await harness.get(held.id) == held


async def test_acknowledging_twice_is_refused(harness: Harness) -> None:
    held = await harness.running()
    await harness.cancel(held.id)
    stopped = await harness.acknowledge(held)
    with pytest.raises(LeaseLost):
        await harness.acknowledge(held)
    assert await harness.get(held.id) == stopped


async def test_an_acknowledged_job_is_archived_and_releases_its_dependents_at_once(harness: Harness) -> None:
    held = await harness.running()
    behind = await harness.submit("behind", wait_for=[held.id])
    await harness.cancel(held.id)
    stopped = await harness.acknowledge(held)
    assert stopped.archived_at is not None
    assert (await harness.claim_one("behind")).id == behind.id
