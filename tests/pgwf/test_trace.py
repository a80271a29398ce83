"""What the schema writes down about its moves."""

from datetime import UTC, datetime
from typing import Final

import pytest

from tests.pgwf.client import Client, Connect

# Each event and its fields


def line(db: Client, event_type: str, job_id: str = "a") -> dict[str, object]:
    """The one line of this kind about the job."""
    (row,) = db.trace(event_type, job_id)
    return row


def moment(text: object) -> datetime:
    """A time as JSON has it."""
    return datetime.fromisoformat(str(text)).astimezone(UTC)


def test_a_submit_is_traced_with_what_was_asked_for(db: Client) -> None:
    db.submit("first")
    db.submit("a", "next", p_wait_for=["first"], p_singleton_key="key", p_priority=7, p_owner="owner")

    submitted = line(db, "job_submitted")

    assert (submitted["worker_id"], submitted["state"]) == ("producer", "PENDING_JOBS")
    facts = submitted["output_data"]
    assert isinstance(facts, dict)
    assert moment(facts.pop("available_at")) == db.job("a")["available_at"]
    assert facts == {
        "next_need": "next",
        "wait_for": ["first"],
        "singleton_key": "key",
        "priority": 7,
        "owner": "owner",
        "on_dependency_cancelled": "release",
        "on_dependency_failed": "release",
    }


def test_a_claim_is_traced_with_its_lease(db: Client) -> None:
    lease = db.held("a")

    retrieved = line(db, "job_retrieved")

    assert (retrieved["worker_id"], retrieved["state"]) == ("worker", "ACTIVE")
    facts = retrieved["output_data"]
    assert isinstance(facts, dict)
    assert (facts["lease_id"], facts["attempt"]) == (lease, 1)
    assert moment(facts["lease_expires_at"]) == db.job("a")["lease_expires_at"]


def test_an_extension_is_traced_with_the_new_expiry(db: Client) -> None:
    lease = db.held("a")
    expiry = db.answer("extend_lease", "a", lease, "worker", 600)

    extended = line(db, "lease_extended")

    assert extended["worker_id"] == "worker"
    facts = extended["output_data"]
    assert isinstance(facts, dict)
    assert moment(facts["lease_expires_at"]) == expiry


def test_a_reschedule_is_traced_with_its_lease_what_was_asked_and_what_became_of_it(db: Client) -> None:
    lease = db.held("a")
    db.call("reschedule_job", "a", lease, "worker", "next", p_singleton_key="key")

    rescheduled = line(db, "reschedule_job")

    asked, done = rescheduled["input_data"], rescheduled["output_data"]
    assert isinstance(asked, dict) and isinstance(done, dict)
    assert (asked["lease_id"], asked["worker_id"], asked["next_need"]) == (lease, "worker", "next")
    assert (done["next_need"], done["singleton_key"], done["wait_for"]) == ("next", "key", [])
    assert rescheduled["state"] == "READY"


def test_a_completion_is_traced_with_its_worker(db: Client) -> None:
    lease = db.held("a")
    db.answer("complete_job", "a", lease, "worker-9")

    finished = line(db, "job_finished")

    assert (finished["worker_id"], finished["state"]) == ("worker-9", "COMPLETED")
    assert finished["input_data"] == {"lease_id": lease, "worker_id": "worker-9"}


@pytest.mark.parametrize(("retry", "state"), [(None, "FAILED"), (60.0, "AWAITING_FUTURE")])
def test_a_failure_is_traced_with_its_words(db: Client, retry: float | None, state: str) -> None:
    lease = db.held("a")
    db.answer("fail_job", "a", lease, "worker", "broken", retry)

    failed = line(db, "job_failed")

    assert (failed["worker_id"], failed["state"], failed["reason"]) == ("worker", state, "broken")
    facts = failed["output_data"]
    assert isinstance(facts, dict)
    assert (facts["failures"], facts["last_error"]) == (1, "broken")


@pytest.mark.parametrize("active", [True, False])
def test_a_cancel_request_is_traced_with_its_reason_and_whether_the_job_was_active(
    db: Client, active: bool
) -> None:
    if active:
        db.held("a")
    else:
        db.submit("a")
    db.cancel("a", by="alice", reason="too late")

    requested = line(db, "job_cancel_requested")

    assert (requested["worker_id"], requested["reason"]) == ("alice", "too late")
    asked = requested["input_data"]
    assert isinstance(asked, dict)
    assert (asked["reason"], asked["was_active"], asked["already_cancelled"]) == ("too late", active, False)


def test_a_cancel_of_what_is_cancelled_is_traced_as_such(db: Client) -> None:
    db.submit("a")
    db.cancel("a", by="alice")
    db.cancel("a", by="bob", reason="me too")

    _, again = db.trace("job_cancel_requested", "a")

    assert (again["worker_id"], again["reason"]) == ("bob", "me too")
    assert again["input_data"]["already_cancelled"] is True


