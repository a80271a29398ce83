-- Cancelling: one, many, or all of a kind, and saying what a cancel would do without doing it.

-- Decide and carry out the cancel of these jobs. The first requester is never overwritten. A running job is asked to
-- stop and keeps its lease; with a reservation, or by force, it is cancelled now and its lease is fenced off. A verdict
-- without refusal that is not `changed` says that it is so already.
CREATE FUNCTION pgwf._cancel(
    p_ids TEXT[], p_by TEXT, p_reason TEXT, p_force BOOLEAN, p_running_only BOOLEAN
) RETURNS pgwf.verdict[] LANGUAGE plpgsql AS $$
DECLARE
    v_verdicts pgwf.verdict[];
    v_now      TIMESTAMPTZ;
    v_ended    TEXT[];
    v_asked    TEXT[];
BEGIN
    PERFORM 1 FROM pgwf.jobs WHERE job_id = ANY (p_ids) ORDER BY job_id || '' FOR NO KEY UPDATE;
    v_now := pgwf._now();
    WITH found AS (
        SELECT each.id, each.place, j.job_id IS NOT NULL AS live, j.cancel_requested, j.billing,
               pgwf._state_of(j, v_now) AS state
        FROM unnest(p_ids) WITH ORDINALITY AS each (id, place) LEFT JOIN pgwf.jobs j
            ON j.job_id || '' = each.id AND j.job_id = ANY (p_ids)
    ), judged AS (
        SELECT id, place, state <> 'ACTIVE' OR p_force OR billing = 'RESERVED' AS terminal, CASE
                   WHEN NOT live THEN (SELECT CASE WHEN outcome = 'CANCELLED' THEN 'already' ELSE 'CannotCancel' END
                                       FROM pgwf.jobs_archive a WHERE a.job_id = id
                                       UNION ALL SELECT 'JobNotFound' LIMIT 1)
                   WHEN state = 'FAILED' OR p_running_only AND state NOT IN ('ACTIVE', 'CANCELLED') THEN 'CannotCancel'
                   WHEN state = 'CANCELLED' OR cancel_requested AND NOT p_force THEN 'already'
               END AS finding
        FROM found
    )
    SELECT array_agg(ROW(id, nullif(finding, 'already'), NULL, finding IS NULL)::pgwf.verdict ORDER BY place),
           array_agg(id) FILTER (WHERE finding IS NULL AND terminal),
           array_agg(id) FILTER (WHERE finding IS NULL AND NOT terminal)
    INTO v_verdicts, v_ended, v_asked FROM judged;
    IF v_ended IS NOT NULL THEN
        PERFORM pgwf._cancel_now(v_ended, p_by, p_reason, p_force, v_now);
    END IF;
    IF v_asked IS NOT NULL THEN
        PERFORM pgwf._ask_to_stop(v_asked, p_by, p_reason, v_now);
    END IF;
    RETURN v_verdicts;
END $$;

-- Running jobs are asked to stop. The request is durable; the heartbeat brings it, a notification sooner.
CREATE FUNCTION pgwf._ask_to_stop(p_ids TEXT[], p_by TEXT, p_reason TEXT, p_now TIMESTAMPTZ) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
    WITH moved AS (
        UPDATE pgwf.jobs SET cancel_requested = TRUE, cancel_requested_at = p_now, cancel_requested_by = p_by,
            cancel_reason = p_reason
        WHERE job_id = ANY (p_ids) RETURNING job_id
    )
    INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state, reason)
    SELECT job_id, 'job_cancel_requested', p_by, p_now,
           jsonb_build_object('reason', p_reason, 'was_active', TRUE, 'already_cancelled', FALSE, 'force', FALSE),
           jsonb_build_object('cancel_requested_at', p_now, 'cancel_requested_by', p_by, 'cancel_reason', p_reason),
           'ACTIVE', p_reason
    FROM moved WHERE (SELECT trace FROM pgwf.settings WHERE only_row);
    PERFORM pgwf._notify_cancel(p_ids);
END $$;

-- The cancel is itself the end: cost settled, lease fenced off, its key kept while its handler may still run. `wait_for`
-- and the key stay on record; archival, with the next sweep, releases what waits for the job.
CREATE FUNCTION pgwf._cancel_now(p_ids TEXT[], p_by TEXT, p_reason TEXT, p_force BOOLEAN, p_now TIMESTAMPTZ) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    v_running TEXT[];
    v_keys    TEXT[];
    v_costly  pgwf.job_end[];
