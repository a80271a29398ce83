"""Metered work: reserve at submit, settle once at the end, whichever end it is."""

from typing import Any

import pytest

from rescind.errors import IdempotencyConflict, InsufficientTokens, LeaseLost
from rescind.job import Billing, Job
from rescind.testing import Harness

OWNER = "ann"


async def _metered(harness: Harness, estimate: int = 1000, balance: int = 5000, **policy: Any) -> Job:
    """A running job with a reservation."""
    await harness.credit(OWNER, balance)
    if policy:
        await harness.policy(**policy)
    return await harness.running(owner=OWNER, estimate=estimate)


async def test_a_credit_can_be_spent(harness: Harness) -> None:
    assert await harness.balance("nobody") == (0, 0)
    account = await harness.credit(OWNER, 100)
    assert (account.owner, account.available, account.reserved) == (OWNER, 100, 0)
    await harness.credit(OWNER, 20)
    assert await harness.balance(OWNER) == (120, 0)


async def test_the_same_credit_key_adds_once(harness: Harness) -> None:
    for _ in range(2):
        await harness.credit(OWNER, 100, key="payment-7")
    assert await harness.balance(OWNER) == (100, 0)


@pytest.mark.parametrize(("owner", "amount"), [("ann", 99), ("bob", 100)])
async def test_a_credit_key_with_another_meaning_is_a_conflict(
    harness: Harness, owner: str, amount: int
) -> None:
    await harness.credit(OWNER, 100, key="payment-7")
    with pytest.raises(IdempotencyConflict):
        await harness.credit(owner, amount, key="payment-7")
    assert await harness.balance(OWNER) == (100, 0)
    assert await harness.balance("bob") == (0, 0)


async def test_submitting_sets_the_estimate_aside(harness: Harness) -> None:
    await harness.credit(OWNER, 5000)
    job = await harness.submit(owner=OWNER, estimate=1000)
    assert job.billing is Billing.RESERVED
    assert await harness.balance(OWNER) == (4000, 1000)


async def test_one_token_too_few_and_there_is_no_job(harness: Harness) -> None:
    await harness.credit(OWNER, 999)
    with pytest.raises(InsufficientTokens) as caught:
        await harness.submit(owner=OWNER, estimate=1000)
    assert (caught.value.required, caught.value.available) == (1000, 999)
    assert str(caught.value) == "Not enough tokens to reserve: required=1000, available=999"
    assert await harness.jobs() == []
    assert await harness.balance(OWNER) == (999, 0)


async def test_reservations_of_one_batch_add_up(harness: Harness) -> None:
    await harness.credit(OWNER, 1500)
    with pytest.raises(InsufficientTokens):
        await harness.submit_many(2, owner=OWNER, estimate=1000)
    assert await harness.balance(OWNER) == (1500, 0)


@pytest.mark.parametrize(
    ("units", "committed"),
    [(0, 0), (1, 1), (500_000, 500), (500_001, 501), (1_000_000, 1000), (1_500_000, 1000)],
)
async def test_completing_commits_what_was_used_up_to_the_estimate(
    harness: Harness, units: int, committed: int
) -> None:
    held = await _metered(harness)
    done = await harness.complete(held, units=units, work_started=True)
    assert done.committed == committed
    assert done.billing is (Billing.COMMITTED if committed else Billing.RELEASED)
    assert await harness.balance(OWNER) == (5000 - committed, 0)


async def test_failing_for_good_releases_everything_even_after_work_started(harness: Harness) -> None:
    held = await _metered(harness, min_start_fee=100)
    failed = await harness.fail(held, retry_seconds=None, units=300_000, work_started=True)
    assert (failed.billing, failed.committed) == (Billing.RELEASED, 0)
    assert await harness.balance(OWNER) == (5000, 0)


async def test_a_retry_keeps_the_reservation(harness: Harness) -> None:
    held = await _metered(harness)
    await harness.fail(held, retry_seconds=0)
    assert await harness.balance(OWNER) == (4000, 1000)


async def test_usage_of_all_attempts_is_paid_once_over_the_total(harness: Harness) -> None:
    held = await _metered(harness)
    await harness.fail(held, units=400)
    again = await harness.claim_one()
    assert (await harness.complete(again, units=400)).committed == 1


