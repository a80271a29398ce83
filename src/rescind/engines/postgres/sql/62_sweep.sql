-- The sweep: what time alone has decided, moved in bounded steps. Any number may run at once; none waits for another.

-- Cancelled jobs go to the archive and release what waits for them; those cancelled with them follow in the same call,
-- generation by generation. A job one of whose dependents is in other hands this moment is left for the next time.
CREATE FUNCTION pgwf._archive_cancelled(p_worker_id TEXT, p_limit INTEGER, p_now TIMESTAMPTZ) RETURNS INTEGER
LANGUAGE plpgsql AS $$
DECLARE
    v_count INTEGER := 0;
    v_ids   TEXT[];
BEGIN
    WHILE v_count < p_limit LOOP
        v_ids := ARRAY(
            SELECT job_id FROM pgwf.jobs WHERE stage = 'cancelled' ORDER BY seq LIMIT p_limit - v_count
            FOR UPDATE SKIP LOCKED);
        v_ids := v_ids || ARRAY(
            SELECT job_id FROM pgwf.jobs WHERE stage = 'leased' AND lease_expires_at <= p_now AND cancel_requested
            ORDER BY lease_expires_at LIMIT p_limit - v_count FOR UPDATE SKIP LOCKED);
        v_ids := pgwf._free_to_end(v_ids[1:p_limit - v_count]);
        EXIT WHEN v_ids = '{}';
        v_ids := pgwf._move_each('_archive_jobs', v_ids, ARRAY[p_worker_id], p_now);
        EXIT WHEN v_ids = '{}';
        v_count := v_count + cardinality(v_ids);
    END LOOP;
    RETURN v_count;
END $$;

