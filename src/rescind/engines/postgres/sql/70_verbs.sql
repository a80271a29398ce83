-- The verbs for one job, for clients that speak SQL. Their words and parameters are a promise; what they do is done by
-- the functions above.

-- All of a batch or none of it. One answer per job; with p_brief none but the time at which all of them were submitted,
-- for a client that can tell the rest itself.
CREATE FUNCTION pgwf.submit_jobs(
    p_jobs JSON, p_worker_id TEXT DEFAULT NULL, p_brief BOOLEAN DEFAULT FALSE
) RETURNS SETOF pgwf.answer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_specs  pgwf.job_spec[];
    v_ids    TEXT[];
    v_answer pgwf.answer;
BEGIN
    v_specs := ARRAY(SELECT s FROM json_populate_recordset(
        ROW(NULL, NULL, NULL, p_worker_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::pgwf.job_spec,
        p_jobs) s);
    PERFORM pgwf._not_null(p_brief::TEXT, 'brief');
    v_ids := pgwf._submit(v_specs);
    IF p_brief THEN
        v_answer.created_at := (SELECT created_at FROM pgwf.jobs WHERE job_id = v_ids[1]);
        RETURN NEXT v_answer;
    ELSE
        RETURN QUERY SELECT * FROM pgwf._jobs(v_ids, pgwf._now());
    END IF;
END $$;

CREATE FUNCTION pgwf.submit_job(
    p_job_id TEXT, p_worker_id TEXT, p_next_need TEXT, p_wait_for TEXT[] DEFAULT '{}', p_singleton_key TEXT DEFAULT NULL,
    p_available_at TIMESTAMPTZ DEFAULT clock_timestamp(), p_payload JSON DEFAULT NULL, p_owner TEXT DEFAULT NULL,
    p_priority INTEGER DEFAULT 0, p_max_attempts INTEGER DEFAULT NULL, p_on_dependency_cancelled TEXT DEFAULT 'release',
    p_on_dependency_failed TEXT DEFAULT 'release', p_idempotency_key TEXT DEFAULT NULL, p_estimate BIGINT DEFAULT NULL
) RETURNS TABLE (job_id TEXT, next_need TEXT, wait_for TEXT[], available_at TIMESTAMPTZ) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids TEXT[];
BEGIN
    v_ids := pgwf._submit(ARRAY[ROW(
        p_job_id, p_next_need, p_payload, p_worker_id, p_owner, p_priority, p_singleton_key, nullif(p_wait_for, '{}'),
        p_on_dependency_cancelled, p_on_dependency_failed, p_available_at, 0, p_max_attempts, p_idempotency_key, NULL,
        p_estimate, NULL)::pgwf.job_spec]);
    RETURN QUERY SELECT r.job_id, r.next_need, r.wait_for, r.available_at FROM pgwf._jobs(v_ids, pgwf._now()) r;
END $$;

-- Lease up to p_limit_jobs jobs. One that finds nothing, while notifications are on, makes this session LISTEN for its
-- needs; since that takes effect at commit, ask once more after it.
CREATE FUNCTION pgwf.get_work(
    p_worker_id TEXT, p_worker_caps TEXT[], p_lease_seconds INTEGER DEFAULT 60, p_limit_jobs INTEGER DEFAULT 1,
    p_listen BOOLEAN DEFAULT TRUE
) RETURNS TABLE (
    job_id TEXT, lease_id TEXT, next_need TEXT, singleton_key TEXT, wait_for TEXT[], available_at TIMESTAMPTZ,
    lease_expires_at TIMESTAMPTZ, payload JSON, owner TEXT, priority INTEGER, attempt INTEGER, failures INTEGER
) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids  TEXT[];
    v_need TEXT;
BEGIN
    PERFORM pgwf._check_claim(p_worker_id, p_worker_caps, p_lease_seconds, p_limit_jobs);
    v_ids := pgwf._claim(p_worker_id, p_worker_caps, p_lease_seconds, p_limit_jobs);
    IF v_ids = '{}' AND p_listen AND pgwf.is_notify_enabled() THEN
        FOREACH v_need IN ARRAY p_worker_caps LOOP
            EXECUTE format('LISTEN %I', 'pgwf.need.' || v_need);
        END LOOP;
    END IF;
    RETURN QUERY
        SELECT j.job_id, j.lease_id, j.next_need, j.singleton_key, j.wait_for, j.available_at, j.lease_expires_at,
               j.payload, j.owner, j.priority, j.attempt, j.failures
        FROM unnest(v_ids) WITH ORDINALITY AS each (id, place) JOIN pgwf.jobs j ON j.job_id || '' = each.id
        WHERE j.job_id = ANY (v_ids)
        ORDER BY each.place;
END $$;

-- Lock a job that has one of these statuses and answer with its row; what waits for it is locked with it.
CREATE FUNCTION pgwf._lock_job_for_status(
    p_job_id TEXT, p_allowed_status TEXT[], p_require_available BOOLEAN DEFAULT FALSE, p_message TEXT DEFAULT NULL,
    p_sqlstate TEXT DEFAULT 'PW007'
) RETURNS pgwf.jobs LANGUAGE plpgsql AS $$
DECLARE
    v_job pgwf.jobs;
BEGIN
    PERFORM pgwf._not_null(p_job_id, 'job_id');
    PERFORM pgwf._lock_jobs(ARRAY[p_job_id]);
    PERFORM 1 FROM pgwf.jobs_with_status s
    WHERE s.job_id = p_job_id AND s.status = ANY (p_allowed_status)
      AND (NOT p_require_available OR s.available_at <= pgwf._now())
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM pgwf._refuse(p_job_id, p_sqlstate, coalesce(
            p_message, format('job %s does not have status %s', p_job_id, array_to_string(p_allowed_status, ' or '))));
    END IF;
    SELECT * INTO v_job FROM pgwf.jobs WHERE job_id = p_job_id;
    RETURN v_job;
END $$;

-- A refusal carries the job's id, state and whether it was purged, for clients that want more than words. That there is
-- no such job at all, or that it is cancelled, has a code of its own.
CREATE FUNCTION pgwf._refuse(p_job_id TEXT, p_sqlstate TEXT, p_message TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_job RECORD;
BEGIN
    SELECT r.state, r.purged_at IS NOT NULL AS purged INTO v_job FROM pgwf._jobs(ARRAY[p_job_id], pgwf._now()) r;
    RAISE EXCEPTION '%', p_message
        USING ERRCODE = CASE WHEN v_job.state IS NULL THEN 'PW001'
                             WHEN v_job.state = 'CANCELLED' AND p_sqlstate = 'PW005' THEN 'PW004' ELSE p_sqlstate END,
              DETAIL = jsonb_build_object('job_id', p_job_id, 'state', v_job.state, 'purged', v_job.purged)::TEXT;
END $$;

-- Lock a job that is actively leased with this lease.
CREATE FUNCTION pgwf._validate_active_lease(
    p_job_id TEXT, p_lease_id TEXT, p_expected_status TEXT DEFAULT 'ACTIVE', p_message TEXT DEFAULT NULL
) RETURNS pgwf.jobs LANGUAGE plpgsql AS $$
DECLARE
    v_message TEXT := coalesce(p_message, format('job %s is not actively leased by %s', p_job_id, p_lease_id));
    v_job     pgwf.jobs := pgwf._lock_job_for_status(p_job_id, ARRAY[p_expected_status], FALSE, v_message, 'PW003');
BEGIN
    IF v_job.lease_id IS DISTINCT FROM p_lease_id THEN
        PERFORM pgwf._refuse(p_job_id, 'PW003', v_message);
    END IF;
    RETURN v_job;
END $$;

-- Refuse to go on with a job whose cancel was requested, before anything else is said about it.
CREATE FUNCTION pgwf._refuse_cancelled(p_job_id TEXT, p_done TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pgwf.jobs WHERE job_id = p_job_id AND cancel_requested)
        OR EXISTS (SELECT 1 FROM pgwf.jobs_archive WHERE job_id = p_job_id AND outcome = 'CANCELLED') THEN
        PERFORM pgwf._refuse(p_job_id, 'PW004', format('job %s is cancelled and cannot be %s', p_job_id, p_done));
    END IF;
END $$;

CREATE FUNCTION pgwf.extend_lease(
    p_job_id TEXT, p_lease_id TEXT, p_worker_id TEXT, p_additional_seconds INTEGER DEFAULT 60
) RETURNS TIMESTAMPTZ LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now TIMESTAMPTZ;
    v_job pgwf.jobs;
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    PERFORM pgwf._check_seconds(p_additional_seconds, 'additional_seconds');
    PERFORM pgwf._not_null(p_job_id, 'job_id');
    PERFORM pgwf._lock_jobs(ARRAY[p_job_id]);
    v_now := pgwf._now();
    PERFORM pgwf._refuse_cancelled(p_job_id, 'extended');
    v_job := pgwf._validate_active_lease(
        p_job_id, p_lease_id, p_message => format('active lease not found for job %s', p_job_id));
    PERFORM pgwf._extend(ARRAY[ROW(p_job_id, p_lease_id, p_worker_id, NULL, NULL, NULL, NULL)::pgwf.report],
                         ARRAY[p_job_id], p_additional_seconds, v_now);
    RETURN v_now + make_interval(secs => p_additional_seconds);
END $$;

-- Send a locked job on: new need, new conditions, no lease. A new step has all its attempts before it. What it is to
-- wait for has been checked and locked.
CREATE FUNCTION pgwf._reschedule_locked_job(
    p_locked_job pgwf.jobs, p_worker_id TEXT, p_next_need TEXT, p_wait_for TEXT[], p_singleton_key TEXT,
    p_available_at TIMESTAMPTZ, p_trace_context JSONB DEFAULT '{}'
) RETURNS TABLE (job_id TEXT, next_need TEXT, wait_for TEXT[], available_at TIMESTAMPTZ) LANGUAGE plpgsql AS $$
DECLARE
    v_now  TIMESTAMPTZ := pgwf._now();
    v_wait TEXT[] := pgwf.normalize_wait_for(p_wait_for);
    v_job  pgwf.jobs;
BEGIN
    UPDATE pgwf.jobs j SET
        next_need = p_next_need, wait_for = v_wait, singleton_key = p_singleton_key,
        available_at = coalesce(p_available_at, v_now), lease_id = NULL, lease_worker = NULL,
        lease_expires_at = '-infinity', failures = 0, usage_units = p_locked_job.usage_units,
        work_started_at = p_locked_job.work_started_at,
        stage = CASE WHEN j.cancel_requested THEN 'cancelled'
                     ELSE pgwf._stage_of(v_wait, coalesce(p_available_at, v_now), p_singleton_key, v_now) END
    WHERE j.job_id = p_locked_job.job_id RETURNING j.* INTO v_job;
    PERFORM pgwf._emit_trace_event(
        v_job.job_id, 'reschedule_job', p_worker_id,
        p_trace_context || jsonb_build_object('worker_id', p_worker_id, 'next_need', p_next_need, 'wait_for', p_wait_for,
            'singleton_key', p_singleton_key, 'available_at', p_available_at),
        jsonb_build_object('next_need', v_job.next_need, 'wait_for', v_job.wait_for, 'singleton_key', v_job.singleton_key,
            'available_at', v_job.available_at, 'failures', 0, 'usage_units', v_job.usage_units,
            'work_started_at', v_job.work_started_at),
        pgwf._state_of(v_job, v_now));
    IF v_job.stage IN ('ready', 'parked') AND NOT v_job.cancel_requested THEN
        PERFORM pgwf._notify_need(v_job.next_need);
    END IF;
    PERFORM pgwf._elect(ARRAY[p_locked_job.singleton_key, p_singleton_key], v_now);
    IF v_wait <> '{}' THEN
        PERFORM pgwf._release_ended(v_wait, v_now);
    END IF;
    RETURN QUERY SELECT j.job_id, j.next_need, j.wait_for, j.available_at FROM pgwf.jobs j
        WHERE j.job_id = p_locked_job.job_id;
END $$;

-- Refuse bad input and lock, in the one order, everything a reschedule touches.
CREATE FUNCTION pgwf._prepare_reschedule(
    p_job_id TEXT, p_worker_id TEXT, p_next_need TEXT, p_wait_for TEXT[], p_singleton_key TEXT, p_available_at TIMESTAMPTZ
) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgwf._check_specs(ARRAY[ROW(
        p_job_id, p_next_need, NULL, p_worker_id, NULL, NULL, p_singleton_key, p_wait_for, NULL, NULL, p_available_at,
        NULL, NULL, NULL, NULL, NULL, NULL)::pgwf.job_spec]);
    IF p_wait_for <> '{}' THEN
        PERFORM pgwf._lock_graph();
    END IF;
    PERFORM pgwf._lock_jobs(ARRAY[p_job_id], pgwf.normalize_wait_for(p_wait_for));
    PERFORM pgwf._refuse_cancelled(p_job_id, 'rescheduled');
END $$;

CREATE FUNCTION pgwf._check_new_dependencies(p_job_id TEXT, p_wait_for TEXT[]) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_wait TEXT[] := pgwf.normalize_wait_for(p_wait_for);
    v_ids  TEXT[] := pgwf._unknown(v_wait);
BEGIN
    IF v_ids IS NOT NULL THEN
        PERFORM pgwf._raise_unknown(v_ids);
    END IF;
    v_ids := pgwf._cycle(p_job_id, v_wait);
    IF v_ids IS NOT NULL THEN
        PERFORM pgwf._raise_cycle(v_ids);
    END IF;
END $$;

CREATE FUNCTION pgwf.reschedule_job(
    p_job_id TEXT, p_lease_id TEXT, p_worker_id TEXT, p_next_need TEXT, p_wait_for TEXT[] DEFAULT '{}',
    p_singleton_key TEXT DEFAULT NULL, p_available_at TIMESTAMPTZ DEFAULT clock_timestamp()
) RETURNS TABLE (job_id TEXT, next_need TEXT, wait_for TEXT[], available_at TIMESTAMPTZ) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_job pgwf.jobs;
BEGIN
    PERFORM pgwf._prepare_reschedule(p_job_id, p_worker_id, p_next_need, p_wait_for, p_singleton_key, p_available_at);
    v_job := pgwf._validate_active_lease(
        p_job_id, p_lease_id, p_message => format('job %s is not currently leased with lease %s', p_job_id, p_lease_id));
    PERFORM pgwf._check_new_dependencies(p_job_id, p_wait_for);
    RETURN QUERY SELECT * FROM pgwf._reschedule_locked_job(
        v_job, p_worker_id, p_next_need, p_wait_for, p_singleton_key, p_available_at,
        jsonb_build_object('lease_id', p_lease_id));
END $$;

CREATE FUNCTION pgwf.reschedule_unheld_job(
    p_job_id TEXT, p_worker_id TEXT, p_next_need TEXT, p_wait_for TEXT[] DEFAULT '{}'::TEXT[],
    p_singleton_key TEXT DEFAULT NULL, p_available_at TIMESTAMPTZ DEFAULT clock_timestamp()
) RETURNS TABLE (job_id TEXT, next_need TEXT, wait_for TEXT[], available_at TIMESTAMPTZ) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_job pgwf.jobs;
BEGIN
    PERFORM pgwf._prepare_reschedule(p_job_id, p_worker_id, p_next_need, p_wait_for, p_singleton_key, p_available_at);
    v_job := pgwf._lock_job_for_status(p_job_id, ARRAY['READY', 'PENDING_JOBS'], TRUE,
        format('job %s is not available to reschedule without a lease', p_job_id), 'PW005');
    PERFORM pgwf._check_new_dependencies(p_job_id, p_wait_for);
    RETURN QUERY SELECT * FROM pgwf._reschedule_locked_job(
        v_job, p_worker_id, p_next_need, p_wait_for, p_singleton_key, p_available_at);
END $$;

-- Complete a job whose row, and what waits for it, is locked: archive, dependents, notifications and trace.
CREATE FUNCTION pgwf._complete_locked_job(
    p_locked_job pgwf.jobs, p_worker_id TEXT, p_trace_context JSONB DEFAULT '{}', p_output JSON DEFAULT NULL
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    v_now TIMESTAMPTZ := pgwf._now();
BEGIN
    PERFORM pgwf._finish(ARRAY[ROW(
        p_locked_job.job_id, 'COMPLETED', 'job_finished', p_worker_id, NULL, v_now, p_output, NULL,
        p_locked_job.failures, p_locked_job.usage_units, p_locked_job.work_started_at, p_locked_job.delivered_at,
        p_locked_job.acknowledged_at, p_locked_job.stopped_at, p_locked_job.rung,
        jsonb_build_object('worker_id', p_worker_id) || coalesce(p_trace_context, '{}'))::pgwf.job_end], TRUE, TRUE, v_now);
    RETURN TRUE;
END $$;

CREATE FUNCTION pgwf.complete_job(
    p_job_id TEXT, p_lease_id TEXT, p_worker_id TEXT, p_output JSON DEFAULT NULL
) RETURNS BOOLEAN LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    RETURN pgwf._complete_locked_job(
        pgwf._validate_active_lease(p_job_id, p_lease_id), p_worker_id, jsonb_build_object('lease_id', p_lease_id), p_output);
END $$;

CREATE FUNCTION pgwf.complete_unheld_job(
    p_job_id TEXT, p_worker_id TEXT, p_output JSON DEFAULT NULL
) RETURNS BOOLEAN LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    RETURN pgwf._complete_locked_job(
        pgwf._lock_job_for_status(p_job_id, ARRAY['READY', 'PENDING_JOBS'], TRUE,
            format('job %s is not available to complete without a lease', p_job_id), 'PW005'),
        p_worker_id, jsonb_build_object('completed_without_lease', TRUE), p_output);
END $$;

-- One settlement, with a refusal raised. Answers with the state the job came to.
CREATE FUNCTION pgwf._settle_one(p_settlement pgwf.settlement) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_verdict pgwf.verdict := (pgwf._settle(ARRAY[p_settlement]))[1];
BEGIN
    IF v_verdict.refusal = 'WrongState' THEN
        PERFORM pgwf._refuse(p_settlement.job_id, 'PW007', format('job %s was not asked to stop', p_settlement.job_id));
    ELSIF v_verdict.refusal IS NOT NULL THEN
        PERFORM pgwf._refuse(p_settlement.job_id, 'PW003',
            format('job %s is not actively leased by %s', p_settlement.job_id, p_settlement.lease_id));
    END IF;
    RETURN (SELECT state FROM pgwf._jobs(ARRAY[p_settlement.job_id], pgwf._now()));
END $$;

-- The work failed. With p_retry_seconds it is tried again after that time while it has attempts left; NULL: never.
CREATE FUNCTION pgwf.fail_job(
    p_job_id TEXT, p_lease_id TEXT, p_worker_id TEXT, p_error TEXT, p_retry_seconds DOUBLE PRECISION DEFAULT NULL
) RETURNS TEXT LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    RETURN pgwf._settle_one(ROW(p_job_id, p_lease_id, p_worker_id, 'fail', NULL, left(p_error, 10000), p_retry_seconds,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::pgwf.settlement);
END $$;

-- Give the job back untouched, as at shutdown: no failure is counted.
CREATE FUNCTION pgwf.release_job(
    p_job_id TEXT, p_lease_id TEXT, p_worker_id TEXT, p_reason TEXT DEFAULT NULL
) RETURNS TEXT LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    PERFORM pgwf._check_reason(p_reason);
    RETURN pgwf._settle_one(ROW(p_job_id, p_lease_id, p_worker_id, 'release', NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, p_reason, NULL, NULL, NULL, NULL, NULL, NULL)::pgwf.settlement);
END $$;

-- The handler stopped because it was asked to.
CREATE FUNCTION pgwf.acknowledge_cancel(
    p_job_id TEXT, p_lease_id TEXT, p_worker_id TEXT, p_note TEXT DEFAULT NULL
) RETURNS TEXT LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    PERFORM pgwf._check_reason(p_note);
    RETURN pgwf._settle_one(ROW(p_job_id, p_lease_id, p_worker_id, 'acknowledge', NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, p_note, NULL, NULL, 'flag', pgwf._now(), NULL, NULL)::pgwf.settlement);
END $$;

-- Request that a job be cancelled: at once while it waits; while it runs its lease stays, and it is never extended,
-- rescheduled or retried. Asking again changes nothing. Answers with the job's row.
CREATE FUNCTION pgwf.cancel_job(
    p_job_id TEXT, p_worker_id TEXT, p_reason TEXT DEFAULT NULL, p_force BOOLEAN DEFAULT FALSE
) RETURNS pgwf.jobs LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now     TIMESTAMPTZ := pgwf._now();
    v_job     pgwf.jobs;
    v_verdict pgwf.verdict;
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    PERFORM pgwf._not_null(p_job_id, 'job_id');
    PERFORM pgwf._not_null(p_force::TEXT, 'force');
    PERFORM pgwf._check_reason(p_reason);
    v_verdict := (pgwf._cancel(ARRAY[p_job_id], p_worker_id, p_reason, p_force, FALSE))[1];
    SELECT * INTO v_job FROM pgwf.jobs WHERE job_id = p_job_id;
    IF v_verdict.refusal = 'JobNotFound' THEN
        PERFORM pgwf._refuse(p_job_id, 'PW001', format('job %s does not exist', p_job_id));
    ELSIF v_verdict.refusal IS NOT NULL OR v_job.job_id IS NULL THEN
        PERFORM pgwf._refuse(
            p_job_id, 'PW006', format('job_id %s has already completed and cannot be cancelled', p_job_id));
    ELSIF NOT v_verdict.changed THEN
        PERFORM pgwf._emit_trace_event(
            p_job_id, 'job_cancel_requested', p_worker_id,
            jsonb_build_object('reason', p_reason, 'was_active', v_job.lease_expires_at > v_now,
                               'already_cancelled', TRUE, 'force', p_force),
            '{}', pgwf._state_of(v_job, v_now), p_reason);
    END IF;
    RETURN v_job;
END $$;
