"""One good call of every public function, in a database that has a job in every state."""

import json
from typing import Final

from tests.pgwf.client import Client, Row

Calls = dict[str, Row]
"""By function, its parameters by name."""

ROLES: Final = ("pgwf_producer", "pgwf_worker", "pgwf_operator", "pgwf_observer")


def parameters(db: Client) -> dict[str, dict[str, str]]:
    """The functions that are granted to anybody, with the names and types of their parameters."""
    rows = db.rows(
        "SELECT proname AS function, a.name, format_type(a.type, NULL) AS type FROM pg_proc"
        " LEFT JOIN LATERAL unnest(proargtypes, proargnames[:pronargs]) AS a (type, name)"
        " ON a.name IS NOT NULL"
        " WHERE pronamespace = 'pgwf'::regnamespace AND proname <> '_state_of'"  # takes a row, for views
        " AND EXISTS (SELECT 1 FROM unnest(%s::text[]) role"
        " WHERE has_function_privilege(role, pg_proc.oid, 'EXECUTE'))"
        " ORDER BY proname",
        list(ROLES),
    )
    found: dict[str, dict[str, str]] = {row["function"]: {} for row in rows}
    for row in rows:
        if row["name"]:
            found[row["function"]][row["name"]] = row["type"]
    return found


def good_calls(db: Client) -> Calls:
    """Fills the database; each of the calls succeeds in it."""
    db.call("credit", "owner", 1000, "operator", "first credit")
    db.answer("put_document", "policies", 0, '{"work": {"units_per_token": 10}}')
    done = db.held("done", "done", p_owner="owner", p_estimate=10)
    db.answer("complete_job", "done", done, "worker", '{"some": "output"}')
    db.submit("cancelled", p_wait_for=["done"])
    db.cancel("cancelled", reason="why not")
    leases = {
        job_id: db.held(job_id, job_id, p_singleton_key=f"{job_id} key") for job_id in ("held", "asked")
    }
    db.cancel("asked")
    db.submit("ready", p_owner="owner", p_estimate=10, p_idempotency_key="key")
    db.submit("pending", p_wait_for=["ready", "held"])
    db.submit_in("1 h", "future")

    who = {"p_worker_id": "worker"}
    held = {"p_job_id": "held", "p_lease_id": leases["held"], **who}
    report = {"job_id": "held", "lease_id": leases["held"], "worker": "worker"}
    return {
        "_now": {},
        "account": {"p_owner": "owner"},
        "acknowledge_cancel": {"p_job_id": "asked", "p_lease_id": leases["asked"], **who},
        "archive_cancelled_jobs": {**who},
        "cancel_job": {"p_job_id": "ready", **who},
        "cancel_jobs": {**who, "p_job_ids": ["ready", "held"]},
        "cancelling_jobs": {},
        "changes": {},
        "check": {},
        "complete_job": held,
        "complete_unheld_job": {"p_job_id": "ready", **who},
        "count_jobs": {},
        "credit": {"p_owner": "owner", "p_amount": 1, **who},
        "extend_jobs": {
            "p_worker": json.dumps({"worker_id": "worker", "needs": ["work"]}),
            "p_reports": json.dumps([report]),
        },
        "extend_lease": held,
        "fail_job": {**held, "p_error": "broken"},
        "get_document": {"p_name": "policies"},
        "get_jobs": {"p_job_ids": ["ready", "done"]},
        "get_work": {**who, "p_worker_caps": ["work", "other"]},
        "is_notify_enabled": {},
        "is_trace_enabled": {},
        "job_history": {"p_job_id": "done"},
        "list_jobs": {},
        "list_workers": {},
        "look": {"p_worker_caps": ["work"]},
        "normalize_wait_for": {"p_wait_for": ["a"]},
        "put_document": {"p_name": "new", "p_revision": 0, "p_body": "{}"},
        "release_job": held,
        "reschedule_job": {**held, "p_next_need": "next"},
        "reschedule_unheld_job": {"p_job_id": "ready", **who, "p_next_need": "next"},
        "schema_version": {},
        "set_notify": {"p_enabled": True},
        "set_trace": {"p_enabled": True},
        "settle_jobs": {
            "p_settlements": json.dumps([{**report, "kind": "complete"}]),
            **who,
            "p_worker_caps": ["work", "other"],
        },
        "submit_job": {"p_job_id": "new", **who, "p_next_need": "work"},
        "submit_jobs": {"p_jobs": json.dumps([{"id": "new", "need": "work"}]), **who},
        "sweep": {**who},
    }
