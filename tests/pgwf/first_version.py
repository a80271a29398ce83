"""A database as the first pgwf made and filled it: columns, views and functions that the seeds speak of."""

from typing import Final

from tests.pgwf.client import Client

_TABLES: Final = """
CREATE SCHEMA pgwf;
CREATE TABLE pgwf.jobs (
    job_id TEXT PRIMARY KEY,
    next_need TEXT NOT NULL,
    wait_for TEXT[] NOT NULL DEFAULT '{}'::TEXT[],
    singleton_key TEXT,
    available_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    lease_id {lease_type},
    lease_expires_at TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX jobs_by_time ON pgwf.jobs (available_at);
CREATE TABLE pgwf.jobs_archive (
    job_id TEXT PRIMARY KEY,
    next_need TEXT NOT NULL,
    wait_for TEXT[] NOT NULL,
    singleton_key TEXT,
    available_at TIMESTAMPTZ NOT NULL,
    lease_id {lease_type},
    created_at TIMESTAMPTZ NOT NULL,
    archived_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE pgwf.jobs_trace (
    trace_id BIGSERIAL PRIMARY KEY,
    job_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    event_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    input_data JSONB NOT NULL,
    output_data JSONB
);
"""

_CANCEL_COLUMNS: Final = """
ALTER TABLE pgwf.jobs ADD cancel_requested BOOLEAN NOT NULL DEFAULT FALSE,
    ADD cancel_requested_by TEXT, ADD cancel_requested_at TIMESTAMPTZ;
ALTER TABLE pgwf.jobs_archive ADD cancel_requested BOOLEAN NOT NULL DEFAULT FALSE,
    ADD cancel_requested_by TEXT, ADD cancel_requested_at TIMESTAMPTZ;
"""

_VIEWS_AND_FUNCTIONS: Final = """
CREATE VIEW pgwf.jobs_with_status AS
SELECT j.*, CASE
    WHEN lease_expires_at > clock_timestamp() THEN 'ACTIVE'
    WHEN available_at > clock_timestamp() THEN 'AWAITING_FUTURE'
    WHEN cardinality(wait_for) > 0 THEN 'PENDING_JOBS' ELSE 'READY' END AS status
FROM pgwf.jobs j;
CREATE VIEW pgwf.jobs_friendly_status AS
SELECT job_id, status, created_at AS creation_dt, lease_id AS worker_id FROM pgwf.jobs_with_status;

CREATE FUNCTION pgwf.is_trace_enabled() RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS 'SELECT FALSE';
CREATE FUNCTION pgwf.is_notify_enabled() RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS 'SELECT TRUE';
CREATE FUNCTION pgwf.set_trace(p_enabled BOOLEAN) RETURNS BOOLEAN LANGUAGE sql AS 'SELECT p_enabled';
CREATE FUNCTION pgwf.normalize_wait_for(ids TEXT[]) RETURNS TEXT[] LANGUAGE sql IMMUTABLE AS 'SELECT ids';
CREATE FUNCTION pgwf.submit_job(
    p_job_id TEXT, p_worker_id TEXT, p_next_need TEXT, p_wait_for TEXT[] DEFAULT '{}',
    p_singleton_key TEXT DEFAULT NULL, p_available_at TIMESTAMPTZ DEFAULT clock_timestamp()) RETURNS pgwf.jobs
    LANGUAGE sql AS 'INSERT INTO pgwf.jobs (job_id, next_need) VALUES (p_job_id, p_next_need) RETURNING *';
CREATE FUNCTION pgwf.submit_job(p_job_id TEXT, p_next_need TEXT) RETURNS TEXT
    LANGUAGE sql AS 'SELECT p_job_id';
CREATE FUNCTION pgwf.get_work(p_worker_id TEXT, p_worker_caps TEXT[]) RETURNS SETOF pgwf.jobs_with_status
    LANGUAGE sql AS 'SELECT * FROM pgwf.jobs_with_status';
CREATE FUNCTION pgwf.extend_lease(p_job_id TEXT, p_lease_id {lease_type}, p_worker_id TEXT)
    RETURNS TIMESTAMPTZ LANGUAGE sql AS 'SELECT clock_timestamp()';
CREATE FUNCTION pgwf.complete_job(p_job_id TEXT, p_lease_id {lease_type}, p_worker_id TEXT) RETURNS VOID
    LANGUAGE sql AS '';
CREATE FUNCTION pgwf._of_old(p_job pgwf.jobs) RETURNS pgwf.jobs LANGUAGE sql AS 'SELECT p_job';
CREATE PROCEDURE pgwf.maintain() LANGUAGE sql AS '';
CREATE AGGREGATE pgwf.together(TEXT) (SFUNC = textcat, STYPE = TEXT);
"""

