"""The cost of a call follows what it does, never what lies around: pages read with 20,000 jobs in the way are
at most half as many again as with 500, and nothing scans the table of jobs. `make bench` takes a million."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from rescind.engines.postgres.script import script
from tests.pgwf.calls import good_calls
from tests.pgwf.client import Client
from tests.pgwf.databases import temporary_database

FEW: Final = 500
MANY: Final = 20_000
GROWTH: Final = 1.5

# What a claim or a move has to do with, whatever else there is.
_BASE: Final = """
    INSERT INTO pgwf.jobs (job_id, next_need) SELECT 'work-' || n, 'work' FROM generate_series(1, 300) n;
    INSERT INTO pgwf.jobs (job_id, next_need, lease_id, lease_worker, lease_expires_at, stage, attempt)
    SELECT 'held-' || n, 'work', 'lease-' || n, 'worker', pgwf._now() + '1 h', 'leased', 1
    FROM generate_series(1, 10) n;
    INSERT INTO pgwf.jobs (job_id, next_need, wait_for, stage)
    SELECT 'after-' || n, 'work', ARRAY['held-' || n], 'waiting' FROM generate_series(1, 10) n;
    INSERT INTO pgwf.jobs (job_id, next_need, cancel_requested, cancel_requested_at, stage)
    SELECT 'cancelled-' || n, 'work', TRUE, pgwf._now(), 'cancelled' FROM generate_series(1, 600) n;
