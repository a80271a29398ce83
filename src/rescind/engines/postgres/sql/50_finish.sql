-- The end of jobs: one road to the archive, whatever ended them.

DROP TYPE IF EXISTS pgwf.job_end;
CREATE TYPE pgwf.job_end AS (
    job_id TEXT, outcome TEXT, event_type TEXT, actor TEXT, reason TEXT, finished_at TIMESTAMPTZ, output JSON,
    last_error TEXT, failures INTEGER, usage_units BIGINT, work_started_at TIMESTAMPTZ, delivered_at TIMESTAMPTZ,
    acknowledged_at TIMESTAMPTZ, stopped_at TIMESTAMPTZ, rung TEXT, input_data JSONB
);
COMMENT ON TYPE pgwf.job_end IS 'How a job ends: the facts it takes to the archive, and the line of history about it.';

-- Record the outcome, settle the cost, move to the archive, let the singleton key pass on and release what waited, all
-- in this transaction. The rows are locked, and with `p_dependents` what waits for them, too; without it, nothing does.
-- Without `p_costs` none of them holds a reservation.
CREATE FUNCTION pgwf._finish(
    p_ends pgwf.job_end[], p_dependents BOOLEAN, p_costs BOOLEAN, p_now TIMESTAMPTZ
) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    v_ids  TEXT[] := ARRAY(SELECT job_id FROM unnest(p_ends));
    v_keys TEXT[];
BEGIN
    IF p_costs THEN
        PERFORM pgwf._settle_costs(p_ends, p_now);
    END IF;
    WITH gone AS (
        DELETE FROM pgwf.jobs WHERE job_id = ANY (v_ids) RETURNING *
    ), kept AS (
        INSERT INTO pgwf.jobs_archive (
            job_id, next_need, singleton_key, available_at, created_at, archived_at, cancel_requested,
            cancel_requested_by, cancel_requested_at, cancel_reason, delivered_at, acknowledged_at, stopped_at, rung,
            seq, payload, owner, priority, on_dependency_cancelled, on_dependency_failed, max_attempts,
            idempotency_key, body_hash, submitted_by, unblocked_at, attempt, failures, claimed_at, progress,
            progress_message, usage_before, usage_units, work_started_at, estimate, billing, committed, last_error,
            outcome, finished_at, output)
        SELECT
            j.job_id, j.next_need, j.singleton_key, j.available_at, j.created_at, p_now, j.cancel_requested,
            j.cancel_requested_by, j.cancel_requested_at, j.cancel_reason, e.delivered_at, e.acknowledged_at,
            e.stopped_at, e.rung, j.seq, j.payload, j.owner, j.priority, j.on_dependency_cancelled,
            j.on_dependency_failed, j.max_attempts, j.idempotency_key, j.body_hash, j.submitted_by, j.unblocked_at,
            j.attempt, e.failures, j.claimed_at, j.progress, j.progress_message, j.usage_before, e.usage_units,
            e.work_started_at, j.estimate, j.billing, j.committed, e.last_error, e.outcome, e.finished_at,
            coalesce(e.output, 'null')
        FROM gone j JOIN unnest(p_ends) e ON e.job_id = j.job_id
        RETURNING job_id, singleton_key, billing, committed
    ), told AS (
        INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state, reason)
        SELECT e.job_id, e.event_type, e.actor, p_now, coalesce(e.input_data, '{}'), jsonb_strip_nulls(
                jsonb_build_object(
                    'outcome', e.outcome, 'finished_at', nullif(e.finished_at, p_now), 'last_error', e.last_error,
                    'failures', nullif(e.failures, 0), 'usage_units', nullif(e.usage_units, 0),
                    'work_started_at', e.work_started_at, 'delivered_at', e.delivered_at,
                    'acknowledged_at', e.acknowledged_at, 'stopped_at', e.stopped_at, 'rung', e.rung,
                    'billing', nullif(k.billing, 'NONE'), 'committed', nullif(k.committed, 0))),
            e.outcome, e.reason
        FROM unnest(p_ends) e JOIN kept k ON k.job_id = e.job_id WHERE (SELECT trace FROM pgwf.settings WHERE only_row)
    )
    SELECT array_agg(singleton_key) INTO v_keys FROM kept WHERE singleton_key IS NOT NULL;
    IF v_keys IS NOT NULL THEN
        PERFORM pgwf._elect(v_keys, p_now);
    END IF;
    IF p_dependents THEN
        PERFORM pgwf._update_waiters_for_completion(v_ids, ARRAY(SELECT outcome FROM unnest(p_ends)), p_now);
    END IF;
END $$;

-- Commit what was used and give back the rest, for those that hold a reservation. Locks accounts, by owner.
CREATE FUNCTION pgwf._settle_costs(p_ends pgwf.job_end[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_job       pgwf.jobs;
    v_end       pgwf.job_end;
    v_committed BIGINT;
BEGIN
    FOR v_job IN
        SELECT j.* FROM pgwf.jobs j
        WHERE j.job_id = ANY (ARRAY(SELECT job_id FROM unnest(p_ends))) AND j.billing = 'RESERVED'
        ORDER BY j.owner, j.job_id
    LOOP
        SELECT * INTO v_end FROM unnest(p_ends) e WHERE e.job_id = v_job.job_id;
        v_committed := pgwf._cost(
            v_job.next_need, v_end.outcome, v_job.estimate, v_end.usage_units, v_end.work_started_at);
        PERFORM pgwf._charge(v_job, v_end.outcome, v_committed, v_end.actor, p_now);
        UPDATE pgwf.jobs SET committed = v_committed,
            billing = CASE WHEN v_committed > 0 THEN 'COMMITTED' ELSE 'RELEASED' END
        WHERE job_id = v_job.job_id;
    END LOOP;
END $$;
