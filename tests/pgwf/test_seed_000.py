"""Seed 000, cancelling: the columns, the statuses, `cancel_job`, and what is refused afterwards. Its archival
is next door, its trace and notifications are in test_trace.py and test_notify.py."""

from typing import Final

import pytest
from psycopg.types.json import Json

from tests.pgwf.client import Client, Connect, Refusal

HOUR: Final = 3600

# The schema


@pytest.mark.parametrize("table", ["jobs", "jobs_archive"])
def test_both_tables_say_whether_by_whom_and_when_a_cancel_was_requested(db: Client, table: str) -> None:
    columns = db.rows(
        "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_schema = 'pgwf' AND table_name = %s AND starts_with(column_name, 'cancel_requested')"
        " ORDER BY 1",
        table,
    )

    assert [tuple(column.values()) for column in columns] == [
        ("cancel_requested", "boolean", "NO", "false"),
        ("cancel_requested_at", "timestamp with time zone", "YES", None),
        ("cancel_requested_by", "text", "YES", None),
    ]


def test_the_view_of_statuses_shows_when_a_cancel_was_requested(db: Client) -> None:
    db.submit("a")
    db.cancel("a")

    shown = db.row("SELECT status, cancel_requested_at FROM pgwf.jobs_with_status")

    assert shown == {"status": "CANCELLED", "cancel_requested_at": db.job("a")["cancel_requested_at"]}


# Statuses


def waiting_jobs(db: Client) -> dict[str, str]:
    """A job of each status that no worker has to do with, by that status."""
    db.submit("first")
    db.submit("pending", p_wait_for=["first"])
    db.submit_in("1 h", "future")
    return {"READY": "first", "PENDING_JOBS": "pending", "AWAITING_FUTURE": "future"}


@pytest.mark.parametrize("status", ["READY", "PENDING_JOBS", "AWAITING_FUTURE"])
def test_cancelled_comes_before_every_status_of_a_waiting_job(db: Client, status: str) -> None:
    job_id = waiting_jobs(db)[status]
    assert db.status(job_id) == status

    db.cancel(job_id)

    assert db.status(job_id) == "CANCELLED"


def test_a_leased_job_stays_active_until_its_lease_expires_and_is_cancelled_then(db: Client) -> None:
    # Given a job that a worker holds, and whose cancel is requested,
    db.held("a")
    db.cancel("a")

    # Then it is active as long as the lease lives,
    assert db.status("a") == "ACTIVE"

    # and cancelled when that has ended, without anybody writing it down.
    db.advance(61)
    assert db.status("a") == "CANCELLED"


def test_the_friendly_view_says_who_cancelled_and_when(db: Client) -> None:
    db.submit("a")
    before = db.friendly("a")
    db.cancel("a", by="alice")

    after = db.friendly("a")

    assert (before["status"], before["cancelled_at"], before["cancelled_by"]) == ("READY", None, None)
    assert (after["status"], after["cancelled_by"]) == ("CANCELLED", "alice")
    assert after["cancelled_at"] == db.job("a")["cancel_requested_at"]


def test_the_friendly_view_of_a_lapsed_cancelled_job_dates_it_by_the_end_of_its_lease(db: Client) -> None:
    db.held("a")
    db.cancel("a", by="alice")
    expiry = db.job("a")["lease_expires_at"]
    db.advance(61)

    assert db.friendly("a")["cancelled_at"] == expiry


def test_the_friendly_view_has_what_dashboards_showed_before(db: Client) -> None:
    # Given a job that runs, one that waits for it, and one whose time has not come,
    lease = db.held("running")
    db.submit("pending", p_wait_for=["running"])
    db.submit_in("1 h", "future")

    # Then each shows what keeps it, and when it was made.
    running, pending, future = (db.friendly(job_id) for job_id in ("running", "pending", "future"))
    assert running["worker_id"] == lease
    assert pending["pending_jobs"] == ["running"]
    assert future["sleep_until"] == db.job("future")["available_at"]
    assert (pending["worker_id"], running["pending_jobs"], running["sleep_until"]) == (None, None, None)
    assert future["creation_dt"] == db.job("future")["created_at"]


# cancel_job


