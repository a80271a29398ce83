"""Seed 001: `complete_unheld_job` and `reschedule_unheld_job`, for jobs that no worker holds."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tests.pgwf.client import Client
from tests.pgwf.states import in_state

NOT_TO_COMPLETE: Final = "job a is not available to complete without a lease"
NOT_TO_RESCHEDULE: Final = "job a is not available to reschedule without a lease"


# complete_unheld_job


@pytest.mark.parametrize("state", ["READY", "PENDING_JOBS", "lapsed"])
def test_a_job_that_nobody_holds_is_completed(db: Client, state: str) -> None:
    in_state(db, state)

    assert db.answer("complete_unheld_job", "a", "worker-9") is True

    archived = db.archived("a")
    assert (archived["outcome"], archived["cancel_requested"]) == ("COMPLETED", False)
    assert db.rows("SELECT 1 FROM pgwf.jobs WHERE job_id = 'a'") == []


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("ACTIVE", "PW005"),
        ("CANCELLING", "PW005"),
        ("AWAITING_FUTURE", "PW005"),
        ("COMPLETED", "PW005"),
        ("FAILED", "PW005"),
        ("CANCELLED", "PW004"),
        ("unknown", "PW001"),
    ],
)
def test_a_job_in_any_other_state_is_not_completed(db: Client, state: str, code: str) -> None:
    in_state(db, state)
    before = db.contents()

    assert db.refusal("complete_unheld_job", "a", "worker-9")[:2] == (code, NOT_TO_COMPLETE)

    assert db.contents() == before


def test_the_completion_is_traced_with_the_worker_and_without_a_lease(db: Client) -> None:
    db.submit("a")
    db.answer("complete_unheld_job", "a", "worker-9")

    (line,) = db.trace("job_finished")

    assert (line["job_id"], line["worker_id"]) == ("a", "worker-9")
    assert line["input_data"] == {"worker_id": "worker-9", "completed_without_lease": True}


def test_the_completion_under_a_lease_is_traced_with_worker_and_lease(db: Client) -> None:
    lease = db.held("a")
    db.answer("complete_job", "a", lease, "worker-9")

    (line,) = db.trace("job_finished")

    assert line["input_data"] == {"worker_id": "worker-9", "lease_id": lease}


def test_what_waited_for_the_job_is_let_go_and_announced(db: Client) -> None:
    db.answer("set_notify", True)
    db.submit("a")
    db.submit("dependent", "next", p_wait_for=["a"])
    db.rows('LISTEN "pgwf.need.next"')

    db.answer("complete_unheld_job", "a", "worker-9")

    assert db.status("dependent") == "READY"
    assert db.heard() == [("pgwf.need.next", "")]


def test_the_worker_whose_lease_expired_has_lost_it(db: Client) -> None:
    lease = db.held("a")
    db.advance(61)

    db.answer("complete_unheld_job", "a", "worker-9")

    assert db.refusal("complete_job", "a", lease, "worker").code == "PW003"
    assert len(db.trace("job_finished")) == 1


def test_the_singleton_key_of_a_job_completed_without_a_lease_passes_on(db: Client) -> None:
    db.held("a", p_singleton_key="key")
    db.submit("b", p_singleton_key="key")
    db.advance(61)

    db.answer("complete_unheld_job", "a", "worker-9")

    assert db.claims() == ["b"]


def test_an_output_may_be_given(db: Client) -> None:
    db.submit("a")

    db.answer("complete_unheld_job", "a", "worker-9", '{"by": "hand"}')

    assert db.archived("a")["output"] == {"by": "hand"}


# reschedule_unheld_job


@pytest.mark.parametrize("state", ["READY", "PENDING_JOBS", "lapsed"])
def test_a_job_that_nobody_holds_is_rescheduled(db: Client, state: str) -> None:
    in_state(db, state)
    db.submit("before", "other")

    (answer,) = db.call(
        "reschedule_unheld_job", "a", "worker-9", "next", ["before", "before"], "key", "2000-01-01Z"
    )

    job = db.job("a")
    assert answer == {
        "job_id": "a",
        "next_need": "next",
        "wait_for": ["before"],
        "available_at": datetime(2000, 1, 1, tzinfo=UTC),
    }
    assert {name: job[name] for name in answer} == answer
    assert job["singleton_key"] == "key"
    assert (job["lease_id"], job["lease_expires_at"]) == (None, "-infinity")


def test_what_is_left_out_is_cleared_and_the_time_is_now(db: Client) -> None:
    db.submit("first", "other")
    db.submit("a", p_wait_for=["first"], p_singleton_key="key")

    (answer,) = db.call("reschedule_unheld_job", "a", "worker-9", "next")

    assert (answer["wait_for"], db.job("a")["singleton_key"]) == ([], None)
    assert abs(answer["available_at"] - datetime.now(UTC)) < timedelta(seconds=30)
    assert db.status("a") == "READY"


def test_a_time_that_is_null_is_now(db: Client) -> None:
    db.submit("a")

    (answer,) = db.call("reschedule_unheld_job", "a", "worker-9", "next", p_available_at=None)

    assert abs(answer["available_at"] - datetime.now(UTC)) < timedelta(seconds=30)


@pytest.mark.parametrize(
    ("state", "code", "message"),
    [
        ("ACTIVE", "PW005", NOT_TO_RESCHEDULE),
        ("AWAITING_FUTURE", "PW005", NOT_TO_RESCHEDULE),
        ("COMPLETED", "PW005", NOT_TO_RESCHEDULE),
        ("FAILED", "PW005", NOT_TO_RESCHEDULE),
        ("unknown", "PW001", NOT_TO_RESCHEDULE),
        ("CANCELLED", "PW004", "job a is cancelled and cannot be rescheduled"),
        ("CANCELLING", "PW004", "job a is cancelled and cannot be rescheduled"),
    ],
)
def test_a_job_in_any_other_state_is_not_rescheduled(db: Client, state: str, code: str, message: str) -> None:
    in_state(db, state)
    before = db.contents()

    assert db.refusal("reschedule_unheld_job", "a", "worker-9", "next")[:2] == (code, message)

    assert db.contents() == before


def test_a_rescheduled_job_is_done_by_those_who_serve_its_new_need(db: Client) -> None:
    db.submit("a")

    db.call("reschedule_unheld_job", "a", "worker-9", "next")

    assert (db.claims("work"), db.claims("next")) == ([], ["a"])


def test_the_rescheduling_is_announced_and_traced_without_a_lease(db: Client) -> None:
    db.answer("set_notify", True)
    db.held("a")
    db.advance(61)
    db.rows('LISTEN "pgwf.need.next"')

    db.call("reschedule_unheld_job", "a", "worker-9", "next")

    (line,) = db.trace("reschedule_job")
    assert (line["job_id"], line["worker_id"]) == ("a", "worker-9")
    assert "lease_id" not in line["input_data"]
    assert db.heard() == [("pgwf.need.next", "")]


def test_a_job_rescheduled_into_the_future_waits_for_it(db: Client) -> None:
    db.submit("a")

    db.rows(
        "SELECT pgwf.reschedule_unheld_job('a', 'worker-9', 'next', p_available_at => pgwf._now() + '1 h')"
    )

    assert (db.status("a"), db.claims("next")) == ("AWAITING_FUTURE", [])
    db.advance(3601)
    assert db.claims("next") == ["a"]