BEGIN
    SELECT array_agg(job_id) FILTER (WHERE lease_expires_at > p_now),
           array_agg(singleton_key) FILTER (WHERE singleton_key IS NOT NULL),
           array_agg(ROW(job_id, 'CANCELLED', NULL, p_by, NULL, NULL, NULL, NULL, NULL, usage_units, work_started_at,
                         NULL, NULL, NULL, NULL, NULL)::pgwf.job_end) FILTER (WHERE billing = 'RESERVED')
    INTO v_running, v_keys, v_costly FROM pgwf.jobs WHERE job_id = ANY (p_ids);
    IF v_costly IS NOT NULL THEN
        PERFORM pgwf._settle_costs(v_costly, p_now);
    END IF;
    IF v_running IS NOT NULL AND v_keys IS NOT NULL THEN
        PERFORM pgwf._hold_key(singleton_key, lease_id, lease_expires_at)
        FROM pgwf.jobs WHERE job_id = ANY (v_running) AND singleton_key IS NOT NULL;
    END IF;
    WITH moved AS (
        UPDATE pgwf.jobs j SET
            cancel_requested = TRUE,
            cancel_requested_at = CASE WHEN j.cancel_requested THEN j.cancel_requested_at ELSE p_now END,
            cancel_requested_by = CASE WHEN j.cancel_requested THEN j.cancel_requested_by ELSE p_by END,
            cancel_reason = CASE WHEN j.cancel_requested THEN j.cancel_reason ELSE p_reason END,
            last_error = CASE WHEN j.cancel_requested THEN j.cancel_reason ELSE p_reason END,
            lease_id = NULL, lease_worker = NULL, lease_expires_at = '-infinity', stopped_at = p_now,
            rung = CASE WHEN j.job_id = ANY (v_running) THEN 'forced' ELSE 'pending' END, stage = 'cancelled'
        WHERE j.job_id = ANY (p_ids)
        RETURNING j.job_id, j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.last_error, j.rung,
            j.billing, j.committed
    )
    INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state, reason)
    SELECT job_id, 'job_cancel_requested', p_by, p_now,
           jsonb_build_object('reason', p_reason, 'was_active', rung = 'forced', 'already_cancelled', FALSE, 'force', p_force),
           jsonb_build_object(
               'cancel_requested_at', cancel_requested_at, 'cancel_requested_by', cancel_requested_by,
               'cancel_reason', cancel_reason, 'last_error', last_error, 'rung', rung, 'stopped_at', p_now,
               'billing', billing, 'committed', committed),
           'CANCELLED', p_reason
    FROM moved WHERE (SELECT trace FROM pgwf.settings WHERE only_row);
    IF v_keys IS NOT NULL THEN
        PERFORM pgwf._elect(v_keys, p_now);
    END IF;
    IF v_running IS NOT NULL THEN
        PERFORM pgwf._notify_cancel(v_running);
    END IF;
    PERFORM pgwf._notify_sweep();
END $$;