"""

# What lies in the way.
SHAPES: Final[dict[str, str]] = {
    "ready": """
        INSERT INTO pgwf.jobs (job_id, next_need) SELECT 'more-' || n, 'work' FROM {numbers}
    """,
    "urgent in the future": """
        INSERT INTO pgwf.jobs (job_id, next_need, priority, available_at, stage)
        SELECT 'future-' || n, 'work', 10, pgwf._now() + '1 h', 'future' FROM {numbers}
    """,
    "parked on one busy key": """
        INSERT INTO pgwf.jobs (job_id, next_need, singleton_key, priority, lease_id, lease_expires_at, stage)
        SELECT 'busy', 'work', 'key', 10, 'lease', pgwf._now() + '1 h', 'leased' ON CONFLICT DO NOTHING;
        INSERT INTO pgwf.jobs (job_id, next_need, singleton_key, priority, stage)
        SELECT 'parked-' || n, 'work', 'key', 10, 'parked' FROM {numbers}
    """,
    "waiting for others": """
        INSERT INTO pgwf.jobs (job_id, next_need, priority, wait_for, stage)
        SELECT 'waiting-' || n, 'work', 10, ARRAY['work-' || 100 + n % 200, 'work-' || 100 + n % 7],
            'waiting' FROM {numbers}
    """,
    "other needs": """
        INSERT INTO pgwf.jobs (job_id, next_need, priority)
        SELECT 'other-' || n, 'other-' || n % 100, 10 FROM {numbers}
    """,
    "held by others": """
        INSERT INTO pgwf.jobs (job_id, next_need, lease_id, lease_worker, lease_expires_at, stage, attempt)
        SELECT 'theirs-' || n, 'work', 'theirs-' || n, 'them', pgwf._now() + '1 h', 'leased', 1 FROM {numbers}
    """,
    "cancelled": """
        INSERT INTO pgwf.jobs (job_id, next_need, cancel_requested, cancel_requested_at, stage)
        SELECT 'stopped-' || n, 'work', TRUE, pgwf._now(), 'cancelled' FROM {numbers}
    """,
    "archived and traced": """
        INSERT INTO pgwf.jobs_archive (job_id, next_need, finished_at)
        SELECT 'done-' || n, 'work', pgwf._now() FROM {numbers};
        INSERT INTO pgwf.jobs_trace (job_id, event_type) SELECT 'done-' || n, 'job_finished' FROM {numbers}
    """,
}

_NEEDS: Final = "(SELECT array_agg('other-' || n) || 'work'::text FROM generate_series(0, 98) n)"
_SETTLEMENT: Final = '[{"job_id": "held-1", "lease_id": "lease-1", "worker": "worker", "kind": "complete"}]'
CALLS: Final = {
    "claim of 1": "pgwf.get_work('worker', '{work}', p_listen => FALSE)",
    "claim of 100": "pgwf.get_work('worker', '{work}', 60, 100, FALSE)",
    "claim of 1 for 100 needs": f"pgwf.get_work('worker', {_NEEDS}, p_listen => FALSE)",
    "claim of 100 for 100 needs": f"pgwf.get_work('worker', {_NEEDS}, 60, 100, FALSE)",
    "complete": "pgwf.complete_job('held-1', 'lease-1', 'worker')",
    "settle and claim": f"pgwf.settle_jobs('{_SETTLEMENT}', 'worker', '{{work}}')",
    "fail": "pgwf.fail_job('held-1', 'lease-1', 'worker', 'broken', 60)",
    "extend": "pgwf.extend_lease('held-1', 'lease-1', 'worker')",
    "cancel": "pgwf.cancel_job('work-50', 'alice')",
    "cancel of the running": "pgwf.cancel_job('held-1', 'alice')",
    "archival of 500": "pgwf.archive_cancelled_jobs('sweeper', 500)",
    "submit": "pgwf.submit_job('new', 'producer', 'work', '{held-1}')",
    "look": "pgwf.look('{work}')",
}


@pytest.fixture(scope="module")
def database() -> Iterator[Client]:
    with temporary_database() as url, closing(Client(url)) as client:
        client.rows(script())
        client.rows("ALTER TABLE pgwf.jobs SET (autovacuum_enabled = off)")
        yield client


def fill(db: Client, shape: str, first: int, last: int) -> None:
    numbers = f"generate_series({first}, {last}) n"
    db.connection.execute(SHAPES[shape].replace("{numbers}", numbers).encode())


def vacuum(db: Client) -> None:
    for table in ("jobs", "jobs_archive", "jobs_trace", "singleton_holds"):
        db.connection.execute(f"VACUUM (ANALYZE) pgwf.{table}".encode())


def pages(db: Client, call: str) -> int:
    """How many pages it reads. Once without counting, so that plans and catalogues are at hand."""
    with db.undone():
        db.connection.execute(f"SELECT * FROM {call}".encode())
    with db.undone():
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {call}"
        (row,) = db.connection.execute(explain.encode()).fetchall()
    plan: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("shape", SHAPES)
def test_what_lies_in_the_way_costs_nothing(database: Client, shape: str) -> None:
    db = database
    db.rows("TRUNCATE pgwf.jobs, pgwf.jobs_archive, pgwf.jobs_trace, pgwf.singleton_holds")
    db.rows(_BASE)

    fill(db, shape, 1, FEW)
    vacuum(db)
    before = {name: pages(db, call) for name, call in CALLS.items()}
    fill(db, shape, FEW + 1, MANY)
    vacuum(db)
    after = {name: pages(db, call) for name, call in CALLS.items()}

    grown = {name: (before[name], after[name]) for name in CALLS if after[name] > GROWTH * before[name]}
    assert not grown
    assert db.call("check") == []


# Sequential scans

SCANS: Final = (
    "SELECT coalesce(sum(seq_scan), 0) AS scans FROM pg_stat_xact_user_tables"
    " WHERE schemaname = 'pgwf' AND relname IN ('jobs', 'jobs_archive', 'jobs_trace', 'singleton_holds')"
)


def test_no_call_but_a_count_or_a_check_scans_a_table(db: Client) -> None:
    """Not even when the tables are so small that a scan would be the cheapest plan."""
    calls = good_calls(db)
    scanning = {"check", "count_jobs", "list_jobs", "cancelling_jobs"}

    scans = {}
    for function, call in calls.items():
        with db.undone():
            before = db.value(SCANS)
            db.call(function, **call)
            scans[function] = db.value(SCANS) - before

    assert {function for function, number in scans.items() if number} <= scanning


def test_who_forbids_scans_forbids_compiling_too(db: Client) -> None:
    """A plan that cannot do without a scan of one row looks so dear that it would be compiled, which takes a
    thousand times as long as running it."""
    configured = db.rows(
        "SELECT proname, proconfig FROM pg_proc WHERE 'enable_seqscan=off' = ANY (proconfig) AND prosecdef"
    )

    assert len(configured) >= 20
    assert [row["proname"] for row in configured if "jit=off" not in row["proconfig"]] == []


def test_the_fused_call_settles_and_claims_without_a_scan(db: Client) -> None:
    jobs = [{"id": f"job-{n}", "need": "work", "singleton_key": f"key-{n % 5}"} for n in range(50)]
    db.call("submit_jobs", json.dumps(jobs), "producer")
    held = db.call("get_work", "worker", ["work"], 60, 5)
    said = [
        {"job_id": row["job_id"], "lease_id": row["lease_id"], "worker": "worker", "kind": "complete"}
        for row in held
    ]
    assert len(held) == 5

    with db.connection.transaction():
        before = db.value(SCANS)
        answers = db.call("settle_jobs", json.dumps(said), "worker", ["work"], 60, 5)
        assert db.value(SCANS) == before

    assert len(answers) == 10
