"""Whom the schema tells of work and of cancel requests, and of which it keeps silent."""

import json
from typing import Final

import pytest

from tests.pgwf.client import Client, Connect

# Notifications of work

WORK: Final = [("pgwf.need.work", "")]


@pytest.fixture
def ear(db: Client, connect: Connect) -> Client:
    """A session that listens while `db` works."""
    db.answer("set_notify", True)
    ear = connect()
    ear.rows('LISTEN "pgwf.need.work"; LISTEN "pgwf.cancel"')
    return ear


def test_nobody_is_told_while_notifying_is_off(db: Client, ear: Client) -> None:
    db.answer("set_notify", False)

    db.held("a")
    db.cancel("a")

    assert ear.heard() == []


def test_a_new_job_is_announced_to_those_who_serve_its_need(db: Client, ear: Client) -> None:
    db.submit("a")
    db.submit("b", "other")

    assert ear.heard() == WORK


def test_a_new_job_that_cannot_be_claimed_yet_is_not_announced(db: Client, ear: Client) -> None:
    db.submit("first", "other")
    db.submit("a", p_wait_for=["first"])
    db.submit_in("1 h", "b")

    assert ear.heard() == []


def test_a_transaction_announces_each_need_once(db: Client, ear: Client) -> None:
    with db.connection.transaction():
        for n in range(5):
            db.submit(f"job-{n}")
        db.call(
            "submit_jobs", json.dumps([{"id": f"other-{n}", "need": "work"} for n in range(5)]), "producer"
        )
        assert ear.heard() == []

    assert ear.heard() == WORK


def test_nothing_is_announced_by_a_transaction_that_is_taken_back(db: Client, ear: Client) -> None:
    with db.undone():
        db.submit("a")

    assert ear.heard() == []


def test_a_job_is_announced_when_the_last_it_waited_for_ends(db: Client, ear: Client) -> None:
    db.submit("first", "other")
    db.submit("second", "other")
    db.submit("a", p_wait_for=["first", "second"])

    db.answer("complete_unheld_job", "first", "worker")
    assert ear.heard() == []

    db.answer("complete_unheld_job", "second", "worker")
    assert ear.heard() == WORK


def test_a_job_that_waits_for_what_has_ended_is_announced_at_once(db: Client, ear: Client) -> None:
    db.completed("first", "other")

    db.submit("a", p_wait_for=["first"])

    assert ear.heard() == WORK


@pytest.mark.parametrize("verb", ["fail_job", "release_job", "reschedule_job", "lapse"])
def test_a_job_that_comes_back_is_announced(db: Client, ear: Client, verb: str) -> None:
    lease = db.held("a")
    ear.heard()

    match verb:
        case "fail_job":
            db.answer("fail_job", "a", lease, "worker", "broken", 0.0)
        case "release_job":
            db.answer("release_job", "a", lease, "worker")
        case "reschedule_job":
            db.call("reschedule_job", "a", lease, "worker", "work")
        case _:
            db.advance(61)
            db.call("sweep", "sweeper")

    assert ear.heard() == WORK


def test_a_job_whose_time_comes_is_announced_by_the_sweep(db: Client, ear: Client) -> None:
    db.submit_in("1 h", "a")
    db.answer("fail_job", "b", db.held("b"), "worker", "broken", 1800.0)
    ear.heard()

    db.advance(3600)
    assert ear.heard() == []
    db.call("sweep", "sweeper")

    assert ear.heard() == WORK


def test_a_claim_of_another_need_announces_what_came_due(db: Client, ear: Client) -> None:
    db.submit_in("1 h", "a")
    db.advance(3600)

    db.claims("other")

    assert ear.heard() == WORK


def test_the_next_of_a_singleton_key_is_announced_when_the_key_comes_free(db: Client, ear: Client) -> None:
    lease = db.held("first", "other", p_singleton_key="key")
    db.submit("a", p_singleton_key="key")
    assert db.claims() == []
    ear.heard()

    db.answer("complete_job", "first", lease, "worker")

    assert ear.heard() == WORK


# Never for a cancelled job


def test_a_cancelled_job_is_not_announced_when_what_it_waited_for_ends(db: Client, ear: Client) -> None:
    db.submit("first", "other")
    db.submit("a", p_wait_for=["first"])
    db.cancel("a")

    db.answer("complete_unheld_job", "first", "worker")
    db.archive()

    assert ear.heard() == []