def test_a_cancel_marks_the_row_and_answers_with_it(db: Client) -> None:
    db.submit("a")

    answer = db.cancel("a", by="alice", reason="too late")

    assert answer == db.job("a")
    assert (answer["cancel_requested"], answer["cancel_requested_by"]) == (True, "alice")
    assert answer["cancel_requested_at"] is not None
    assert answer["cancel_reason"] == "too late"


def test_a_reason_may_be_left_out(db: Client) -> None:
    db.submit("a")

    assert db.cancel("a")["cancel_reason"] is None


@pytest.mark.parametrize("running", [False, True])
def test_a_second_cancel_changes_nothing_and_answers_with_the_first_requester(
    db: Client, running: bool
) -> None:
    db.submit("a")
    if running:
        db.claim()
    first = db.cancel("a", by="alice", reason="first")

    second = db.cancel("a", by="bob", reason="second")

    assert second == first == db.job("a")


def test_a_cancel_by_force_keeps_the_first_requester_too(db: Client) -> None:
    db.held("a")
    first = db.cancel("a", by="alice", reason="first")

    forced = db.cancel("a", by="bob", reason="second", p_force=True)

    request = ("cancel_requested_by", "cancel_requested_at", "cancel_reason")
    assert [forced[fact] for fact in request] == [first[fact] for fact in request]
    assert (forced["lease_id"], db.status("a")) == (None, "CANCELLED")


@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_an_archived_job_cannot_be_cancelled(db: Client, end: str) -> None:
    if end == "completed":
        db.completed("a")
    else:
        db.submit("a")
        db.cancel("a")
        db.archive()

    refusal = db.refusal("cancel_job", "a", "alice")

    assert refusal[:2] == ("PW006", "job_id a has already completed and cannot be cancelled")


def test_what_does_not_exist_cannot_be_cancelled(db: Client) -> None:
    assert db.refusal("cancel_job", "a", "alice")[:2] == ("PW001", "job a does not exist")


def test_a_cancel_waits_for_whoever_has_locked_the_row(db: Client, connect: Connect) -> None:
    # Given a row that another session is about to change,
    db.submit("a")
    other = connect()
    with other.undone():
        other.rows("SELECT 1 FROM pgwf.jobs WHERE job_id = 'a' FOR UPDATE")

        # When it is cancelled, then the cancel waits rather than decide by what it saw before,
        db.rows("SET lock_timeout = '30ms'")
        assert db.refusal("cancel_job", "a", "alice").code == "55P03"

    # and goes on as soon as the row is free.
    assert db.cancel("a")["cancel_requested"]


def test_a_cancel_does_not_take_the_lease_from_a_worker(db: Client) -> None:
    db.held("a")
    before = db.job("a")

    after = db.cancel("a")

    lease = ("lease_id", "lease_expires_at", "lease_worker")
    assert [after[fact] for fact in lease] == [before[fact] for fact in lease]


def test_a_worker_may_still_complete_what_it_holds(db: Client) -> None:
    lease = db.held("a")
    db.cancel("a", by="alice")

    assert db.answer("complete_job", "a", lease, "worker") is True

    archived = db.archived("a")
    assert archived["outcome"] == "COMPLETED"
    assert (archived["cancel_requested"], archived["cancel_requested_by"]) == (True, "alice")


def test_a_cancel_keeps_what_the_job_waited_for_and_its_singleton_key(db: Client) -> None:
    db.submit("first")
    db.submit("a", p_wait_for=["first"], p_singleton_key="key")

    cancelled = db.cancel("a")

    assert (cancelled["wait_for"], cancelled["singleton_key"]) == (["first"], "key")


def test_a_running_job_keeps_its_singleton_key_through_a_cancel(db: Client) -> None:
    # Given two jobs of one key, one of them running and asked to stop,
    lease = db.held("a", p_singleton_key="key")
    db.submit("b", p_singleton_key="key")
    db.cancel("a")

    # Then the other has to wait for its end,
    assert db.claims() == []

    # and gets the key from it.
    db.answer("acknowledge_cancel", "a", lease, "worker")
    assert db.claims() == ["b"]


# Never again


