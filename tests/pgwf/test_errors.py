"""Every refusal in its own words and with its own SQLSTATE."""

import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

import psycopg
import pytest

from rescind.engines.postgres.script import script
from tests.pgwf.calls import good_calls, parameters
from tests.pgwf.client import Client, Refusal, refusal_of
from tests.pgwf.states import in_state

CODES: Final = {
    "PW000": "never leaves the schema: a dry run takes back what it did",
    "PW001": "there is no such job",
    "PW002": "the id was used by a job that has ended",
    "PW003": "the lease is not the active one",
    "PW004": "the job is cancelled",
    "PW005": "the job cannot be moved without a lease, for somebody holds it or its time has not come",
    "PW006": "the job has ended and cannot be cancelled any more",
    "PW007": "the job is not in the state this needs",
    "PW008": "a job is to wait for jobs that do not exist",
    "PW009": "jobs are to wait for each other",
    "PW010": "the idempotency key belongs to something else",
    "PW011": "the owner has not enough tokens",
    "PW012": "the document has changed",
    "PW013": "the schema is newer than the script",
}


class Case(NamedTuple):
    code: str
    message: str
    provoke: Callable[[Client], Refusal]


def on(state: str, function: str, *values: object, **named: object) -> Callable[[Client], Refusal]:
    """The refusal of this call on a job `a` in this state; LEASE stands for the lease it has or had."""

    def provoke(db: Client) -> Refusal:
        lease = in_state(db, state)
        return db.refusal(function, *(lease if value is LEASE else value for value in values), **named)

    return provoke


LEASE: Final = object()


def waiting_for_itself(db: Client) -> Refusal:
    jobs = [
        {"id": "a", "need": "work", "wait_for": ["b"]},
        {"id": "b", "need": "work", "wait_for": ["c"]},
        {"id": "c", "need": "work", "wait_for": ["a"]},
    ]
    return db.refusal("submit_jobs", json.dumps(jobs), "producer")


def made_to_wait_for_a_dependent(db: Client) -> Refusal:
    db.submit("a")
    db.submit("b", p_wait_for=["a"])
    return db.refusal("reschedule_unheld_job", "a", "worker", "work", ["b"])


def with_a_used_key(db: Client) -> Refusal:
    db.submit("a", p_idempotency_key="key", p_payload="1")
    return db.refusal("submit_job", "b", "producer", "work", p_idempotency_key="key", p_payload="2")


def with_the_key_of_another_credit(db: Client) -> Refusal:
    db.call("credit", "owner", 1, "operator", "key")
    return db.refusal("credit", "owner", 2, "operator", "key")


def without_tokens(db: Client) -> Refusal:
    db.call("credit", "owner", 5, "operator")
    return db.refusal("submit_job", "a", "producer", "work", p_owner="owner", p_estimate=6)


def over_a_newer_document(db: Client) -> Refusal:
    db.answer("put_document", "name", 0, "{}")
    return db.refusal("put_document", "name", 0, "{}")


def over_a_newer_schema(db: Client) -> Refusal:
    db.rows("UPDATE pgwf.settings SET schema_version = 2")
    try:
        db.rows(script())
    except psycopg.Error as problem:
        db.connection.rollback()
        return refusal_of(problem)
    finally:
        db.rows("UPDATE pgwf.settings SET schema_version = 1")
    raise AssertionError("it was not refused")


def twice(db: Client) -> Refusal:
    db.submit("a")
    return db.refusal("submit_job", "a", "producer", "work")


_RESUBMITTED: Final = "job_id a has already completed and cannot be resubmitted"
_ENDED: Final = "job_id a has already completed and cannot be cancelled"