async def test_a_lapse_for_good_releases_everything(harness: Harness) -> None:
    await harness.credit(OWNER, 5000)
    held = await harness.running(owner=OWNER, estimate=1000, max_attempts=1)
    await harness.extend(held, units=300_000, work_started=True)
    await harness.advance(61)
    await harness.sweep()
    assert await harness.balance(OWNER) == (5000, 0)


async def test_an_activation_timeout_releases_everything_once(harness: Harness) -> None:
    await harness.policy(activation_timeout_seconds=120)
    await harness.credit(OWNER, 5000)
    await harness.submit(owner=OWNER, estimate=1000)
    await harness.advance(121)
    for _ in range(2):
        await harness.sweep()
    assert await harness.balance(OWNER) == (5000, 0)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("policy", "started", "units", "estimate", "committed"),
    [
        ({"min_start_fee": 100}, False, 0, 1000, 0),
        ({"min_start_fee": 100}, False, 500_000, 1000, 0),
        ({}, True, 500_000, 1000, 500),
        ({"min_start_fee": 100}, True, 50_000, 1000, 100),
        ({"min_start_fee": 100}, True, 0, 1000, 100),
        ({}, True, 1_500_000, 1000, 1000),
        ({}, True, 0, 1000, 0),
        ({"min_start_fee": 100}, True, 0, 60, 60),
        ({"commit_on_cancel": False, "min_start_fee": 100}, True, 500_000, 1000, 0),
    ],
)
async def test_cancelling_running_work_settles_by_the_table(
    harness: Harness,
    force: bool,
    policy: dict[str, Any],
    started: bool,
    units: int,
    estimate: int,
    committed: int,
) -> None:
    # Given metered work that has used so much
    held = await _metered(harness, estimate, **policy)
    await harness.extend(held, units=units, work_started=started)
    # When
    answer = await harness.cancel(held.id, force=force)
    # Then the cancel is the end, and the cost is settled with it
    assert answer.changed and answer.job is not None
    assert (answer.job.state, answer.job.committed) == ("CANCELLED", committed)
    assert answer.job.billing is (Billing.COMMITTED if committed else Billing.RELEASED)
    assert await harness.balance(OWNER) == (5000 - committed, 0)


async def test_cancelling_waiting_work_releases_everything(harness: Harness) -> None:
    await harness.policy(min_start_fee=100)
    await harness.credit(OWNER, 5000)
    job = await harness.submit(owner=OWNER, estimate=1000)
    await harness.cancel(job.id)
    assert await harness.balance(OWNER) == (5000, 0)


async def test_a_second_cancel_and_the_archival_charge_nothing_more(harness: Harness) -> None:
    held = await _metered(harness)
    await harness.extend(held, units=500_000, work_started=True)
    for force in (False, True, False):
        await harness.cancel(held.id, force=force)
    await harness.sweep()
    assert await harness.balance(OWNER) == (4500, 0)


async def test_usage_reported_after_the_settlement_is_refused(harness: Harness) -> None:
    held = await _metered(harness)
    await harness.cancel(held.id)
    with pytest.raises(LeaseLost):
        await harness.extend(held, units=900_000, work_started=True)
    with pytest.raises(LeaseLost):
        await harness.complete(held, units=900_000, work_started=True)
    assert await harness.balance(OWNER) == (5000, 0)


async def test_completing_unheld_work_releases_what_was_not_used(harness: Harness) -> None:
    await harness.credit(OWNER, 5000)
    job = await harness.submit(owner=OWNER, estimate=1000)
    await harness.complete_unheld(job.id)
    assert await harness.balance(OWNER) == (5000, 0)


async def test_a_job_without_an_estimate_costs_nothing(harness: Harness) -> None:
    await harness.credit(OWNER, 100)
    held = await harness.running(owner=OWNER)
    done = await harness.complete(held, units=50_000, work_started=True)
    assert (done.billing, done.committed) == (Billing.NONE, 0)
    assert await harness.balance(OWNER) == (100, 0)


async def test_a_rescheduled_job_keeps_its_reservation_and_is_settled_once(harness: Harness) -> None:
    held = await _metered(harness)
    await harness.reschedule(held, "next")
    again = await harness.claim_one("next")
    await harness.complete(again, units=2000, work_started=True)
    assert await harness.balance(OWNER) == (4998, 0)