LEASES: Final = {
    name: f"00000000-0000-4000-8000-00000000000{n}"
    for n, name in enumerate(("live", "lapsed", "twin-1", "twin-2", "asked", "asked-lapsed"))
}

LONG: Final = "long" * 25
"""As the need of a job, longer than a NOTIFY channel can name."""

_ROWS: Final = f"""
INSERT INTO pgwf.jobs
    (job_id, next_need, wait_for, singleton_key, available_at, lease_id, lease_expires_at) VALUES
    ('ready', 'work', '{{}}', NULL, '2020-01-01Z', NULL, '-infinity'),
    ('future', 'work', '{{}}', NULL, clock_timestamp() + '1 h', NULL, '-infinity'),
    ('waiting', 'work', '{{live,ready}}', NULL, '2020-01-01Z', NULL, '-infinity'),
    ('keyed-1', 'keyed', '{{}}', 'key', '2020-01-01Z', NULL, '-infinity'),
    ('keyed-2', 'keyed', '{{}}', 'key', '2020-01-02Z', NULL, '-infinity'),
    ('live', 'held', '{{}}', NULL, '2020-01-01Z', '{LEASES["live"]}', clock_timestamp() + '1 h'),
    ('lapsed', 'lapsed', '{{}}', NULL, '2020-01-01Z', '{LEASES["lapsed"]}', '2020-01-02Z'),
    (repeat('long', 250), '{LONG}', '{{}}', NULL, '2020-01-01Z', '{LEASES["lapsed"]}', '2020-01-02Z'),
    ('given-back', 'back', '{{}}', NULL, '2020-01-01Z', '{LEASES["lapsed"]}', '-infinity'),
    ('twin-1', 'held', '{{}}', 'twin', '2020-01-01Z', '{LEASES["twin-1"]}', clock_timestamp() + '1 h'),
    ('twin-2', 'held', '{{}}', 'twin', '2020-01-01Z', '{LEASES["twin-2"]}', clock_timestamp() + '1 h');
INSERT INTO pgwf.jobs_archive (job_id, next_need, wait_for, available_at, created_at, archived_at) VALUES
    ('done', 'work', '{{}}', '2020-01-01Z', '2020-01-01Z', '2020-01-02Z');
INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, input_data) VALUES
    ('done', 'job_submitted', 'producer', '{{"next_need": "work"}}'),
    ('done', 'job_finished', 'worker', '{{}}');
"""

_CANCELLED_ROWS: Final = f"""
INSERT INTO pgwf.jobs (job_id, next_need, lease_id, lease_expires_at, cancel_requested, cancel_requested_by,
                       cancel_requested_at) VALUES
    ('cancelled', 'work', NULL, '-infinity', TRUE, 'alice', '2020-01-02Z'),
    ('asked', 'held', '{LEASES["asked"]}', clock_timestamp() + '1 h', TRUE, 'alice', '2020-01-02Z'),
    ('asked-lapsed', 'held', '{LEASES["asked-lapsed"]}', '2020-01-03Z', TRUE, 'alice', '2020-01-02Z');
INSERT INTO pgwf.jobs_archive
    (job_id, next_need, wait_for, available_at, created_at, archived_at, cancel_requested,
     cancel_requested_by, cancel_requested_at) VALUES
    ('stopped', 'work', '{{}}', '2020-01-01Z', '2020-01-01Z', '2020-01-03Z', TRUE, 'alice', '2020-01-02Z');
"""


def make_first_version(db: Client, lease_type: str, *, cancelling: bool) -> None:
    """With or without the columns of seed 000, and with leases of this type."""
    parts = [
        _TABLES,
        *[_CANCEL_COLUMNS] * cancelling,
        _VIEWS_AND_FUNCTIONS,
        _ROWS,
        *[_CANCELLED_ROWS] * cancelling,
    ]
    for part in parts:
        db.connection.execute(part.replace("{lease_type}", lease_type).encode())