def test_a_refused_cancel_leaves_no_trace(db: Client) -> None:
    db.completed("a")
    before = db.trace()

    db.refusal("cancel_job", "a", "alice")

    assert db.trace() == before


def test_the_other_moves_are_traced_too(db: Client) -> None:
    # Given a job that fails, is released, whose lease lapses and that is done in the end,
    db.submit("a")
    db.submit("dependent", "other", p_wait_for=["a"])
    db.answer("fail_job", "a", db.claim()["lease_id"], "worker", "broken", 0.0)
    db.answer("release_job", "a", db.claim()["lease_id"], "worker", "shutdown")
    db.claim()
    db.advance(61)
    db.answer("complete_job", "a", db.claim()["lease_id"], "worker")

    # Then its lines tell of it in order,
    assert db.events("a") == [
        "job_submitted",
        "job_retrieved",
        "job_failed",
        "job_retrieved",
        "job_released",
        "job_retrieved",
        "lease_lapsed",
        "job_retrieved",
        "job_finished",
    ]
    # and those of what waited for it, who let it go.
    assert line(db, "job_unblocked", "dependent")["worker_id"] == "job:a"


def test_the_time_of_a_line_is_that_of_the_schema(db: Client) -> None:
    db.advance(86_400)
    db.submit("a")

    assert line(db, "job_submitted")["event_at"] == db.job("a")["created_at"]


# On and off


def test_tracing_is_on_and_notifying_off_until_somebody_says_otherwise(db: Client) -> None:
    assert (db.answer("is_trace_enabled"), db.answer("is_notify_enabled")) == (True, False)


@pytest.mark.parametrize("setting", ["trace", "notify"])
def test_a_setting_is_for_all_sessions_and_outlasts_them(db: Client, connect: Connect, setting: str) -> None:
    other = connect()
    for enabled in (True, False):
        db.answer(f"set_{setting}", enabled)

        assert other.answer(f"is_{setting}_enabled") is enabled


def lived_through(db: Client) -> None:
    """Every kind of move, on several jobs."""
    lease = db.held("done", p_singleton_key="key")
    db.submit("dependent", "other", p_wait_for=["done"])
    db.answer("extend_lease", "done", lease, "worker", 600)
    db.call("reschedule_job", "done", lease, "worker", "work")
    db.answer("fail_job", "done", db.claim()["lease_id"], "worker", "broken", 0.0)
    db.answer("release_job", "done", db.claim()["lease_id"], "worker")
    db.answer("complete_job", "done", db.claim()["lease_id"], "worker", '"output"')
    db.answer("fail_job", "failed", db.held("failed"), "worker", "broken")
    db.held("stopped")
    db.cancel("stopped", by="alice", reason="too late")
    db.cancel("stopped", by="bob")
    db.submit("cancelled")
    db.cancel("cancelled", by="alice")
    db.archive()
    db.advance(61)
    db.call("sweep", "sweeper")


def test_with_tracing_off_nothing_is_written_down(db: Client) -> None:
    db.answer("set_trace", False)

    lived_through(db)

    assert db.trace() == []


HISTORIES: Final = {
    "done": ["job_submitted", "job_retrieved", "job_finished"],
    "failed": ["job_submitted", "job_retrieved", "job_failed"],
    "stopped": ["job_submitted", "job_retrieved", "job_cancel_requested", "job_cancel_archived"],
    "cancelled": ["job_submitted", "job_cancel_requested", "job_cancel_archived"],
    "dependent": ["job_submitted"],
}


@pytest.mark.parametrize("job_id", HISTORIES)
def test_with_tracing_off_the_history_is_told_from_the_columns_and_marked(db: Client, job_id: str) -> None:
    db.answer("set_trace", False)
    lived_through(db)

    history = db.call("job_history", job_id)

    assert [event["event_type"] for event in history] == HISTORIES[job_id]
    assert all(event["partial"] for event in history)
    assert all(event["worker_id"] for event in history)


def test_what_the_columns_know_of_a_cancel_is_in_its_history(db: Client) -> None:
    db.answer("set_trace", False)
    lived_through(db)

    requested = next(
        event for event in db.call("job_history", "stopped") if event["event_type"] == "job_cancel_requested"
    )

    assert (requested["worker_id"], requested["reason"]) == ("alice", "too late")
    assert requested["event_at"] == db.archived("stopped")["cancel_requested_at"]


def test_a_history_that_was_traced_is_whole(db: Client) -> None:
    lived_through(db)

    history = db.call("job_history", "done")

    assert [event["event_type"] for event in history] == db.events("done")
    assert not any(event["partial"] for event in history)


def test_a_history_traced_in_part_is_filled_up(db: Client) -> None:
    db.submit("a")
    db.answer("set_trace", False)
    lease = db.claim()["lease_id"]
    db.answer("set_trace", True)
    db.answer("complete_job", "a", lease, "worker")

    history = db.call("job_history", "a")

    assert [(event["event_type"], event["partial"]) for event in history] == [
        ("job_submitted", False),
        ("job_retrieved", True),
        ("job_finished", False),
    ]