def test_a_cancelled_job_is_not_announced_when_its_time_comes(db: Client, ear: Client) -> None:
    db.submit_in("1 h", "a")
    db.cancel("a")

    db.advance(3600)
    db.call("sweep", "sweeper")
    db.claims("other")

    assert ear.heard() == []


@pytest.mark.parametrize("verb", ["fail_job", "release_job", "acknowledge_cancel", "lapse"])
def test_a_cancelled_job_is_not_announced_when_its_worker_gives_it_up(
    db: Client, ear: Client, verb: str
) -> None:
    lease = db.held("a")
    db.cancel("a")
    ear.heard()

    match verb:
        case "fail_job":
            db.answer("fail_job", "a", lease, "worker", "broken", 0.0)
        case "lapse":
            db.advance(61)
            db.call("sweep", "sweeper")
        case _:
            db.answer(verb, "a", lease, "worker")

    assert ear.heard() == []


def test_a_job_cancelled_along_with_what_it_waited_for_is_not_announced(db: Client, ear: Client) -> None:
    db.submit("first", "other")
    db.submit("a", p_wait_for=["first"], p_on_dependency_cancelled="cancel")
    db.cancel("first")

    db.archive()

    assert ear.heard() == []


def test_what_waited_for_a_cancelled_job_is_announced_at_its_archival(db: Client, ear: Client) -> None:
    db.submit("first", "other")
    db.submit("a", p_wait_for=["first"])
    db.cancel("first")
    assert ear.heard() == []

    db.archive()

    assert ear.heard() == WORK


# Notifications of cancel requests


def test_the_worker_of_a_leased_job_is_told_to_stop_it(db: Client, ear: Client) -> None:
    db.held("a")
    ear.heard()

    db.cancel("a")

    assert ear.heard() == [("pgwf.cancel", "a")]


def test_there_is_nobody_to_tell_about_a_job_that_waits(db: Client, ear: Client) -> None:
    db.submit("a")
    ear.heard()

    db.cancel("a")

    assert ear.heard() == []


def test_a_second_cancel_tells_nobody_again(db: Client, ear: Client) -> None:
    db.held("a")
    db.cancel("a")
    ear.heard()

    db.cancel("a")

    assert ear.heard() == []


def test_a_forced_cancel_tells_the_worker_too(db: Client, ear: Client) -> None:
    db.held("a")
    ear.heard()

    db.cancel("a", p_force=True)

    assert ear.heard() == [("pgwf.cancel", "a")]


def test_however_many_are_cancelled_every_id_is_told(db: Client, ear: Client) -> None:
    """Though a notification holds no more than 8,000 bytes."""
    ids = [f"{'x' * 500} {n:03}" for n in range(100)]
    jobs = [{"id": job_id, "need": "work"} for job_id in ids]
    db.call("submit_jobs", json.dumps(jobs), "producer")
    assert len(db.claims()) == 100
    ear.heard()

    db.call("cancel_jobs", "alice", ids)

    heard = ear.heard()
    assert {channel for channel, _ in heard} == {"pgwf.cancel"}
    assert sorted(job_id for _, payload in heard for job_id in payload.split("\n")) == ids


# A claim that finds nothing


def channels(db: Client) -> set[str]:
    return {row["channel"] for row in db.rows("SELECT pg_listening_channels() AS channel")}


def test_a_claim_that_finds_nothing_listens_for_its_needs(db: Client, connect: Connect) -> None:
    db.answer("set_notify", True)

    assert db.call("get_work", "worker", ["work", "Other need"]) == []

    assert channels(db) == {"pgwf.need.work", "pgwf.need.Other need"}
    connect().submit("a", "Other need")
    assert db.heard() == [("pgwf.need.Other need", "")]


def test_a_claim_that_finds_something_does_not_listen(db: Client) -> None:
    db.answer("set_notify", True)
    db.submit("a")

    assert len(db.call("get_work", "worker", ["work"])) == 1

    assert channels(db) == set()


def test_a_claim_does_not_listen_when_told_not_to(db: Client) -> None:
    db.answer("set_notify", True)

    db.call("get_work", "worker", ["work"], p_listen=False)

    assert channels(db) == set()


def test_a_claim_does_not_listen_while_nobody_is_notified(db: Client) -> None:
    db.call("get_work", "worker", ["work"])

    assert channels(db) == set()
