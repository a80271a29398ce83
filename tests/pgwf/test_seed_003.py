"""Seed 003: the shared helpers, each doing what the seed says it is for, and who uses them."""

import re
from typing import Final

import pytest

from rescind.engines.postgres.script import script
from tests.pgwf.client import Client, Connect
from tests.pgwf.test_signatures import SIGNATURES


def body_of(db: Client, function: str) -> str:
    return str(db.value("SELECT pg_get_functiondef(%s::regproc)", f"pgwf.{function}"))


def test_what_is_not_public_begins_with_an_underscore(db: Client) -> None:
    """And the other way round, but for two that views call with the rights of who looks at them."""
    granted = {
        row["name"]
        for row in db.rows(
            "SELECT proname AS name FROM pg_proc WHERE pronamespace = 'pgwf'::regnamespace"
            " AND EXISTS (SELECT 1 FROM pg_roles WHERE rolname IN"
            " ('pgwf_producer', 'pgwf_worker', 'pgwf_operator', 'pgwf_observer')"
            " AND has_function_privilege(pg_roles.oid, pg_proc.oid, 'EXECUTE'))"
        )
    }
    names = {
        row["name"]
        for row in db.rows("SELECT proname AS name FROM pg_proc WHERE pronamespace = 'pgwf'::regnamespace")
    }

    assert {name for name in names if not name.startswith("_")} == granted - {"_now", "_state_of"}


# Who uses which

CALLERS: Final = {
    "_complete_locked_job": ["complete_job", "complete_unheld_job"],
    "_reschedule_locked_job": ["reschedule_job", "reschedule_unheld_job"],
    "_lock_job_for_status": ["complete_unheld_job", "reschedule_unheld_job", "_validate_active_lease"],
    "_validate_active_lease": ["complete_job", "extend_lease", "reschedule_job"],
    "_emit_trace_event": ["cancel_job", "archive_cancelled_jobs", "_reschedule_locked_job"],
}


@pytest.mark.parametrize(
    ("helper", "caller"), [(helper, caller) for helper, callers in CALLERS.items() for caller in callers]
)
def test_leased_and_unheld_variants_share_the_helper(db: Client, helper: str, caller: str) -> None:
    assert f"pgwf.{helper}(" in body_of(db, caller)


def test_every_helper_of_the_seed_is_there() -> None:
    assert set(CALLERS) <= set(SIGNATURES)


# _lock_job_for_status

LOCK: Final = "SELECT (pgwf._lock_job_for_status(%s, %s, %s)).*"


def test_a_job_of_an_allowed_status_is_locked_and_its_row_comes_back(db: Client, connect: Connect) -> None:
    db.submit("a")
    other = connect()
    with db.undone():
        row = db.row(LOCK, "a", ["READY", "PENDING_JOBS"], True)

        assert row == db.job("a")
        assert other.rows("SELECT 1 FROM pgwf.jobs FOR UPDATE SKIP LOCKED") == []


@pytest.mark.parametrize("allowed", [["ACTIVE"], [], ["CANCELLED", "AWAITING_FUTURE"]])
def test_a_job_of_another_status_is_refused_with_a_description(db: Client, allowed: list[str]) -> None:
    db.submit("a")

    refusal = db.refusal("_lock_job_for_status", "a", allowed)

    assert refusal[:2] == ("PW007", f"job a does not have status {' or '.join(allowed)}")


def test_availability_counts_when_it_is_asked_for(db: Client) -> None:
    db.submit_in("1 h", "a")
    statuses = ["AWAITING_FUTURE", "READY"]

    assert db.row(LOCK, "a", statuses, False)["job_id"] == "a"
    assert db.refusal("_lock_job_for_status", "a", statuses, True).code == "PW007"


# _validate_active_lease


def test_the_row_of_an_active_lease_comes_back(db: Client) -> None:
    lease = db.held("a")

    assert db.row("SELECT (pgwf._validate_active_lease('a', %s)).*", lease) == db.job("a")


@pytest.mark.parametrize("flaw", ["another lease", "lapsed", "no lease", "NULL"])
def test_a_lease_that_is_not_active_is_refused(db: Client, flaw: str) -> None:
    lease: str | None = db.held("a")
    if flaw == "lapsed":
        db.advance(61)
    elif flaw == "no lease":
        db.answer("release_job", "a", lease, "worker")
    else:
        lease = None if flaw == "NULL" else "another"

    refusal = db.refusal("_validate_active_lease", "a", lease)

    assert refusal[:2] == ("PW003", f"job a is not actively leased by {lease or ''}")


