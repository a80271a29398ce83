-- What the functions for many jobs answer with.

DROP TYPE IF EXISTS pgwf.verdict;
CREATE TYPE pgwf.verdict AS (job_id TEXT, refusal TEXT, detail TEXT[], changed BOOLEAN);
COMMENT ON TYPE pgwf.verdict IS 'What became of one item of a batch; the job itself is looked up for the answer.';

DROP TYPE IF EXISTS pgwf.answer;
CREATE TYPE pgwf.answer AS (
    place INTEGER, refusal TEXT, detail TEXT[], changed BOOLEAN,
    job_id TEXT, next_need TEXT, payload JSON, owner TEXT, priority INTEGER, singleton_key TEXT, wait_for TEXT[],
    on_dependency_cancelled TEXT, on_dependency_failed TEXT, max_attempts INTEGER, idempotency_key TEXT,
    body_hash TEXT, created_at TIMESTAMPTZ, submitted_by TEXT, available_at TIMESTAMPTZ, unblocked_at TIMESTAMPTZ,
    attempt INTEGER, failures INTEGER, claimed_at TIMESTAMPTZ, lease_id TEXT, lease_worker TEXT,
    lease_expires_at TIMESTAMPTZ, progress DOUBLE PRECISION, progress_message TEXT, usage_before BIGINT,
    usage_units BIGINT, work_started_at TIMESTAMPTZ, cancel_requested_at TIMESTAMPTZ, cancel_requested_by TEXT,
    cancel_reason TEXT, delivered_at TIMESTAMPTZ, acknowledged_at TIMESTAMPTZ, stopped_at TIMESTAMPTZ, rung TEXT,
    estimate BIGINT, billing TEXT, committed BIGINT, outcome TEXT, finished_at TIMESTAMPTZ, output JSON,
    last_error TEXT, archived_at TIMESTAMPTZ, purged_at TIMESTAMPTZ, state TEXT, seq BIGINT
);
COMMENT ON TYPE pgwf.answer IS
    'One answer of a batch: the refusal, if it was refused, and the job as it now is `place` counts the items of '
    'the batch from 1; a job that a claim brought has place NULL.';

-- The answers to a batch, in its order: each verdict with the job as it now is, live or archived; nothing but the
-- verdict when there is no such job.
CREATE FUNCTION pgwf._answers(p_verdicts pgwf.verdict[], p_now TIMESTAMPTZ) RETURNS SETOF pgwf.answer LANGUAGE plpgsql AS $$
DECLARE
    v_ids TEXT[] := ARRAY(SELECT job_id FROM unnest(p_verdicts));
BEGIN
    RETURN QUERY
        SELECT v.ordinality::INTEGER, v.refusal, v.detail, v.changed AND v.refusal IS NULL,
            j.job_id, j.next_need, j.payload, j.owner, j.priority, j.singleton_key, j.wait_for, j.on_dependency_cancelled,
            j.on_dependency_failed, j.max_attempts, j.idempotency_key, j.body_hash, j.created_at, j.submitted_by,
            j.available_at, j.unblocked_at, j.attempt, j.failures, j.claimed_at, j.lease_id, j.lease_worker,
            nullif(j.lease_expires_at, '-infinity'), j.progress, j.progress_message, j.usage_before, j.usage_units,
            j.work_started_at, j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.delivered_at,
            j.acknowledged_at, j.stopped_at, j.rung, j.estimate, j.billing, j.committed, NULL::TEXT,
            NULL::TIMESTAMPTZ, 'null'::JSON, j.last_error, NULL::TIMESTAMPTZ, NULL::TIMESTAMPTZ,
            pgwf._state_of(j, p_now), j.seq
        FROM unnest(p_verdicts) WITH ORDINALITY v JOIN pgwf.jobs j ON j.job_id || '' = v.job_id
        WHERE j.job_id = ANY (v_ids)
        UNION ALL
        SELECT v.ordinality::INTEGER, v.refusal, v.detail, v.changed AND v.refusal IS NULL,
            a.job_id, a.next_need, a.payload, a.owner, a.priority, a.singleton_key, a.wait_for, a.on_dependency_cancelled,
            a.on_dependency_failed, a.max_attempts, a.idempotency_key, a.body_hash, a.created_at, a.submitted_by,
            a.available_at, a.unblocked_at, a.attempt, a.failures, a.claimed_at, NULL::TEXT, NULL::TEXT,
            NULL::TIMESTAMPTZ, a.progress, a.progress_message, a.usage_before, a.usage_units, a.work_started_at,
            a.cancel_requested_at, a.cancel_requested_by, a.cancel_reason, a.delivered_at, a.acknowledged_at,
            a.stopped_at, a.rung, a.estimate, a.billing, a.committed, a.outcome, a.finished_at, a.output,
            a.last_error, a.archived_at, a.purged_at, a.outcome, a.seq
        FROM unnest(p_verdicts) WITH ORDINALITY v JOIN pgwf.jobs_archive a ON a.job_id || '' = v.job_id
        WHERE a.job_id = ANY (v_ids)
        UNION ALL
        SELECT v.ordinality::INTEGER, v.refusal, v.detail, FALSE, (NULL::pgwf.answer).job_id, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL
        FROM unnest(p_verdicts) WITH ORDINALITY v WHERE v.refusal = 'JobNotFound'
        ORDER BY 1;
END $$;

-- The jobs a claim has just leased, in the order in which it took them.
CREATE FUNCTION pgwf._claimed(p_ids TEXT[], p_now TIMESTAMPTZ) RETURNS SETOF pgwf.answer LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT NULL::INTEGER, NULL::TEXT, NULL::TEXT[], TRUE,
            j.job_id, j.next_need, j.payload, j.owner, j.priority, j.singleton_key, j.wait_for, j.on_dependency_cancelled,
            j.on_dependency_failed, j.max_attempts, j.idempotency_key, j.body_hash, j.created_at, j.submitted_by,
            j.available_at, j.unblocked_at, j.attempt, j.failures, j.claimed_at, j.lease_id, j.lease_worker,
            nullif(j.lease_expires_at, '-infinity'), j.progress, j.progress_message, j.usage_before, j.usage_units,
            j.work_started_at, j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.delivered_at,
            j.acknowledged_at, j.stopped_at, j.rung, j.estimate, j.billing, j.committed, NULL::TEXT,
            NULL::TIMESTAMPTZ, 'null'::JSON, j.last_error, NULL::TIMESTAMPTZ, NULL::TIMESTAMPTZ,
            pgwf._state_of(j, p_now), j.seq
        FROM unnest(p_ids) WITH ORDINALITY AS c (id, place) JOIN pgwf.jobs j ON j.job_id || '' = c.id
        WHERE j.job_id = ANY (p_ids) ORDER BY c.place;
END $$;

-- Just the jobs with these ids that exist.
CREATE FUNCTION pgwf._jobs(p_ids TEXT[], p_now TIMESTAMPTZ) RETURNS SETOF pgwf.answer LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgwf._answers(
        ARRAY(SELECT ROW(id, NULL, NULL, TRUE)::pgwf.verdict FROM unnest(p_ids) WITH ORDINALITY AS each (id, place)
              ORDER BY place), p_now);
END $$;
