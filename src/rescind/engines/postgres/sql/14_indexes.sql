-- What a claim reads: the jobs it may take, in the order it takes them.
CREATE INDEX IF NOT EXISTS jobs_ready ON pgwf.jobs (next_need, priority DESC, available_at, seq) WHERE stage = 'ready';
-- What the clock will move.
CREATE INDEX IF NOT EXISTS jobs_future ON pgwf.jobs (available_at) WHERE stage = 'future';
CREATE INDEX IF NOT EXISTS jobs_leased ON pgwf.jobs (lease_expires_at) WHERE stage = 'leased';
CREATE INDEX IF NOT EXISTS jobs_cancelled ON pgwf.jobs (seq) WHERE stage = 'cancelled';
-- One leased job per singleton key, held by the schema itself; the others in the order in which they get it.
CREATE UNIQUE INDEX IF NOT EXISTS jobs_singleton_leased ON pgwf.jobs (singleton_key)
    WHERE stage = 'leased' AND singleton_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_parked ON pgwf.jobs (singleton_key, next_need, priority DESC, available_at, seq)
    WHERE stage = 'parked';
CREATE INDEX IF NOT EXISTS singleton_holds_until ON pgwf.singleton_holds (until);
CREATE INDEX IF NOT EXISTS singleton_holds_key ON pgwf.singleton_holds (singleton_key);
CREATE INDEX IF NOT EXISTS singleton_holds_lease ON pgwf.singleton_holds (lease_id) WHERE lease_id IS NOT NULL;
-- Who waits for a job that ended.
CREATE INDEX IF NOT EXISTS jobs_waiting ON pgwf.jobs USING gin (wait_for) WITH (fastupdate = off) WHERE wait_for <> '{}';
-- What people look for.
CREATE INDEX IF NOT EXISTS jobs_by_need ON pgwf.jobs (next_need, seq);
CREATE INDEX IF NOT EXISTS jobs_by_owner ON pgwf.jobs (owner, seq) WHERE owner IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_archive_by_need ON pgwf.jobs_archive (next_need, seq);
CREATE INDEX IF NOT EXISTS jobs_archive_by_owner ON pgwf.jobs_archive (owner, seq) WHERE owner IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_archive_retained ON pgwf.jobs_archive (finished_at) WHERE purged_at IS NULL;
-- One job per owner and idempotency key; an advisory lock keeps it true over both tables.
CREATE UNIQUE INDEX IF NOT EXISTS jobs_idempotency ON pgwf.jobs (coalesce(owner, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS jobs_archive_idempotency ON pgwf.jobs_archive (coalesce(owner, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_idempotency_age ON pgwf.jobs (created_at) WHERE idempotency_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_archive_idempotency_age ON pgwf.jobs_archive (created_at)
    WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS jobs_trace_by_id ON pgwf.jobs_trace (trace_id);
CREATE INDEX IF NOT EXISTS jobs_trace_by_job ON pgwf.jobs_trace (job_id, trace_id);
CREATE INDEX IF NOT EXISTS ledger_by_owner ON pgwf.ledger (owner, seq);

-- A queue's tables live by being emptied: vacuum them by what has died, not by what is there.
ALTER TABLE pgwf.jobs SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);
ALTER TABLE pgwf.singleton_holds SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