# _emit_trace_event

EMIT: Final = "SELECT pgwf._emit_trace_event('a', 'something', 'worker', %s)"


def test_an_event_is_traced_with_defaults_for_its_data(db: Client) -> None:
    db.rows(EMIT, None)

    (line,) = db.trace("something")
    assert (line["job_id"], line["worker_id"]) == ("a", "worker")
    assert (line["input_data"], line["output_data"]) == ({}, None)


def test_nothing_is_traced_while_tracing_is_off(db: Client) -> None:
    db.answer("set_trace", False)

    db.rows(EMIT, "{}")

    assert db.trace() == []


# _complete_locked_job

COMPLETE: Final = "SELECT pgwf._complete_locked_job(j, 'worker', %s) FROM pgwf.jobs j WHERE job_id = 'a'"


def test_completing_a_locked_job_archives_it_lets_go_what_waited_and_traces_the_context(db: Client) -> None:
    db.submit("a")
    db.submit("dependent", p_wait_for=["a"])

    assert db.value(COMPLETE, '{"why": "because"}') is True

    assert db.archived("a")["outcome"] == "COMPLETED"
    assert db.job("dependent")["wait_for"] == []
    (line,) = db.trace("job_finished")
    assert line["input_data"] == {"worker_id": "worker", "why": "because"}


def test_a_context_may_be_left_out(db: Client) -> None:
    db.submit("a")

    assert db.value("SELECT pgwf._complete_locked_job(j, 'worker') FROM pgwf.jobs j") is True

    assert db.trace("job_finished")[0]["input_data"] == {"worker_id": "worker"}


# _reschedule_locked_job

RESCHEDULE: Final = """
    SELECT moved.* FROM pgwf.jobs j CROSS JOIN LATERAL
        pgwf._reschedule_locked_job(j, 'worker', 'next', %s, %s, NULL) moved
    WHERE j.job_id = 'a'
"""


def test_rescheduling_a_locked_job_normalises_clears_the_lease_and_traces_both_sides(db: Client) -> None:
    db.submit("first", "other")
    db.held("a")

    (answer,) = db.rows(RESCHEDULE, ["first", None, "first"], "key")

    job = db.job("a")
    assert answer["wait_for"] == job["wait_for"] == ["first"]
    assert (job["next_need"], job["singleton_key"]) == ("next", "key")
    assert (job["lease_id"], job["lease_expires_at"]) == (None, "-infinity")
    assert job["available_at"] is not None
    (line,) = db.trace("reschedule_job")
    asked, done = line["input_data"], line["output_data"]
    assert (asked["next_need"], asked["wait_for"], asked["singleton_key"], asked["available_at"]) == (
        "next",
        ["first", None, "first"],
        "key",
        None,
    )
    assert (done["next_need"], done["wait_for"], done["singleton_key"]) == ("next", ["first"], "key")
    assert done["available_at"] is not None


def test_a_cancelled_job_is_neither_announced_nor_handed_out_whoever_calls_the_helper(db: Client) -> None:
    """Its callers refuse before; this is the last gate."""
    db.answer("set_notify", True)
    db.submit("a")
    db.cancel("a")
    db.rows('LISTEN "pgwf.need.next"')

    db.rows(RESCHEDULE, [], None)

    assert db.heard() == []
    assert (db.status("a"), db.claims("next")) == ("CANCELLED", [])
    assert db.call("check") == []


# normalize_wait_for


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        (None, []),
        ([], []),
        (["b", "a", "b"], ["b", "a"]),
        ([None, "a"], ["a"]),
        ([["a", "b"], ["b", "c"]], ["a", "b", "c"]),
    ],
)
def test_a_wait_for_is_each_id_once_in_order(db: Client, given: object, normal: list[str]) -> None:
    assert db.value("SELECT pgwf.normalize_wait_for(%s::text[])", given) == normal


def test_nothing_is_left_of_a_call_that_a_helper_refused(db: Client) -> None:
    db.held("a")
    before = db.contents()

    assert db.refusal("complete_job", "a", "another", "worker").code == "PW003"

    assert db.contents() == before


def test_helpers_have_one_sentence_each_on_what_they_guarantee() -> None:
    """The seed's helpers are explained where they are made."""
    source = script()
    for helper in CALLERS:
        assert re.search(rf"-- [^\n]+\nCREATE FUNCTION pgwf\.{helper}\(", source), helper
