"""Seed 000, archival: `archive_cancelled_jobs` moves cancelled jobs to the archive in bulk, waits for nobody,
and lets go what waited for them."""

from typing import Final

import psycopg
import pytest

from tests.pgwf.client import Client, Connect


def cancelled(db: Client, *job_ids: str) -> None:
    for job_id in job_ids:
        db.submit(job_id)
        db.cancel(job_id, by="alice", reason="too late")


def test_a_cancelled_job_goes_to_the_archive_with_its_cancel_columns(db: Client) -> None:
    cancelled(db, "a")
    live = db.job("a")

    assert db.archive() == 1

    archived = db.archived("a")
    assert db.rows("SELECT 1 FROM pgwf.jobs") == []
    assert (archived["cancel_requested"], archived["cancel_requested_by"]) == (True, "alice")
    assert archived["cancel_requested_at"] == live["cancel_requested_at"]
    assert archived["cancel_reason"] == "too late"
    assert archived["outcome"] == "CANCELLED"


def test_only_cancelled_jobs_without_a_live_lease_are_archived(db: Client) -> None:
    # Given jobs in every other state, among them one that runs and was asked to stop,
    db.held("running")
    db.held("asked", "other")
    db.cancel("asked")
    db.submit("ready")
    db.submit("pending", p_wait_for=["ready"])
    db.submit_in("1 h", "future")

    # Then there is nothing to archive.
    assert db.archive() == 0
    assert db.value("SELECT count(*) FROM pgwf.jobs") == 5


def test_a_cancelled_job_is_archived_once_its_lease_has_lapsed(db: Client) -> None:
    db.held("a")
    db.cancel("a", by="alice")
    expiry = db.job("a")["lease_expires_at"]
    assert db.archive() == 0

    db.advance(61)

    assert db.archive() == 1
    archived = db.archived("a")
    assert (archived["outcome"], archived["rung"], archived["stopped_at"]) == ("CANCELLED", "lapsed", expiry)


def test_the_answer_is_how_many_were_archived_and_nothing_else(db: Client) -> None:
    cancelled(db, "a", "b", "c")

    assert db.value("SELECT pg_typeof(pgwf.archive_cancelled_jobs('sweeper'))::text") == "integer"
    assert db.value("SELECT count(*) FROM pgwf.jobs_archive") == 3


def test_a_limit_caps_one_call_and_the_next_goes_on(db: Client) -> None:
    cancelled(db, "a", "b", "c")

    assert [db.archive("sweeper", 2) for _ in range(3)] == [2, 1, 0]


def test_the_limit_is_100_when_none_is_given(db: Client) -> None:
    db.rows(
        "SELECT pgwf.cancel_job((pgwf.submit_job('job-' || n, 'producer', 'work')).job_id, 'alice')"
        " FROM generate_series(1, 103) n"
    )

    assert [db.archive(), db.archive()] == [100, 3]


def test_those_cancelled_first_submitted_first_are_archived_first(db: Client) -> None:
    cancelled(db, "a", "b", "c")

    db.archive("sweeper", 1)

    assert db.archived("a")


def test_a_worker_must_say_who_it_is(db: Client) -> None:
    cancelled(db, "a")

    assert db.refusal("archive_cancelled_jobs", None)[:2] == ("22004", "worker_id cannot be NULL")
    assert db.status("a") == "CANCELLED"


def test_rows_in_other_hands_are_skipped_and_not_waited_for(db: Client, connect: Connect) -> None:
    # Given three cancelled jobs, one of them locked by another session,
    cancelled(db, "a", "b", "c")
    other = connect()
    db.rows("SET lock_timeout = '1ms'")
    with other.undone():
        other.rows("SELECT 1 FROM pgwf.jobs WHERE job_id = 'b' FOR UPDATE")

        # When they are archived, then the others are,
        assert db.archive() == 2
        assert db.status("b") == "CANCELLED"

    # and that one the next time.
    assert db.archive() == 1


def test_two_sweeps_at_once_archive_each_job_once(db: Client, connect: Connect) -> None:
    cancelled(db, "a", "b", "c", "d")
    other = connect()
    with db.connection.transaction():
        assert db.archive("one", 2) == 2
        assert other.archive("another") == 2

    assert db.value("SELECT count(*) FROM pgwf.jobs_archive") == 4


def test_a_job_whose_dependent_is_in_other_hands_is_left_for_the_next_time(
    db: Client, connect: Connect
) -> None:
    # Given two cancelled jobs, and a job that waits for one of them and is locked,
    cancelled(db, "a", "b")
    db.submit("dependent", p_wait_for=["a"])
    other = connect()
    db.rows("SET lock_timeout = '1ms'")
    with other.undone():
        other.rows("SELECT 1 FROM pgwf.jobs WHERE job_id = 'dependent' FOR UPDATE")

        # Then only the other one is archived: nobody is let go by halves,
        assert db.archive() == 1
        assert db.status("a") == "CANCELLED"

    # and the rest follows.
    assert db.archive() == 1
    assert db.status("dependent") == "READY"


def test_what_waited_for_cancelled_jobs_is_let_go(db: Client) -> None:
    # Given a job that waits for two that are cancelled, and one that waits for another job, too,
    cancelled(db, "a", "b")
    db.submit("other")
    db.submit("free", p_wait_for=["a", "b"])
    db.submit("less", p_wait_for=["other", "a"])

    # Then they wait until the archival,
    assert (db.status("free"), db.status("less")) == ("PENDING_JOBS", "PENDING_JOBS")

    # and for what is left after it.
    db.archive()
    assert (db.status("free"), db.status("less")) == ("READY", "PENDING_JOBS")
    assert db.job("less")["wait_for"] == ["other"]


