"""Looking without touching: get, list, count, history, changes, workers, and documents."""

import pytest

from rescind.engine import Document, Filter
from rescind.errors import DocumentConflict, InvalidInput, JobNotFoundError
from rescind.lifecycle import Situation, situation_of
from rescind.state import State
from rescind.testing import WAYS, Harness


async def test_get_answers_in_order_and_none_for_unknown_ids(harness: Harness) -> None:
    one, two = await harness.submit(), await harness.submit()
    found = await harness.engine.get([two.id, "nobody", one.id, two.id])
    assert found == [two, None, one, two]
    assert list(await harness.engine.get([])) == []


async def test_a_state_changes_with_the_clock_alone(harness: Harness) -> None:
    job = await harness.submit(delay_seconds=60)
    events = await harness.events()
    await harness.advance(61)
    assert (await harness.get(job.id)).state is State.READY
    assert await harness.events() == events


async def test_a_list_is_newest_first(harness: Harness) -> None:
    ids = [(await harness.submit()).id for _ in range(4)]
    page = await harness.engine.list(Filter(), limit=10)
    assert [job.id for job in page] == ids[::-1]
    assert (len(page), page.next) == (4, None)


async def test_a_list_goes_on_where_the_page_before_ended(harness: Harness) -> None:
    ids = [job.id for job in await harness.submit_many(7)]
    seen: list[str] = []
    after, pages = None, 0
    while True:
        page = await harness.engine.list(Filter(), limit=3, after=after)
        seen += [job.id for job in page]
        pages += 1
        if page.next is None:
            break
        after = page.next
    assert (seen, pages) == (ids[::-1], 3)


async def test_jobs_submitted_meanwhile_do_not_disturb_a_list(harness: Harness) -> None:
    ids = [job.id for job in await harness.submit_many(4)]
    first = await harness.engine.list(Filter(), limit=2)
    await harness.submit()
    second = await harness.engine.list(Filter(), limit=2, after=first.next)
    assert [job.id for job in (*first, *second)] == ids[::-1]


async def test_an_exact_last_page_says_that_it_is_the_last(harness: Harness) -> None:
    await harness.submit_many(2)
    assert (await harness.engine.list(Filter(), limit=2)).next is None


async def test_a_page_that_never_was_is_the_callers_mistake(harness: Harness) -> None:
    with pytest.raises(InvalidInput):
        await harness.engine.list(Filter(), limit=2, after="not a page")


async def test_a_list_is_narrowed_by_need_and_owner(harness: Harness) -> None:
    meant = await harness.submit("a", owner="ann")
    await harness.submit("a", owner="bob")
    await harness.submit("b", owner="ann")
    page = await harness.engine.list(Filter(need="a", owner="ann"), limit=10)
    assert [job.id for job in page] == [meant.id]


@pytest.mark.parametrize("situation", Situation)
async def test_list_and_count_agree_with_the_table_about_every_state(
    harness: Harness, situation: Situation
) -> None:
    for road in WAYS[situation].values():
        # Given a job in this situation, by one road after the other
        brought = await road(harness)
        state = brought.job.state
        # Then it is listed under its state and no other
        listed = {
            each
            for each in State
            for job in await harness.engine.list(Filter(states=frozenset({each})), limit=100)
            if job.id == brought.job.id
        }
        assert listed == {state}
        # And the counts say the same as the records do
        jobs = await harness.jobs()
        counts = await harness.engine.count(Filter())
        assert sum(sum(states.values()) for states in counts.values()) == len(jobs)
        for need, states in counts.items():
            for each, number in states.items():
                assert number == sum(job.need == need and job.state is each for job in jobs)
        # Leave the needs of the next one clean
        for job in jobs:
            if situation_of(job, harness.now()) in (Situation.READY, Situation.ACTIVE):
                await harness.cancel(job.id, force=True)


async def test_a_list_tells_purged_jobs_apart(harness: Harness) -> None:
    held = await harness.running()
    await harness.complete(held)
    await harness.advance(31 * 86_400)
    await harness.sweep()
    fresh = await harness.submit()
    for purged, expected in ((True, [held.id]), (False, [fresh.id]), (None, [fresh.id, held.id])):
        page = await harness.engine.list(Filter(purged=purged), limit=10)
        assert [job.id for job in page] == expected