@pytest.mark.parametrize("status", ["READY", "PENDING_JOBS", "AWAITING_FUTURE"])
def test_a_cancelled_job_is_never_handed_out(db: Client, status: str) -> None:
    # Given a waiting job that was cancelled,
    job_id = waiting_jobs(db)[status]
    db.cancel(job_id)

    # When everything that kept it from running is gone,
    db.advance(HOUR)
    if status != "READY":
        assert db.answer("complete_unheld_job", "first", "worker")

    # Then no claim brings it, though it brings the others; not after a sweep, either.
    assert job_id not in db.claims()
    db.call("sweep", "sweeper")
    assert job_id not in db.claims()


def test_a_cancelled_job_whose_worker_fell_silent_is_never_handed_out(db: Client) -> None:
    db.held("a")
    db.cancel("a")
    db.advance(61)

    assert db.claims() == []
    db.call("sweep", "sweeper")
    assert db.claims() == []
    assert db.archived("a")["outcome"] == "CANCELLED"


@pytest.mark.parametrize(
    ("verb", "said"), [("fail_job", ["broken", 0.0]), ("release_job", []), ("acknowledge_cancel", [])]
)
def test_a_cancelled_job_that_its_worker_gives_up_is_cancelled(
    db: Client, verb: str, said: list[object]
) -> None:
    lease = db.held("a")
    db.cancel("a")

    assert db.answer(verb, "a", lease, "worker", *said) == "CANCELLED"

    assert db.claims() == []


# What is refused from then on, in the seed's words

EXTEND: Final = "job a is cancelled and cannot be extended"
RESCHEDULE: Final = "job a is cancelled and cannot be rescheduled"


def refusals(db: Client, lease: str) -> list[Refusal]:
    return [
        db.refusal("extend_lease", "a", lease, "worker"),
        db.refusal("reschedule_job", "a", lease, "worker", "other"),
        db.refusal("reschedule_unheld_job", "a", "worker", "other"),
    ]


def test_a_cancelled_lease_is_neither_extended_nor_rescheduled(db: Client) -> None:
    lease = db.held("a")
    db.cancel("a")
    before = db.job("a")

    said = refusals(db, lease)

    assert [refusal[:2] for refusal in said] == [
        ("PW004", EXTEND),
        ("PW004", RESCHEDULE),
        ("PW004", RESCHEDULE),
    ]
    assert db.job("a") == before


@pytest.mark.parametrize("complaint", ["another lease", "lapsed lease", "no lease", "future", "archived"])
def test_that_it_is_cancelled_is_said_before_anything_about_leases_or_times(
    db: Client, complaint: str
) -> None:
    lease = "another"
    if complaint in ("another lease", "lapsed lease"):
        held = db.held("a")
        lease = held if complaint == "lapsed lease" else lease
    elif complaint == "future":
        db.submit_in("1 h", "a")
    else:
        db.submit("a")
    db.cancel("a")
    if complaint == "lapsed lease":
        db.advance(61)
    if complaint == "archived":
        db.archive()

    said = refusals(db, lease)

    assert [refusal.message for refusal in said] == [EXTEND, RESCHEDULE, RESCHEDULE]


def test_a_job_that_completed_after_a_cancel_request_is_not_called_cancelled(db: Client) -> None:
    lease = db.held("a")
    db.cancel("a")
    db.answer("complete_job", "a", lease, "worker")

    said = [refusal.message for refusal in refusals(db, lease)]

    assert said == [
        "active lease not found for job a",
        f"job a is not currently leased with lease {lease}",
        "job a is not available to reschedule without a lease",
    ]


def test_a_heartbeat_for_many_brings_the_request_and_does_not_extend(db: Client) -> None:
    lease = db.held("a")
    db.cancel("a", by="alice", reason="too late")
    expiry = db.job("a")["lease_expires_at"]
    report = Json([{"job_id": "a", "lease_id": lease, "worker": "worker"}])

    (answer,) = db.call("extend_jobs", None, report, 60.0)

    assert (answer["refusal"], answer["cancel_requested_by"], answer["cancel_reason"]) == (
        None,
        "alice",
        "too late",
    )
    assert answer["lease_expires_at"] == expiry
    assert answer["delivered_at"] is not None