CREATE FUNCTION pgwf._archive_jobs(p_ids TEXT[], p_worker TEXT[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgwf._finish(ARRAY(
        SELECT ROW(j.job_id, 'CANCELLED', 'job_cancel_archived', p_worker[1], NULL,
                   coalesce(j.stopped_at, nullif(j.lease_expires_at, '-infinity'), p_now), NULL,
                   j.cancel_reason, j.failures, j.usage_units, j.work_started_at, j.delivered_at,
                   j.acknowledged_at, coalesce(j.stopped_at, nullif(j.lease_expires_at, '-infinity'), p_now),
                   coalesce(j.rung, 'lapsed'), jsonb_build_object('worker_id', p_worker[1]))::pgwf.job_end
        FROM pgwf.jobs j WHERE j.job_id = ANY (p_ids)), TRUE, TRUE, p_now);
END $$;

CREATE FUNCTION pgwf.archive_cancelled_jobs(p_worker_id TEXT, p_limit INTEGER DEFAULT 100) RETURNS INTEGER
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_started TIMESTAMPTZ := clock_timestamp();
    v_count   INTEGER;
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    PERFORM pgwf._check_limit(p_limit, 'limit');
    v_count := pgwf._archive_cancelled(p_worker_id, p_limit, pgwf._now());
    IF v_count > 0 THEN
        PERFORM pgwf._emit_trace_event(
            NULL, 'job_cancel_archived_run', p_worker_id, jsonb_build_object('limit', p_limit),
            jsonb_build_object('count', v_count, 'limit', p_limit, 'worker_id', p_worker_id, 'duration_ms',
                round(1000 * extract(epoch FROM clock_timestamp() - v_started), 3)));
    END IF;
    RETURN v_count;
END $$;

-- Jobs that were free to start for longer than the policy of their need allows and never were: they have failed.
CREATE FUNCTION pgwf._time_out(p_limit INTEGER, p_now TIMESTAMPTZ) RETURNS INTEGER LANGUAGE plpgsql AS $$
DECLARE
    v_policy RECORD;
    v_then   TIMESTAMPTZ;
    v_ids    TEXT[];
    v_count  INTEGER := 0;
BEGIN
    FOR v_policy IN
        SELECT need, (rules ->> 'activation_timeout_seconds')::DOUBLE PRECISION AS seconds FROM pgwf.policies
        WHERE rules ->> 'activation_timeout_seconds' IS NOT NULL
    LOOP
        v_then := p_now - make_interval(secs => v_policy.seconds);
        v_ids := pgwf._free_to_end(ARRAY(
            SELECT job_id FROM pgwf.jobs
            WHERE next_need = v_policy.need AND stage IN ('ready', 'parked') AND attempt = 0
              AND available_at < v_then AND created_at < v_then AND (unblocked_at IS NULL OR unblocked_at < v_then)
            ORDER BY seq LIMIT p_limit FOR UPDATE SKIP LOCKED));
        CONTINUE WHEN v_ids = '{}';
        v_count := v_count + cardinality(pgwf._move_each('_time_out_jobs', v_ids, NULL, p_now));
    END LOOP;
    RETURN v_count;
END $$;

CREATE FUNCTION pgwf._time_out_jobs(p_ids TEXT[], p_unused TEXT[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_words CONSTANT TEXT := 'Job timed out before processing could start';
BEGIN
    PERFORM pgwf._finish(ARRAY(
        SELECT ROW(j.job_id, 'FAILED', 'job_timed_out', 'rescind:sweep', v_words, p_now, NULL, v_words, j.failures,
                   j.usage_units, j.work_started_at, NULL, NULL, NULL, NULL, NULL)::pgwf.job_end
        FROM pgwf.jobs j WHERE j.job_id = ANY (p_ids)), TRUE, TRUE, p_now);
END $$;

-- Finished jobs past their retention lose payload and output; the audit record stays.
CREATE FUNCTION pgwf._purge(p_limit INTEGER, p_retention INTERVAL, p_now TIMESTAMPTZ) RETURNS INTEGER LANGUAGE plpgsql AS $$
DECLARE
    v_count INTEGER;
BEGIN
    WITH moved AS (
        UPDATE pgwf.jobs_archive a SET payload = 'null', output = 'null', purged_at = p_now
        WHERE a.job_id = ANY (ARRAY(
            SELECT job_id FROM pgwf.jobs_archive WHERE purged_at IS NULL AND finished_at <= p_now - p_retention
            ORDER BY finished_at LIMIT p_limit FOR UPDATE SKIP LOCKED))
        RETURNING a.job_id, a.outcome
    ), told AS (
        INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state)
        SELECT job_id, 'job_purged', 'rescind:sweep', p_now, '{}', jsonb_build_object('purged_at', p_now), outcome
        FROM moved WHERE (SELECT trace FROM pgwf.settings WHERE only_row)
    )
    SELECT count(*) INTO v_count FROM moved;
    RETURN v_count;
END $$;

-- Idempotency keys that have served their 30 days, and workers not heard of for a day.
CREATE FUNCTION pgwf._forget(p_limit INTEGER, p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_then TIMESTAMPTZ := p_now - INTERVAL '30 days';
BEGIN
    WITH live AS (
        UPDATE pgwf.jobs j SET idempotency_key = NULL, body_hash = NULL
        WHERE j.job_id = ANY (ARRAY(
            SELECT job_id FROM pgwf.jobs WHERE idempotency_key IS NOT NULL AND created_at < v_then
            LIMIT p_limit FOR UPDATE SKIP LOCKED))
        RETURNING j.job_id, pgwf._state_of(j, p_now) AS state
    ), archived AS (
        UPDATE pgwf.jobs_archive a SET idempotency_key = NULL, body_hash = NULL
        WHERE a.job_id = ANY (ARRAY(
            SELECT job_id FROM pgwf.jobs_archive WHERE idempotency_key IS NOT NULL AND created_at < v_then
            LIMIT p_limit FOR UPDATE SKIP LOCKED))
        RETURNING a.job_id, a.outcome
    )
    INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state)
    SELECT job_id, 'key_forgotten', 'rescind:sweep', p_now, '{}', '{"idempotency_key": null, "body_hash": null}', state
    FROM (SELECT * FROM live UNION ALL SELECT * FROM archived) each WHERE (SELECT trace FROM pgwf.settings WHERE only_row);
    DELETE FROM pgwf.workers WHERE worker_id = ANY (ARRAY(
        SELECT worker_id FROM pgwf.workers WHERE seen_at < p_now - INTERVAL '1 day' FOR UPDATE SKIP LOCKED));
END $$;

-- Do what time has decided, so many jobs of each kind at most; `more` says that one kind reached that number.
CREATE FUNCTION pgwf.sweep(
    p_worker_id TEXT, p_limit INTEGER DEFAULT 500, p_retention INTERVAL DEFAULT '30 days',
    OUT lapsed INTEGER, OUT archived INTEGER, OUT timed_out INTEGER, OUT purged INTEGER, OUT more BOOLEAN
) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    PERFORM pgwf._check_limit(p_limit, 'limit');
    IF p_retention IS NULL OR p_retention < INTERVAL '0' THEN
        PERFORM pgwf._invalid('retention cannot be NULL or negative');
    END IF;
    PERFORM pgwf._wake_due(p_limit, '{}', pgwf._now()), pgwf._elect_due(p_limit, pgwf._now());
    lapsed := pgwf._lapse(p_limit, '{}', pgwf._now());
    timed_out := pgwf._time_out(p_limit, pgwf._now());
    archived := pgwf._archive_cancelled(p_worker_id, p_limit, pgwf._now());
    purged := pgwf._purge(p_limit, p_retention, pgwf._now());
    PERFORM pgwf._forget(p_limit, pgwf._now());
    more := greatest(lapsed, timed_out, archived, purged) >= p_limit;
END $$;
