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