CASES: Final = {
    # The words of the issue
    "duplicate": Case("23505", 'duplicate key value violates unique constraint "jobs_pkey"', twice),
    "submit of an id that was used": Case(
        "PW002", _RESUBMITTED, on("COMPLETED", "submit_job", "a", "producer", "work")
    ),
    "submit of an id that was cancelled": Case(
        "PW002", _RESUBMITTED, on("archived", "submit_job", "a", "producer", "work")
    ),
    "cancel of what has ended": Case("PW006", _ENDED, on("COMPLETED", "cancel_job", "a", "alice")),
    "cancel of what used up its attempts": Case("PW006", _ENDED, on("FAILED", "cancel_job", "a", "alice")),
    "cancel of nothing": Case("PW001", "job a does not exist", on("unknown", "cancel_job", "a", "alice")),
    "extend of the cancelled": Case(
        "PW004",
        "job a is cancelled and cannot be extended",
        on("CANCELLING", "extend_lease", "a", LEASE, "worker"),
    ),
    "reschedule of the cancelled": Case(
        "PW004",
        "job a is cancelled and cannot be rescheduled",
        on("CANCELLING", "reschedule_job", "a", LEASE, "worker", "next"),
    ),
    "reschedule of the cancelled that nobody holds": Case(
        "PW004",
        "job a is cancelled and cannot be rescheduled",
        on("CANCELLED", "reschedule_unheld_job", "a", "worker", "next"),
    ),
    "work for nobody": Case("22023", "worker_caps cannot be empty", on("READY", "get_work", "worker", [])),
    "work for NULL": Case("22023", "worker_caps cannot be empty", on("READY", "get_work", "worker", None)),
    "a lease of no time": Case(
        "22023", "lease_seconds must be positive", on("READY", "get_work", "worker", ["work"], 0)
    ),
    "no work at all": Case(
        "22023", "limit_jobs must be positive", on("READY", "get_work", "worker", ["work"], 60, 0)
    ),
    "unknown dependencies": Case(
        "PW008",
        "wait_for references unknown jobs: x, b",
        on("READY", "submit_job", "c", "producer", "work", ["x", "a", "b", "x"]),
    ),
    "reschedule to unknown dependencies": Case(
        "PW008",
        "wait_for references unknown jobs: x",
        on("ACTIVE", "reschedule_job", "a", LEASE, "worker", "next", ["x"]),
    ),
    "unheld reschedule to unknown dependencies": Case(
        "PW008",
        "wait_for references unknown jobs: x",
        on("READY", "reschedule_unheld_job", "a", "worker", "next", ["x"]),
    ),
    "extend without a lease": Case(
        "PW003", "active lease not found for job a", on("READY", "extend_lease", "a", "lease", "worker")
    ),
    "extend with another lease": Case(
        "PW003", "active lease not found for job a", on("ACTIVE", "extend_lease", "a", "lease", "worker")
    ),
    "extend after the end": Case(
        "PW003", "active lease not found for job a", on("COMPLETED", "extend_lease", "a", "lease", "worker")
    ),
    "extend of nothing": Case(
        "PW001", "active lease not found for job a", on("unknown", "extend_lease", "a", "lease", "worker")
    ),
    "reschedule with another lease": Case(
        "PW003",
        "job a is not currently leased with lease lease",
        on("ACTIVE", "reschedule_job", "a", "lease", "worker", "next"),
    ),
    "reschedule of nothing": Case(
        "PW001",
        "job a is not currently leased with lease lease",
        on("unknown", "reschedule_job", "a", "lease", "worker", "next"),
    ),
    "complete with another lease": Case(
        "PW003", "job a is not actively leased by lease", on("ACTIVE", "complete_job", "a", "lease", "worker")
    ),
    "complete of nothing": Case(
        "PW001",
        "job a is not actively leased by lease",
        on("unknown", "complete_job", "a", "lease", "worker"),
    ),
    # What came after
    "fail with another lease": Case(
        "PW003", "job a is not actively leased by lease", on("ACTIVE", "fail_job", "a", "lease", "worker", "")
    ),
    "release with another lease": Case(
        "PW003", "job a is not actively leased by lease", on("ACTIVE", "release_job", "a", "lease", "worker")
    ),
    "acknowledge of what was not asked": Case(
        "PW007", "job a was not asked to stop", on("ACTIVE", "acknowledge_cancel", "a", LEASE, "worker")
    ),
    "complete of what is held": Case(
        "PW005",
        "job a is not available to complete without a lease",
        on("ACTIVE", "complete_unheld_job", "a", "worker"),
    ),
    "reschedule of what is held": Case(
        "PW005",
        "job a is not available to reschedule without a lease",
        on("ACTIVE", "reschedule_unheld_job", "a", "worker", "next"),
    ),
    "a cycle within a batch": Case(
        "PW009", "wait_for would make these jobs wait for each other: a -> b -> c -> a", waiting_for_itself
    ),
    "a cycle by reschedule": Case(
        "PW009",
        "wait_for would make these jobs wait for each other: a -> b -> a",
        made_to_wait_for_a_dependent,
    ),
    "a key with another body": Case(
        "PW010", "idempotency key key already belongs to job a, submitted with another body", with_a_used_key
    ),
    "a key with another credit": Case(
        "PW010", "idempotency key key already belongs to another ledger entry", with_the_key_of_another_credit
    ),
    "too few tokens": Case("PW011", "Not enough tokens to reserve: required=6, available=5", without_tokens),
    "a document that changed": Case(
        "PW012", "document name is not at revision 0 any more", over_a_newer_document
    ),
    "a newer schema": Case(
        "PW013", "this database has pgwf version 2, newer than this script (1)", over_a_newer_schema
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_has_its_words_and_its_code(db: Client, name: str) -> None:
    case = CASES[name]

    assert case.provoke(db)[:2] == (case.code, case.message)


def test_the_table_of_codes_is_that_of_the_schema_and_every_code_is_tested() -> None:
    """A new code needs a meaning here and a case above."""
    in_the_schema = set(re.findall(r"\bPW\d{3}\b", script()))
    tested = {case.code for case in CASES.values()}

    assert in_the_schema == set(CODES)
    assert tested - {"23505", "22023"} == set(CODES) - {"PW000"}


def test_other_codes_that_are_raised_are_standard_and_few() -> None:
    names = set(re.findall(r"ERRCODE = '([a-z_]+)'", script()))

    assert names == {"invalid_parameter_value", "null_value_not_allowed", "serialization_failure"}


def test_whoever_asks_must_say_who_they_are(db: Client) -> None:
    calls = good_calls(db)
    asking = [function for function, names in parameters(db).items() if "p_worker_id" in names]
    assert len(asking) >= 16

    for function in asking:
        refusal = db.refusal(function, **{**calls[function], "p_worker_id": None})
        assert refusal[:2] == ("22004", "worker_id cannot be NULL"), function


def test_a_refusal_tells_machines_what_it_tells_people(db: Client) -> None:
    lease = in_state(db, "COMPLETED") or "lease"

    refusal = db.refusal("complete_job", "a", lease, "worker")

    assert json.loads(refusal.detail or "") == {"job_id": "a", "state": "COMPLETED", "purged": False}


def test_a_dry_run_that_takes_everything_back_raises_nothing(db: Client) -> None:
    db.submit("a")
    before = db.contents()

    (answer,) = db.call("cancel_jobs", "alice", ["a"], p_dry_run=True)

    assert (answer["changed"], answer["state"]) == (True, "CANCELLED")
    assert db.contents() == before


def test_a_refusal_leaves_the_rest_of_a_transaction_to_its_caller(db: Client) -> None:
    """With a savepoint around it, as every driver has one."""
    with db.connection.transaction():
        db.submit("a")
        with pytest.raises(psycopg.errors.UniqueViolation), db.connection.transaction():
            db.submit("a")
        db.submit("b")

    assert db.claims() == ["a", "b"]
