"""complete: a worker's good last word."""

import pytest

from rescind.errors import JobNotFoundError, LeaseLost
from rescind.job import Job, Outcome
from rescind.lease import Complete, Lease
from rescind.state import State, TaskStatus
from rescind.testing import Harness
from rescind.testing.harness import stale


async def test_a_completed_job_has_its_output_and_no_lease(harness: Harness) -> None:
    held = await harness.running()
    done = await harness.complete(held, {"answer": 42})
    assert (done.state, done.status, done.output) == (State.COMPLETED, TaskStatus.Completed, {"answer": 42})
    assert (done.lease_id, done.lease_worker, done.lease_expires_at) == (None, None, None)
    assert done.finished_at is not None and done.archived_at == done.finished_at


async def test_an_earlier_error_is_forgotten(harness: Harness) -> None:
    held = await harness.running()
    await harness.fail(held, "it broke")
    again = await harness.claim_one()
    assert again.last_error == "it broke"
    assert (await harness.complete(again)).last_error is None


async def test_completing_twice_is_refused_and_keeps_the_first_output(harness: Harness) -> None:
    held = await harness.running()
    await harness.complete(held, "first")
    with pytest.raises(LeaseLost):
        await harness.complete(held, "second")
    assert (await harness.get(held.id)).output == "first"


async def test_a_late_worker_cannot_complete_what_another_one_holds(harness: Harness) -> None:
    silent = await harness.running()
    await harness.advance(61)
    held = await harness.claim_one(worker="worker-2")
    with pytest.raises(LeaseLost) as caught:
        await harness.complete(silent, "late")
    assert (caught.value.job_id, caught.value.state) == (silent.id, State.ACTIVE)
    assert (await harness.complete(held, "right")).output == "right"


async def test_each_settlement_of_a_batch_is_answered_on_its_own(harness: Harness) -> None:
    # Given two good leases around a stale one and one on nothing
    one, two, three = [await harness.running() for _ in range(3)]
    nothing = Lease("nobody", "0" * 32, "worker-1", 1, harness.now())
    leases = (one.lease, stale(two), nothing, three.lease)
    # When
    settled = await harness.engine.settle([Complete(lease=lease, output=b"1") for lease in leases])
    # Then a refusal undoes only itself
    assert [type(answer) for answer in settled.answers] == [Job, LeaseLost, JobNotFoundError, Job]
    assert (await harness.get(one.id)).outcome is (await harness.get(three.id)).outcome is Outcome.COMPLETED
    assert (await harness.get(two.id)).state is State.ACTIVE


async def test_the_same_lease_twice_in_a_batch_counts_once(harness: Harness) -> None:
    held = await harness.running()
    settled = await harness.engine.settle([Complete(lease=held.lease, output=b) for b in (b"1", b"2")])
    assert [type(answer) for answer in settled.answers] == [Job, LeaseLost]
    assert (await harness.get(held.id)).output == 1


async def test_the_history_names_the_worker(harness: Harness) -> None:
    held = await harness.running()
    await harness.complete(held)
    assert await harness.verbs(held.id) == ["submit", "claim", "complete"]
    assert (await harness.history(held.id))[-1].actor == "worker-1"
