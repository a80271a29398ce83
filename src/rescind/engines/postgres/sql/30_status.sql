-- What a job is. `_state_of` is the only place in SQL that says so; the first that holds.

CREATE FUNCTION pgwf._state_of(p_job pgwf.jobs, p_now TIMESTAMPTZ) RETURNS TEXT LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN p_job.lease_expires_at > p_now THEN 'ACTIVE'
    WHEN p_job.cancel_requested THEN 'CANCELLED'
    WHEN p_job.available_at > p_now THEN 'AWAITING_FUTURE'
    WHEN p_job.wait_for <> '{}' THEN 'PENDING_JOBS'
    WHEN p_job.lease_expires_at > '-infinity' AND p_job.failures + 1 >= p_job.max_attempts THEN 'FAILED'
    ELSE 'READY'
END;

-- Where a job that nobody holds and nobody cancelled stands among the indexes; a keyed one is parked until elected.
CREATE FUNCTION pgwf._stage_of(p_wait_for TEXT[], p_available_at TIMESTAMPTZ, p_singleton_key TEXT, p_now TIMESTAMPTZ)
RETURNS TEXT LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN p_wait_for <> '{}' THEN 'waiting'
    WHEN p_available_at > p_now THEN 'future'
    WHEN p_singleton_key IS NOT NULL THEN 'parked'
    ELSE 'ready'
END;

CREATE VIEW pgwf.jobs_with_status AS
SELECT j.*, pgwf._state_of(j, clock.now) AS status
FROM pgwf.jobs j CROSS JOIN (SELECT pgwf._now() AS now) clock;

CREATE VIEW pgwf.jobs_friendly_status AS
SELECT
    j.job_id, j.status, j.next_need, j.created_at AS creation_dt, j.singleton_key,
    CASE WHEN j.status = 'PENDING_JOBS' THEN j.wait_for END AS pending_jobs,
    CASE WHEN j.status = 'AWAITING_FUTURE' THEN j.available_at END AS sleep_until,
    CASE WHEN j.status = 'ACTIVE' THEN j.lease_id END AS worker_id,
    CASE WHEN j.status = 'ACTIVE' THEN j.lease_worker END AS held_by,
    CASE WHEN j.status = 'ACTIVE' THEN j.lease_expires_at END AS lease_expires_at,
    j.status = 'ACTIVE' AND j.cancel_requested AS cancelling,
    CASE WHEN j.status = 'CANCELLED' THEN coalesce(j.stopped_at, j.lease_expires_at) END AS cancelled_at,
    CASE WHEN j.status = 'CANCELLED' THEN j.cancel_requested_by END AS cancelled_by,
    j.owner, j.priority, j.attempt, j.failures, j.progress, j.progress_message, j.last_error
FROM pgwf.jobs_with_status j;

-- Every job there ever was, live and archived, with the facts clients get to see.
CREATE VIEW pgwf.records AS
SELECT
    j.job_id, j.next_need, j.payload, j.owner, j.priority, j.singleton_key, j.wait_for, j.on_dependency_cancelled,
    j.on_dependency_failed, j.max_attempts, j.idempotency_key, j.body_hash, j.created_at, j.submitted_by,
    j.available_at, j.unblocked_at, j.attempt, j.failures, j.claimed_at, j.lease_id, j.lease_worker,
    nullif(j.lease_expires_at, '-infinity') AS lease_expires_at, j.progress, j.progress_message, j.usage_before,
    j.usage_units, j.work_started_at, j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.delivered_at,
    j.acknowledged_at, j.stopped_at, j.rung, j.estimate, j.billing, j.committed, NULL::TEXT AS outcome,
    NULL::TIMESTAMPTZ AS finished_at, 'null'::JSON AS output, j.last_error, NULL::TIMESTAMPTZ AS archived_at,
    NULL::TIMESTAMPTZ AS purged_at, pgwf._state_of(j, clock.now) AS state, j.seq
FROM pgwf.jobs j CROSS JOIN (SELECT pgwf._now() AS now) clock
UNION ALL
SELECT
    a.job_id, a.next_need, a.payload, a.owner, a.priority, a.singleton_key, a.wait_for, a.on_dependency_cancelled,
    a.on_dependency_failed, a.max_attempts, a.idempotency_key, a.body_hash, a.created_at, a.submitted_by,
    a.available_at, a.unblocked_at, a.attempt, a.failures, a.claimed_at, NULL, NULL, NULL, a.progress,
    a.progress_message, a.usage_before, a.usage_units, a.work_started_at, a.cancel_requested_at,
    a.cancel_requested_by, a.cancel_reason, a.delivered_at, a.acknowledged_at, a.stopped_at, a.rung, a.estimate,
    a.billing, a.committed, a.outcome, a.finished_at, a.output, a.last_error, a.archived_at, a.purged_at, a.outcome,
    a.seq
FROM pgwf.jobs_archive a;
