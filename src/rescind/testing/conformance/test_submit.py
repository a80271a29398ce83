"""submit: all of a batch or none of it; ids are used once; an idempotency key gives one job."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rescind.errors import DuplicateJob, IdempotencyConflict, InsufficientTokens, UnknownDependency
from rescind.state import State
from rescind.testing import Harness


async def test_a_submitted_job_is_ready_and_stored_as_answered(harness: Harness) -> None:
    job = await harness.submit(
        "resize",
        {"page": 7},
        id="picture:7",
        by="ann",
        owner="studio",
        priority=3,
        singleton_key="printer",
        max_attempts=5,
    )
    assert (job.id, job.need, job.input, job.submitted_by) == ("picture:7", "resize", {"page": 7}, "ann")
    assert (job.owner, job.priority, job.singleton_key, job.max_attempts) == ("studio", 3, "printer", 5)
    assert (job.state, job.attempt, job.failures) == (State.READY, 0, 0)
    assert job == await harness.get("picture:7")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**63 - 1,
        1.5,
        1e300,
        "",
        "null",
        "\x00 zero byte",
        "Zürich – 東京 – 🦆",
        [],
        {},
        [[[]]],
        {"null": None, "": [None]},
        "'; DROP TABLE jobs; --",
    ],
)
async def test_any_json_comes_back_as_it_went_in(harness: Harness, value: Any) -> None:
    job = await harness.submit(input=value)
    held = await harness.claim_one()
    done = await harness.complete(held, value)
    assert (job.input, held.input, done.output) == (value, value, value)
    assert type((await harness.get(job.id)).output) is type(value)


@pytest.mark.parametrize("id", ["a", "A-1_b.c:d@e", "9", "x" * 128])
async def test_any_legal_id_can_be_found_again(harness: Harness, id: str) -> None:
    await harness.submit(id=id)
    assert (await harness.get(id)).id == id
    assert (await harness.cancel(id)).changed


async def test_ids_differing_in_case_are_two_jobs(harness: Harness) -> None:
    await harness.submit(id="job-a")
    await harness.submit(id="job-A")
    assert len(await harness.claim()) == 2


async def test_a_batch_is_answered_in_its_order(harness: Harness) -> None:
    specs = [harness.spec(id=id) for id in ("c", "a", "b")]
    assert [job.id for job in await harness.engine.submit(specs)] == ["c", "a", "b"]


async def test_an_empty_batch_is_no_trouble(harness: Harness) -> None:
    assert list(await harness.engine.submit([])) == []


async def test_an_id_is_used_once(harness: Harness) -> None:
    await harness.submit(id="one")
    with pytest.raises(DuplicateJob) as caught:
        await harness.submit(id="one")
    assert caught.value.job_id == "one"
    assert str(caught.value) == "job_id one has been used already; ids are never reused"


async def test_an_id_is_not_reused_even_when_its_job_was_purged(harness: Harness) -> None:
    held = await harness.running()
    await harness.complete(held)
    await harness.advance(31 * 86_400)
    await harness.sweep()
    with pytest.raises(DuplicateJob):
        await harness.submit(id=held.id)


async def test_the_same_id_twice_in_a_batch_is_refused(harness: Harness) -> None:
    with pytest.raises(DuplicateJob) as caught:
        await harness.engine.submit(
            [harness.spec(id="x"), harness.spec(id="twice"), harness.spec(id="twice")]
        )
    assert caught.value.job_id == "twice"
    assert await harness.jobs() == []


async def test_one_bad_job_leaves_nothing_of_its_batch_behind(harness: Harness) -> None:
    # Given
    await harness.submit(id="taken")
    await harness.credit("ann", 50)
    good = [harness.spec(id="good", owner="ann", estimate=10, singleton_key="printer")]
    bad = [
        (harness.spec(id="taken"), DuplicateJob),
        (harness.spec(wait_for=["nobody"]), UnknownDependency),
        (harness.spec(owner="ann", estimate=100), InsufficientTokens),
    ]
    for spec, refusal in bad:
        # When
        with pytest.raises(refusal):
            await harness.engine.submit([*good, spec])
        # Then
        assert [job.id for job in await harness.jobs()] == ["taken"]
        assert await harness.balance("ann") == (50, 0)
    assert len(await harness.events()) == 1


async def test_the_same_key_and_input_give_the_same_job(harness: Harness) -> None:
    first = await harness.submit(input=1, idempotency_key="order-7")
    again = await harness.submit(input=1, idempotency_key="order-7")
    assert again == first
    assert len(await harness.jobs()) == 1


async def test_a_replay_answers_with_the_job_as_it_now_is(harness: Harness) -> None:
    first = await harness.submit(idempotency_key="order-7")
    await harness.cancel(first.id)
    again = await harness.submit(idempotency_key="order-7")
    assert (again.id, again.state) == (first.id, State.CANCELLED)


async def test_the_same_key_with_another_input_is_a_conflict(harness: Harness) -> None:
    first = await harness.submit(input=1, idempotency_key="order-7")
    for spec in (
        harness.spec(input=2, idempotency_key="order-7"),
        harness.spec("other", 1, idempotency_key="order-7"),
    ):
        with pytest.raises(IdempotencyConflict) as caught:
            await harness.engine.submit([spec])
        assert (caught.value.key, caught.value.job_id) == ("order-7", first.id)
    assert len(await harness.jobs()) == 1


async def test_each_owner_has_keys_of_their_own(harness: Harness) -> None:
    jobs = [await harness.submit(owner=owner, idempotency_key="k") for owner in ("ann", "bob", None)]
    assert len({job.id for job in jobs}) == 3


async def test_a_key_repeated_within_a_batch_gives_one_job(harness: Harness) -> None:
    specs = [harness.spec(idempotency_key="k"), harness.spec(), harness.spec(idempotency_key="k")]
    answers = await harness.engine.submit(specs)
    assert answers[0].id == answers[2].id != answers[1].id
    assert len(await harness.jobs()) == 2


async def test_a_replay_does_not_answer_for_another_job_with_its_id(harness: Harness) -> None:
    # Given a key that belongs to a job
    known = await harness.submit(idempotency_key="k")
    # When a batch makes a new job and replays that key under the new job's id
    answers = await harness.engine.submit(
        [harness.spec(id="new"), harness.spec(id="new", idempotency_key="k")]
    )
    # Then each is answered by its own job
    assert [job.id for job in answers] == ["new", known.id]


async def test_a_replay_reserves_nothing_again(harness: Harness) -> None:
    await harness.credit("ann", 10)
    for _ in range(2):
        await harness.submit(owner="ann", estimate=10, idempotency_key="k")
    assert await harness.balance("ann") == (0, 10)


async def test_times_in_any_zone_mean_the_same_moment(harness: Harness) -> None:
    moment = datetime(2099, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    job = await harness.submit(available_at=moment.astimezone(timezone(timedelta(hours=-9))))
    assert job.available_at == moment == (await harness.get(job.id)).available_at


async def test_a_distant_time_is_no_trouble(harness: Harness) -> None:
    job = await harness.submit(available_at=datetime.max.replace(tzinfo=UTC))
    assert job.state is State.AWAITING_FUTURE
    assert await harness.claim() == []
    early = await harness.submit(available_at=datetime.min.replace(tzinfo=UTC))
    assert (await harness.claim_one()).id == early.id


async def test_the_history_begins_with_who_submitted(harness: Harness) -> None:
    job = await harness.submit(by="ann")
    (event,) = await harness.history(job.id)
    assert (event.verb, event.actor, event.at, event.state) == (
        "submit",
        "ann",
        job.submitted_at,
        State.READY,
    )