def test_a_dependent_that_asked_for_it_is_cancelled_and_archived_in_the_same_call(db: Client) -> None:
    # Given a chain of jobs, each to be cancelled with the one before it,
    cancelled(db, "a")
    for before, job_id in [("a", "b"), ("b", "c"), ("c", "d")]:
        db.submit(job_id, p_wait_for=[before], p_on_dependency_cancelled="cancel")

    # Then one call ends them all, and names the cause.
    assert db.archive() == 4
    assert [db.archived(job_id)["cancel_requested_by"] for job_id in "abcd"] == [
        "alice",
        "job:a",
        "job:b",
        "job:c",
    ]


def test_a_cascade_stops_at_the_limit_and_the_next_call_goes_on(db: Client) -> None:
    cancelled(db, "a")
    for before, job_id in [("a", "b"), ("b", "c")]:
        db.submit(job_id, p_wait_for=[before], p_on_dependency_cancelled="cancel")

    assert [db.archive("sweeper", 2), db.archive("sweeper", 2)] == [2, 1]


def test_a_reservation_is_settled_whoever_archives(db: Client) -> None:
    db.call("credit", "owner", 100, "operator")
    db.submit("a", p_owner="owner", p_estimate=40)
    db.cancel("a")

    db.archive()

    assert db.call("account", "owner") == [{"available": 100, "reserved": 0}]
    assert (db.archived("a")["billing"], db.archived("a")["committed"]) == ("RELEASED", 0)


def test_the_singleton_key_of_an_archived_job_passes_on(db: Client) -> None:
    db.held("a", p_singleton_key="key")
    db.submit("b", p_singleton_key="key")
    db.cancel("a")
    db.advance(61)

    db.archive()

    assert db.claims() == ["b"]


# In bulk

COUNTING: Final = """
CREATE TEMPORARY TABLE statements (what text);
CREATE FUNCTION pg_temp.count_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO statements VALUES (TG_OP || ' ' || TG_TABLE_NAME);
    RETURN NULL;
END $$;
CREATE TRIGGER counting AFTER DELETE OR UPDATE ON pgwf.jobs EXECUTE FUNCTION pg_temp.count_statement();
CREATE TRIGGER counting AFTER INSERT ON pgwf.jobs_archive EXECUTE FUNCTION pg_temp.count_statement();
CREATE TRIGGER counting AFTER INSERT ON pgwf.jobs_trace EXECUTE FUNCTION pg_temp.count_statement();
"""


@pytest.mark.parametrize("number", [1, 30])
def test_the_number_of_statements_does_not_follow_the_number_of_jobs(db: Client, number: int) -> None:
    # Given so many cancelled jobs, and as many that wait for them,
    job_ids = [f"job-{n}" for n in range(number)]
    cancelled(db, *job_ids)
    for job_id in job_ids:
        db.submit(f"after-{job_id}", p_wait_for=[job_id])

    # When they are archived while somebody counts statements,
    with db.undone():
        db.rows(COUNTING)
        assert db.archive() == number
        counted = db.rows("SELECT what, count(*) FROM statements GROUP BY 1 ORDER BY 1")

    # Then there is one insert, one delete and one update for all of them; and for the trace one for the jobs
    # archived, one for those let go and one for the run.
    assert {row["what"]: row["count"] for row in counted} == {
        "DELETE jobs": 1,
        "INSERT jobs_archive": 1,
        "INSERT jobs_trace": 3,
        "UPDATE jobs": 1,
    }


# Trace


def test_each_archived_job_is_traced_with_the_worker(db: Client) -> None:
    cancelled(db, "a", "b")

    db.archive("sweeper-1")

    traced = db.trace("job_cancel_archived")
    assert [(row["job_id"], row["worker_id"]) for row in traced] == [("a", "sweeper-1"), ("b", "sweeper-1")]
    assert all(row["input_data"]["worker_id"] == "sweeper-1" for row in traced)
    assert all(row["output_data"]["outcome"] == "CANCELLED" for row in traced)


def test_a_run_is_traced_with_its_count_its_limit_its_worker_and_its_duration(db: Client) -> None:
    cancelled(db, "a", "b")

    db.archive("sweeper-1", 7)

    (run,) = db.trace("job_cancel_archived_run")
    assert (run["job_id"], run["worker_id"]) == (None, "sweeper-1")
    duration = run["output_data"].pop("duration_ms")
    assert run["output_data"] == {"count": 2, "limit": 7, "worker_id": "sweeper-1"}
    assert 0 < duration < 60_000


def test_a_run_that_archived_nothing_is_not_traced(db: Client) -> None:
    db.submit("a")

    assert db.archive() == 0

    assert db.trace("job_cancel_archived_run") == []


def test_a_cancel_and_its_archival_leave_two_lines_with_the_workers_who_did_it(db: Client) -> None:
    cancelled(db, "a")
    db.archive("sweeper-1")

    lines = [(row["event_type"], row["worker_id"]) for row in db.trace(job_id="a")]

    assert lines == [
        ("job_submitted", "producer"),
        ("job_cancel_requested", "alice"),
        ("job_cancel_archived", "sweeper-1"),
    ]


# Idempotent


def test_archiving_again_finds_nothing(db: Client) -> None:
    cancelled(db, "a")

    assert [db.archive(), db.archive()] == [1, 0]


def test_a_refusal_archives_nothing(db: Client) -> None:
    cancelled(db, "a")

    with pytest.raises(psycopg.errors.InvalidParameterValue, match="limit must be positive"):
        db.archive("sweeper", 0)

    assert db.status("a") == "CANCELLED"