async def test_a_count_is_narrowed_as_a_list_is(harness: Harness) -> None:
    await harness.submit_many(3, need="a", owner="ann")
    await harness.submit("b", owner="ann", delay_seconds=60)
    await harness.submit("a", owner="bob")
    assert await harness.engine.count(Filter(owner="ann")) == {
        "a": {State.READY: 3},
        "b": {State.AWAITING_FUTURE: 1},
    }
    assert await harness.engine.count(Filter(need="nothing")) == {}


async def test_a_history_tells_every_move_in_order(harness: Harness) -> None:
    held = await harness.running()
    await harness.fail(held)
    held = await harness.claim_one()
    await harness.cancel(held.id)
    await harness.acknowledge(held)
    events = await harness.history(held.id)
    assert [event.verb for event in events] == ["submit", "claim", "fail", "claim", "cancel", "acknowledge"]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert all(event.job_id == held.id and event.actor for event in events)


async def test_the_history_of_an_unknown_job_is_not_found(harness: Harness) -> None:
    with pytest.raises(JobNotFoundError):
        await harness.history("nobody")


async def test_the_feed_is_the_histories_of_all_jobs_in_one_order(harness: Harness) -> None:
    jobs = await harness.submit_many(3)
    for job in jobs:
        await harness.cancel(job.id)
    feed = await harness.events()
    histories = [event for job in jobs for event in await harness.history(job.id)]
    assert feed == sorted(histories, key=lambda event: event.seq)


async def test_the_feed_goes_on_from_any_place(harness: Harness) -> None:
    await harness.submit_many(5)
    feed = await harness.events()
    assert list(await harness.engine.changes(feed[1].seq, 2)) == feed[2:4]
    assert list(await harness.engine.changes(feed[-1].seq, 10)) == []


async def test_workers_are_known_by_their_last_heartbeat(harness: Harness) -> None:
    await harness.engine.extend(harness.worker("b", "print", "fold"), [], 60)
    await harness.engine.extend(harness.worker("a"), [], 60)
    first = await harness.engine.workers()
    assert [(worker.id, worker.needs) for worker in first] == [("a", ("work",)), ("b", ("print", "fold"))]
    await harness.advance(15)
    await harness.engine.extend(harness.worker("a"), [], 60)
    seen = {worker.id: worker.seen_at for worker in await harness.engine.workers()}
    assert seen["a"] is not None and seen["b"] is not None and seen["a"] > seen["b"]


async def test_a_document_that_does_not_exist_has_revision_nothing(harness: Harness) -> None:
    assert await harness.engine.document("notes") == Document("notes", 0, None)


async def test_a_document_is_replaced_when_nobody_else_did_first(harness: Harness) -> None:
    one = await harness.engine.document("notes", Document("notes", 0, {"a": 1}))
    assert one == Document("notes", 1, {"a": 1}) == await harness.engine.document("notes")
    two = await harness.engine.document("notes", Document("notes", 1, {"a": 2}))
    assert (two.revision, (await harness.engine.document("notes")).body) == (2, {"a": 2})


@pytest.mark.parametrize("revision", [0, 2])
async def test_a_document_is_not_replaced_on_another_revision(harness: Harness, revision: int) -> None:
    await harness.engine.document("notes", Document("notes", 0, "first"))
    with pytest.raises(DocumentConflict) as caught:
        await harness.engine.document("notes", Document("notes", revision, "second"))
    assert (caught.value.name, caught.value.revision) == ("notes", revision)
    assert (await harness.engine.document("notes")).body == "first"


@pytest.mark.parametrize(
    "rules",
    [
        {"activation_timeout_seconds": -1},
        {"units_per_token": 0},
        {"min_start_fee": "much"},
        {"no_such": 1},
        7,
    ],
)
async def test_a_bad_policy_does_not_get_in(harness: Harness, rules: object) -> None:
    with pytest.raises(InvalidInput, match="polic"):
        await harness.engine.document("policies", Document("policies", 0, {"work": rules}))
    assert (await harness.engine.document("policies")).revision == 0
