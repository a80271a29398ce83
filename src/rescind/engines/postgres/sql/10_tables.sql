-- The tables. A fresh install and an upgrade take the same road: the oldest shape first, then every column added
-- since, so that there is no second description to drift away from the first.

CREATE TABLE IF NOT EXISTS pgwf.settings (
    only_row       BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    schema_version INTEGER NOT NULL,
    trace          BOOLEAN NOT NULL DEFAULT TRUE,
    notify         BOOLEAN NOT NULL DEFAULT FALSE,
    clock_offset   INTERVAL NOT NULL DEFAULT '0'  -- moves pgwf._now(): for tests, and only the owner may write it
);
INSERT INTO pgwf.settings (schema_version, trace, notify)
VALUES (1, coalesce(nullif(current_setting('pgwf.old_trace', TRUE), '')::BOOLEAN, TRUE),
        coalesce(nullif(current_setting('pgwf.old_notify', TRUE), '')::BOOLEAN, FALSE))
ON CONFLICT (only_row) DO UPDATE SET schema_version = 1;

CREATE SEQUENCE IF NOT EXISTS pgwf.jobs_seq;

CREATE TABLE IF NOT EXISTS pgwf.jobs (
    job_id           TEXT PRIMARY KEY,
    next_need        TEXT NOT NULL,
    wait_for         TEXT[] NOT NULL DEFAULT '{}',
    singleton_key    TEXT,
    available_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    lease_id         TEXT,
    lease_expires_at TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    created_at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS pgwf.jobs_archive (
    job_id        TEXT PRIMARY KEY,
    next_need     TEXT NOT NULL,
    wait_for      TEXT[] NOT NULL DEFAULT '{}',
    singleton_key TEXT,
    available_at  TIMESTAMPTZ,
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    archived_at   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS pgwf.jobs_trace (
    trace_id    BIGINT GENERATED ALWAYS AS IDENTITY,
    job_id      TEXT,
    event_type  TEXT NOT NULL,
    worker_id   TEXT,
    event_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    input_data  JSONB NOT NULL DEFAULT '{}',
    output_data JSONB
);

-- What the first version did not have. The facts of a job are the same in both tables.
DO $$
DECLARE
    v_table TEXT;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['pgwf.jobs', 'pgwf.jobs_archive'] LOOP
        EXECUTE format($sql$
            ALTER TABLE %s
                ADD COLUMN IF NOT EXISTS wait_for TEXT[] NOT NULL DEFAULT '{}',
                ADD COLUMN IF NOT EXISTS singleton_key TEXT,
                ADD COLUMN IF NOT EXISTS available_at TIMESTAMPTZ DEFAULT clock_timestamp(),
                ADD COLUMN IF NOT EXISTS created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
                ADD COLUMN IF NOT EXISTS cancel_requested BOOLEAN NOT NULL DEFAULT FALSE,
                ADD COLUMN IF NOT EXISTS cancel_requested_by TEXT,
                ADD COLUMN IF NOT EXISTS cancel_requested_at TIMESTAMPTZ,
                ADD COLUMN IF NOT EXISTS cancel_reason TEXT,
                ADD COLUMN IF NOT EXISTS delivered_at TIMESTAMPTZ,
                ADD COLUMN IF NOT EXISTS acknowledged_at TIMESTAMPTZ,
                ADD COLUMN IF NOT EXISTS stopped_at TIMESTAMPTZ,
                ADD COLUMN IF NOT EXISTS rung TEXT,
                ADD COLUMN IF NOT EXISTS seq BIGINT NOT NULL DEFAULT nextval('pgwf.jobs_seq'),
                ADD COLUMN IF NOT EXISTS payload JSON NOT NULL DEFAULT 'null',
                ADD COLUMN IF NOT EXISTS owner TEXT,
                ADD COLUMN IF NOT EXISTS priority INTEGER NOT NULL DEFAULT 0,
                ADD COLUMN IF NOT EXISTS on_dependency_cancelled TEXT NOT NULL DEFAULT 'release',
                ADD COLUMN IF NOT EXISTS on_dependency_failed TEXT NOT NULL DEFAULT 'release',
                ADD COLUMN IF NOT EXISTS max_attempts INTEGER,
                ADD COLUMN IF NOT EXISTS idempotency_key TEXT,
                ADD COLUMN IF NOT EXISTS body_hash TEXT,
                ADD COLUMN IF NOT EXISTS submitted_by TEXT NOT NULL DEFAULT 'unknown',
                ADD COLUMN IF NOT EXISTS unblocked_at TIMESTAMPTZ,
                ADD COLUMN IF NOT EXISTS attempt INTEGER NOT NULL DEFAULT 0,
                ADD COLUMN IF NOT EXISTS failures INTEGER NOT NULL DEFAULT 0,
                ADD COLUMN IF NOT EXISTS claimed_at TIMESTAMPTZ,
                ADD COLUMN IF NOT EXISTS progress DOUBLE PRECISION,
                ADD COLUMN IF NOT EXISTS progress_message TEXT,
                ADD COLUMN IF NOT EXISTS usage_before BIGINT NOT NULL DEFAULT 0,
                ADD COLUMN IF NOT EXISTS usage_units BIGINT NOT NULL DEFAULT 0,
                ADD COLUMN IF NOT EXISTS work_started_at TIMESTAMPTZ,
                ADD COLUMN IF NOT EXISTS estimate BIGINT,
                ADD COLUMN IF NOT EXISTS billing TEXT NOT NULL DEFAULT 'NONE',
                ADD COLUMN IF NOT EXISTS committed BIGINT NOT NULL DEFAULT 0,
                ADD COLUMN IF NOT EXISTS last_error TEXT
        $sql$, v_table);
    END LOOP;
END $$;

-- `stage` is the one projection: where a live job stands among the indexes, so that a claim never looks at a job it
-- cannot take. Functions write it with every change of a job; time moves it only when a claim or a sweep passes by
-- (_wake). pgwf.check() says where it disagrees with the facts.
--   ready      may be claimed                   parked     as ready, but another job has or may get its singleton key
--   future     available_at had not come        waiting    wait_for is not empty
--   leased     a worker holds or held it        cancelled  stopped, waits for its archival
ALTER TABLE pgwf.jobs
    ADD COLUMN IF NOT EXISTS lease_id TEXT,
    ADD COLUMN IF NOT EXISTS lease_expires_at TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    ADD COLUMN IF NOT EXISTS lease_worker TEXT,
    ADD COLUMN IF NOT EXISTS stage TEXT NOT NULL DEFAULT 'ready';

ALTER TABLE pgwf.jobs_archive
    ADD COLUMN IF NOT EXISTS archived_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN IF NOT EXISTS outcome TEXT NOT NULL DEFAULT 'COMPLETED',
    ADD COLUMN IF NOT EXISTS finished_at TIMESTAMPTZ,
    ADD COLUMN IF NOT EXISTS output JSON NOT NULL DEFAULT 'null',
    ADD COLUMN IF NOT EXISTS purged_at TIMESTAMPTZ;

ALTER TABLE pgwf.jobs_trace
    ADD COLUMN IF NOT EXISTS trace_id BIGINT GENERATED ALWAYS AS IDENTITY,
    ADD COLUMN IF NOT EXISTS event_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN IF NOT EXISTS state TEXT,
    ADD COLUMN IF NOT EXISTS reason TEXT;

CREATE TABLE IF NOT EXISTS pgwf.singleton_holds (
    singleton_key TEXT NOT NULL,
    lease_id      TEXT,
    until         TIMESTAMPTZ NOT NULL
);
COMMENT ON TABLE pgwf.singleton_holds IS
    'A key whose holder was fenced off while its handler may still run is taken until then; a row whose time has '
    'come asks the next claim or sweep to let the key pass on.';

CREATE TABLE IF NOT EXISTS pgwf.workers (
    worker_id  TEXT PRIMARY KEY,
    needs      TEXT[] NOT NULL,
    slots      INTEGER NOT NULL,
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    seen_at    TIMESTAMPTZ NOT NULL
);

CREATE TABLE IF NOT EXISTS pgwf.documents (
    name     TEXT PRIMARY KEY,
    revision BIGINT NOT NULL,
    body     JSONB NOT NULL
);

CREATE TABLE IF NOT EXISTS pgwf.accounts (
    owner     TEXT PRIMARY KEY,
    available BIGINT NOT NULL CHECK (available >= 0),
    reserved  BIGINT NOT NULL CHECK (reserved >= 0)
);

CREATE TABLE IF NOT EXISTS pgwf.ledger (
    seq             BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner           TEXT NOT NULL,
    kind            TEXT NOT NULL,
    amount          BIGINT NOT NULL,
    job_id          TEXT,
    key             TEXT UNIQUE,
    at              TIMESTAMPTZ NOT NULL,
    actor           TEXT NOT NULL,
    available_after BIGINT NOT NULL,
    reserved_after  BIGINT NOT NULL
);
