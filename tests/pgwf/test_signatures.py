"""The promise to SQL clients: names, order, types and defaults of parameters and results, as the seeds have
them. What was added since trails, and has a default."""

import re
from typing import Final, NamedTuple

import pytest

from tests.pgwf.client import Client


class Signature(NamedTuple):
    parameters: str
    result: str


_LOCKED: Final = "p_locked_job pgwf.jobs, p_worker_id text"
_WHEN: Final = "p_wait_for text[] DEFAULT '{}'::text[], p_singleton_key text DEFAULT NULL::text, "
_NOW: Final = "p_available_at timestamp with time zone DEFAULT clock_timestamp()"
_MOVED: Final = "TABLE(job_id text, next_need text, wait_for text[], available_at timestamp with time zone)"

SIGNATURES: Final = {
    "submit_job": Signature(f"p_job_id text, p_worker_id text, p_next_need text, {_WHEN}{_NOW}", _MOVED),
    "get_work": Signature(
        "p_worker_id text, p_worker_caps text[], p_lease_seconds integer DEFAULT 60, "
        "p_limit_jobs integer DEFAULT 1",
        "TABLE(job_id text, lease_id text, next_need text, singleton_key text, wait_for text[], "
        "available_at timestamp with time zone, lease_expires_at timestamp with time zone",
    ),
    "extend_lease": Signature(
        "p_job_id text, p_lease_id text, p_worker_id text, p_additional_seconds integer DEFAULT 60",
        "timestamp with time zone",
    ),
    "reschedule_job": Signature(
        f"p_job_id text, p_lease_id text, p_worker_id text, p_next_need text, {_WHEN}{_NOW}", _MOVED
    ),
    "complete_job": Signature("p_job_id text, p_lease_id text, p_worker_id text", "boolean"),
    "cancel_job": Signature("p_job_id text, p_worker_id text, p_reason text DEFAULT NULL::text", "pgwf.jobs"),
    "complete_unheld_job": Signature("p_job_id text, p_worker_id text", "boolean"),
    "reschedule_unheld_job": Signature(
        f"p_job_id text, p_worker_id text, p_next_need text, {_WHEN}{_NOW}", _MOVED
    ),
    "archive_cancelled_jobs": Signature("p_worker_id text, p_limit integer DEFAULT 100", "integer"),
    "normalize_wait_for": Signature("p_wait_for text[]", "text[]"),
    "set_trace": Signature("p_enabled boolean", "void"),
    "is_trace_enabled": Signature("", "boolean"),
    "set_notify": Signature("p_enabled boolean", "void"),
    "is_notify_enabled": Signature("", "boolean"),
    "_complete_locked_job": Signature(f"{_LOCKED}, p_trace_context jsonb DEFAULT '{{}}'::jsonb", "boolean"),
    "_reschedule_locked_job": Signature(
        f"{_LOCKED}, p_next_need text, p_wait_for text[], p_singleton_key text, "
        "p_available_at timestamp with time zone",
        _MOVED,
    ),
    "_lock_job_for_status": Signature(
        "p_job_id text, p_allowed_status text[], p_require_available boolean DEFAULT false", "pgwf.jobs"
    ),
    "_emit_trace_event": Signature(
        "p_job_id text, p_event_type text, p_worker_id text, p_input jsonb, "
        "p_output jsonb DEFAULT NULL::jsonb",
        "void",
    ),
    "_validate_active_lease": Signature(
        "p_job_id text, p_lease_id text, p_expected_status text DEFAULT 'ACTIVE'::text", "pgwf.jobs"
    ),
    "_notify_need": Signature("p_need text", "void"),
}


@pytest.mark.parametrize("function", SIGNATURES)
def test_parameters_keep_their_names_order_types_and_defaults(db: Client, function: str) -> None:
    promised = SIGNATURES[function]
    (found,) = db.rows(
        "SELECT pg_get_function_arguments(oid) AS parameters, pg_get_function_result(oid) AS result"
        " FROM pg_proc WHERE pronamespace = 'pgwf'::regnamespace AND proname = %s",
        function,
    )

    assert found["parameters"].startswith(promised.parameters)
    added = found["parameters"].removeprefix(promised.parameters).removeprefix(", ")
    assert all(" DEFAULT " in parameter for parameter in re.split(r", (?=p_)", added) if parameter)
    assert found["result"].startswith(promised.result)


def test_there_is_one_function_per_name(db: Client) -> None:
    names = db.rows("SELECT proname AS name FROM pg_proc WHERE pronamespace = 'pgwf'::regnamespace")

    assert len(names) == len({row["name"] for row in names})


def test_a_call_with_the_old_parameters_by_position_still_works(db: Client) -> None:
    """As a client written for the seeds would say it."""
    db.submit("first", "other")
    db.rows("SELECT * FROM pgwf.submit_job('a', 'p', 'work', '{first}', 'key', clock_timestamp())")
    db.rows("SELECT pgwf.complete_unheld_job('first', 'operator')")
    (lease,) = db.rows("SELECT * FROM pgwf.get_work('w', '{work}', 60, 1)")
    db.rows("SELECT pgwf.extend_lease('a', %s, 'w', 30)", lease["lease_id"])
    db.rows(
        "SELECT * FROM pgwf.reschedule_job('a', %s, 'w', 'next', '{}', NULL, clock_timestamp())",
        lease["lease_id"],
    )
    db.rows("SELECT * FROM pgwf.reschedule_unheld_job('a', 'w', 'work', '{}', NULL, clock_timestamp())")
    (lease,) = db.rows("SELECT * FROM pgwf.get_work('w', '{work}')")
    db.rows("SELECT * FROM pgwf.cancel_job('a', 'c', 'why')")

    assert db.value("SELECT pgwf.complete_job('a', %s, 'w')", lease["lease_id"]) is True


def test_the_friendly_view_has_the_columns_of_the_issue(db: Client) -> None:
    columns = {
        row["column_name"]
        for row in db.rows(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_schema = 'pgwf' AND table_name = 'jobs_friendly_status'"
        )
    }

    assert columns >= {
        "job_id",
        "status",
        "creation_dt",
        "pending_jobs",
        "sleep_until",
        "worker_id",
        "cancelled_at",
        "cancelled_by",
    }


@pytest.mark.parametrize("view", ["jobs_with_status", "jobs_friendly_status"])
def test_what_people_read_are_views(db: Client, view: str) -> None:
    assert db.value("SELECT relkind::text FROM pg_class WHERE oid = %s::regclass", f"pgwf.{view}") == "v"


def test_an_extension_counts_from_now_and_not_from_the_old_expiry(db: Client) -> None:
    lease = db.held("a")

    new = db.answer("extend_lease", "a", lease, "worker", 10)

    assert new == db.job("a")["lease_expires_at"]
    assert db.value("SELECT %s - pgwf._now()", new).total_seconds() == pytest.approx(10, abs=5)