-- Cancel by ids, or the next p_limit_jobs jobs of a need or an owner that wait (p_running: that run, too), behind job
-- p_after, the longest submitted first. One answer each: `changed` is true for the one caller whose cancel it was.
-- p_dry_run answers what would happen, by doing it and taking it back.
CREATE FUNCTION pgwf.cancel_jobs(
    p_worker_id TEXT, p_job_ids TEXT[] DEFAULT NULL, p_need TEXT DEFAULT NULL, p_owner TEXT DEFAULT NULL,
    p_reason TEXT DEFAULT NULL, p_force BOOLEAN DEFAULT FALSE, p_running BOOLEAN DEFAULT FALSE,
    p_running_only BOOLEAN DEFAULT FALSE, p_limit_jobs INTEGER DEFAULT 1000, p_after TEXT DEFAULT NULL,
    p_dry_run BOOLEAN DEFAULT FALSE
) RETURNS SETOF pgwf.answer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids     TEXT[] := p_job_ids;
    v_answers pgwf.answer[];
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    PERFORM pgwf._check_limit(p_limit_jobs, 'limit_jobs');
    PERFORM pgwf._check_reason(p_reason);
    IF p_force IS NULL OR p_running IS NULL OR p_running_only IS NULL OR p_dry_run IS NULL THEN
        PERFORM pgwf._not_null(NULL, 'force, running, running_only and dry_run');
    END IF;
    IF p_job_ids IS NULL THEN
        IF p_need IS NULL AND p_owner IS NULL THEN
            PERFORM pgwf._invalid('say which jobs to cancel: by ids, by need or by owner');
        END IF;
        v_ids := pgwf._cancellable(p_need, p_owner, p_force, p_running, p_limit_jobs, p_after, pgwf._now());
    END IF;
    IF NOT p_dry_run THEN
        RETURN QUERY SELECT * FROM pgwf._cancel_answers(v_ids, p_worker_id, p_reason, p_force, p_running_only);
        RETURN;
    END IF;
    BEGIN
        v_answers := ARRAY(
            SELECT a FROM pgwf._cancel_answers(v_ids, p_worker_id, p_reason, p_force, p_running_only) a);
        RAISE EXCEPTION 'taken back' USING ERRCODE = 'PW000';
    EXCEPTION WHEN SQLSTATE 'PW000' THEN
        RETURN QUERY SELECT * FROM unnest(v_answers);
    END;
END $$;

CREATE FUNCTION pgwf._cancel_answers(
    p_ids TEXT[], p_by TEXT, p_reason TEXT, p_force BOOLEAN, p_running_only BOOLEAN
) RETURNS SETOF pgwf.answer LANGUAGE plpgsql AS $$
DECLARE
    v_verdicts pgwf.verdict[];
BEGIN
    v_verdicts := pgwf._cancel(
        ARRAY(SELECT id FROM unnest(p_ids) WITH ORDINALITY AS each (id, place)
              WHERE id IS NOT NULL GROUP BY id ORDER BY min(place)), p_by, p_reason, p_force, p_running_only);
    IF cardinality(p_ids) > cardinality(v_verdicts) THEN  -- named twice: only the first time did it change anything
        SELECT array_agg(ROW(v.job_id, v.refusal, NULL, v.changed AND each.nth = 1)::pgwf.verdict ORDER BY each.place)
        INTO v_verdicts
        FROM (SELECT id, place, row_number() OVER (PARTITION BY id ORDER BY place) AS nth
              FROM unnest(p_ids) WITH ORDINALITY AS named (id, place)) each
        JOIN unnest(v_verdicts) v ON v.job_id = each.id;
    END IF;
    RETURN QUERY SELECT * FROM pgwf._answers(v_verdicts, pgwf._now());
END $$;

-- The ids of the next jobs of a need or an owner that such a cancel would change.
CREATE FUNCTION pgwf._cancellable(
    p_need TEXT, p_owner TEXT, p_force BOOLEAN, p_running BOOLEAN, p_limit INTEGER, p_after TEXT, p_now TIMESTAMPTZ
) RETURNS TEXT[] LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_states TEXT[] := ARRAY['READY', 'PENDING_JOBS', 'AWAITING_FUTURE'] || CASE WHEN p_running THEN ARRAY['ACTIVE'] END;
    v_after  BIGINT := coalesce((SELECT seq FROM pgwf.jobs WHERE job_id = p_after),
                                (SELECT seq FROM pgwf.jobs_archive WHERE job_id = p_after), 0);
BEGIN
    IF p_need IS NOT NULL THEN
        RETURN ARRAY(
            SELECT j.job_id FROM pgwf.jobs j
            WHERE j.next_need = p_need AND j.seq > v_after AND (p_owner IS NULL OR j.owner = p_owner)
              AND (p_force OR NOT j.cancel_requested) AND pgwf._state_of(j, p_now) = ANY (v_states)
            ORDER BY j.seq LIMIT p_limit);
    END IF;
    RETURN ARRAY(
        SELECT j.job_id FROM pgwf.jobs j
        WHERE j.owner = p_owner AND j.seq > v_after
          AND (p_force OR NOT j.cancel_requested) AND pgwf._state_of(j, p_now) = ANY (v_states)
        ORDER BY j.seq LIMIT p_limit);
END $$;

CREATE FUNCTION pgwf._check_reason(p_reason TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(p_reason) > 40000 THEN
        PERFORM pgwf._invalid('reason cannot be longer than 40000 bytes');
    END IF;
END $$;
