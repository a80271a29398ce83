-- The queue in one file. Facts are columns, one per field of rescind.job.Job and under the same name;
-- what a job *is* follows from them and the clock (rescind.lifecycle.state_of).
--
-- `stage` is the one projection: where the job stands among the indexes, so that claiming never looks at
-- a job it cannot take. It is rewritten with every change of a job, and moved by the clock only when a
-- claim or a sweep passes by:
--   ready      may be claimed                     parked     as ready, but another job has its singleton key
--   future     available_at had not come          waiting    wait_for is not empty
--   leased     a worker holds or held it          cancelled  stopped, its dependents not released yet
--   done       has its outcome

CREATE TABLE jobs (
    seq                     INTEGER PRIMARY KEY,
    id                      TEXT NOT NULL UNIQUE,
    need                    TEXT NOT NULL,
    input                   TEXT NOT NULL DEFAULT 'null',
    owner                   TEXT,
    priority                INTEGER NOT NULL DEFAULT 0,
    singleton_key           TEXT,
    wait_for                TEXT NOT NULL DEFAULT '[]',
    on_dependency_cancelled TEXT NOT NULL DEFAULT 'release',
    on_dependency_failed    TEXT NOT NULL DEFAULT 'cancel',
    max_attempts            INTEGER,
    idempotency_key         TEXT,
    body_hash               TEXT,
    submitted_at            TEXT NOT NULL,
    submitted_by            TEXT NOT NULL,
    available_at            TEXT NOT NULL,
    unblocked_at            TEXT,
    attempt                 INTEGER NOT NULL DEFAULT 0,
    failures                INTEGER NOT NULL DEFAULT 0,
    claimed_at              TEXT,
    lease_id                TEXT,
    lease_worker            TEXT,
    lease_expires_at        TEXT,
    progress                REAL,
    progress_message        TEXT,
    usage_before            INTEGER NOT NULL DEFAULT 0,
    usage_units             INTEGER NOT NULL DEFAULT 0,
    work_started_at         TEXT,
    cancel_requested_at     TEXT,
    cancel_requested_by     TEXT,
    cancel_reason           TEXT,
    delivered_at            TEXT,
    acknowledged_at         TEXT,
    stopped_at              TEXT,
    rung                    TEXT,
    estimate                INTEGER,
    billing                 TEXT NOT NULL DEFAULT 'NONE',
    committed               INTEGER NOT NULL DEFAULT 0,
    outcome                 TEXT,
    finished_at             TEXT,
    output                  TEXT NOT NULL DEFAULT 'null',
    last_error              TEXT,
    archived_at             TEXT,
    purged_at               TEXT,
    stage                   TEXT NOT NULL
) STRICT;

-- What a claim reads: the jobs it may take, in the order it takes them.
CREATE INDEX jobs_ready ON jobs (need, priority DESC, available_at, seq) WHERE stage = 'ready';
-- What the clock will move.
CREATE INDEX jobs_future ON jobs (available_at) WHERE stage = 'future';
CREATE INDEX jobs_leased ON jobs (lease_expires_at) WHERE stage = 'leased';
CREATE INDEX jobs_cancelled ON jobs (seq) WHERE stage = 'cancelled';
CREATE INDEX jobs_retained ON jobs (finished_at) WHERE stage = 'done' AND purged_at IS NULL;
-- One leased job per singleton key, held by the schema itself. While there is none, one job of each need is in
-- front (needs apart, so that a job nobody serves is in nobody's way); the others are parked in order.
CREATE UNIQUE INDEX jobs_singleton_leased ON jobs (singleton_key)
    WHERE singleton_key IS NOT NULL AND stage = 'leased';
CREATE UNIQUE INDEX jobs_singleton_front ON jobs (singleton_key, need)
    WHERE singleton_key IS NOT NULL AND stage = 'ready';
CREATE INDEX jobs_singleton_parked ON jobs (singleton_key, need, priority DESC, available_at, seq)
    WHERE stage = 'parked';
-- What people look for.
CREATE INDEX jobs_live ON jobs (need, available_at, id) WHERE outcome IS NULL;
CREATE INDEX jobs_by_need ON jobs (need);
CREATE INDEX jobs_by_owner ON jobs (owner) WHERE owner IS NOT NULL;
CREATE UNIQUE INDEX jobs_idempotency ON jobs (ifnull(owner, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_idempotency_age ON jobs (submitted_at) WHERE idempotency_key IS NOT NULL;

-- Who waits for whom, by id: finds the dependents of a job that ended.
CREATE TABLE waiters (
    dependency TEXT NOT NULL,
    dependent  TEXT NOT NULL,
    PRIMARY KEY (dependency, dependent)
) STRICT, WITHOUT ROWID;

-- A key whose holder was fenced off while it may still be running: nobody else gets it until then.
CREATE TABLE singleton_holds (
    singleton_key TEXT PRIMARY KEY,
    lease_id      TEXT NOT NULL,
    until         TEXT NOT NULL
) STRICT;

-- Every move of every job, in the order they were made; only ever added to.
CREATE TABLE events (
    seq     INTEGER PRIMARY KEY,
    job     INTEGER NOT NULL REFERENCES jobs (seq),
    verb    TEXT NOT NULL,
    at      TEXT NOT NULL,
    actor   TEXT NOT NULL,
    state   TEXT NOT NULL,
    reason  TEXT,
    changes TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_job ON events (job, seq);

CREATE TABLE workers (
    id         TEXT PRIMARY KEY,
    needs      TEXT NOT NULL,
    slots      INTEGER NOT NULL,
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    seen_at    TEXT NOT NULL
) STRICT;

CREATE TABLE documents (
    name     TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    body     TEXT NOT NULL
) STRICT;

CREATE TABLE accounts (
    owner     TEXT PRIMARY KEY,
    available INTEGER NOT NULL CHECK (available >= 0),
    reserved  INTEGER NOT NULL CHECK (reserved >= 0)
) STRICT;

CREATE TABLE ledger (
    seq             INTEGER PRIMARY KEY,
    owner           TEXT NOT NULL,
    kind            TEXT NOT NULL,
    amount          INTEGER NOT NULL,
    job_id          TEXT,
    key             TEXT UNIQUE,
    at              TEXT NOT NULL,
    actor           TEXT NOT NULL,
    available_after INTEGER NOT NULL,
    reserved_after  INTEGER NOT NULL
) STRICT;
CREATE INDEX ledger_by_owner ON ledger (owner, seq);
