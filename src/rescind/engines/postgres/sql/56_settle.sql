-- A worker's last word on its leases, and new work in the same call.

DROP TYPE IF EXISTS pgwf.settlement;
CREATE TYPE pgwf.settlement AS (
    job_id TEXT, lease_id TEXT, worker TEXT, kind TEXT, output JSON, error TEXT, retry_seconds DOUBLE PRECISION,
    need TEXT, wait_for TEXT[], singleton_key TEXT, available_at TIMESTAMPTZ, delay_seconds DOUBLE PRECISION,
    reason TEXT, units BIGINT, work_started BOOLEAN, rung TEXT, acknowledged_at TIMESTAMPTZ, still_running BOOLEAN,
    output_text TEXT
);
COMMENT ON TYPE pgwf.settlement IS
    'What settle_jobs takes in JSON. kind: complete, fail, reschedule, release, acknowledge. A fail without '
    'retry_seconds is final.';

CREATE FUNCTION pgwf._check_settlements(p_settlements pgwf.settlement[]) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_flaw TEXT := (
        SELECT coalesce(min(each.flaw), CASE WHEN count(DISTINCT each.job_id) < count(*)
                        THEN 'a job can be settled only once in a call' END)
        FROM (
            SELECT s.job_id, CASE
                WHEN s.job_id IS NULL OR s.lease_id IS NULL OR s.worker IS NULL OR s.kind IS NULL
                    THEN 'job_id, lease_id, worker and kind of a settlement cannot be NULL'
                WHEN s.kind NOT IN ('complete', 'fail', 'reschedule', 'release', 'acknowledge')
                    THEN 'no such kind of settlement: ' || left(s.kind, 100)
                WHEN s.kind = 'fail' AND NOT s.retry_seconds BETWEEN 0 AND 315360000
                    THEN 'retry_seconds must be from 0 to ten years'
                WHEN s.kind = 'reschedule' THEN pgwf._flaw(ROW(
                    s.job_id, s.need, NULL, s.worker, NULL, NULL, s.singleton_key, s.wait_for, NULL, NULL, s.available_at,
                    s.delay_seconds, NULL, NULL, NULL, NULL, NULL)::pgwf.job_spec)
                WHEN s.units < 0 OR s.units > 9007199254740992 THEN 'units must be from 0 to 2^53'
                WHEN NOT pgwf._is_moment(s.acknowledged_at) THEN 'acknowledged_at must be a time in the years 1 to 9999'
                WHEN s.rung NOT IN ('flag', 'raised', 'abandoned') THEN 'no such rung: ' || left(s.rung, 100)
            END AS flaw
            FROM unnest(p_settlements) s) each);
BEGIN
    IF v_flaw IS NOT NULL THEN
        PERFORM pgwf._invalid(v_flaw);
    END IF;
END $$;

-- Settle leases. One verdict per settlement; a refused one has changed nothing and undoes only itself. One look at the
-- locked jobs decides all of them: which are refused, which end and how, and what else there is to do.
CREATE FUNCTION pgwf._settle(p_settlements pgwf.settlement[]) RETURNS pgwf.verdict[]
LANGUAGE plpgsql AS $$
DECLARE
    v_ids        TEXT[] := ARRAY(SELECT job_id FROM unnest(p_settlements));
    v_wait_for   TEXT[] := ARRAY(SELECT DISTINCT unnest(wait_for) FROM unnest(p_settlements) WHERE kind = 'reschedule');
    v_dependents BOOLEAN;
    v_now        TIMESTAMPTZ;
    v            RECORD;
BEGIN
    PERFORM pgwf._check_settlements(p_settlements);
    IF v_wait_for <> '{}' THEN
        PERFORM pgwf._lock_graph();
    END IF;
    v_dependents := pgwf._lock_jobs(v_ids, v_wait_for);
    v_now := pgwf._now();
    WITH held AS (
        SELECT s.*, j.cancel_requested, j.cancel_reason, j.failures, j.delivered_at, j.acknowledged_at AS seen,
               j.stopped_at, j.rung AS reached, j.usage_units, j.usage_before, j.work_started_at, j.billing, CASE
                   WHEN j.job_id IS NULL AND NOT EXISTS (
                       SELECT 1 FROM pgwf.jobs_archive a WHERE a.job_id = s.job_id LIMIT 1) THEN 'JobNotFound'
                   WHEN (j.lease_id = s.lease_id AND j.lease_expires_at > v_now) IS NOT TRUE THEN 'LeaseLost'
                   WHEN s.kind = 'reschedule' AND j.cancel_requested THEN 'JobCancelled'
                   WHEN s.kind = 'acknowledge' AND NOT j.cancel_requested THEN 'WrongState'
               END AS refusal, CASE
                   WHEN s.kind = 'complete' THEN 'COMPLETED'
                   WHEN s.kind = 'reschedule' THEN NULL
                   WHEN j.cancel_requested THEN 'CANCELLED'
                   WHEN s.kind = 'fail' AND (s.retry_seconds IS NULL OR j.failures + 1 >= j.max_attempts) THEN 'FAILED'
               END AS outcome
        FROM unnest(p_settlements) WITH ORDINALITY s LEFT JOIN pgwf.jobs j
            ON j.job_id || '' = s.job_id AND j.job_id = ANY (v_ids)
    )
    SELECT
        array_agg(ROW(job_id, refusal, NULL, TRUE)::pgwf.verdict ORDER BY ordinality) AS verdicts,
        array_agg(job_id) FILTER (WHERE refusal IS NULL) AS accepted,
        array_agg(lease_id) FILTER (WHERE refusal IS NOT NULL AND still_running IS NOT TRUE) AS stopped,
        bool_or(still_running AND refusal IS NULL) AS hold,
        bool_or(kind IN ('fail', 'release') AND refusal IS NULL AND outcome IS NULL) AS gives_back,
        bool_or(kind = 'reschedule' AND refusal IS NULL) AS reschedules,
        bool_or(billing = 'RESERVED') AS costs,
        array_agg(ROW(
            job_id, outcome,
            CASE kind WHEN 'complete' THEN 'job_finished' WHEN 'fail' THEN 'job_failed' WHEN 'release' THEN 'job_released'
                ELSE 'cancel_acknowledged' END,
            worker, CASE kind WHEN 'complete' THEN NULL WHEN 'fail' THEN coalesce(error, '') ELSE reason END, v_now,
            CASE WHEN kind = 'complete' THEN coalesce(output_text::JSON, output) END,
            CASE outcome WHEN 'CANCELLED' THEN cancel_reason WHEN 'FAILED' THEN coalesce(error, '') END,
            failures + CASE outcome WHEN 'FAILED' THEN 1 ELSE 0 END,
            greatest(usage_units, usage_before + coalesce(units, 0)),
            coalesce(work_started_at, CASE WHEN work_started THEN v_now END),
            CASE outcome WHEN 'CANCELLED' THEN coalesce(least(delivered_at, acknowledged_at), v_now) ELSE delivered_at END,
            CASE outcome WHEN 'CANCELLED' THEN acknowledged_at ELSE seen END,
            CASE outcome WHEN 'CANCELLED' THEN v_now ELSE stopped_at END,
            CASE outcome WHEN 'CANCELLED' THEN coalesce(rung, 'flag') ELSE reached END,
            jsonb_build_object('lease_id', lease_id, 'worker_id', worker))::pgwf.job_end
        ) FILTER (WHERE refusal IS NULL AND outcome IS NOT NULL) AS ends
    INTO v FROM held;
    IF v.stopped IS NOT NULL THEN  -- those handlers have ended: what their fenced leases still held is free
        PERFORM pgwf._free_keys(v.stopped, v_now);
    END IF;
    IF v.hold THEN
        PERFORM pgwf._hold_keys_of(p_settlements, v.accepted);
    END IF;
    IF v.ends IS NOT NULL THEN
        PERFORM pgwf._finish(v.ends, v_dependents, v.costs, v_now);
    END IF;
    IF v.gives_back THEN
        PERFORM pgwf._settle_returns(p_settlements, v.accepted, v_now);
    END IF;
    IF v.reschedules THEN
        RETURN pgwf._settle_reschedules(p_settlements, v.verdicts, v_now);
    END IF;
    RETURN v.verdicts;
END $$;

CREATE FUNCTION pgwf._lock_graph() RETURNS VOID LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('pgwf:graph', 0))
$$;

-- Handlers that were given up and have not ended keep their keys until their leases would have ended.
CREATE FUNCTION pgwf._hold_keys_of(p_settlements pgwf.settlement[], p_ids TEXT[]) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgwf._hold_key(j.singleton_key, j.lease_id, j.lease_expires_at)
    FROM unnest(p_settlements) s JOIN pgwf.jobs j ON j.job_id || '' = s.job_id
    WHERE s.still_running AND j.job_id = ANY (p_ids) AND j.singleton_key IS NOT NULL;
END $$;

-- Those that give their job back: failed with attempts left, or released untouched as at shutdown.
CREATE FUNCTION pgwf._settle_returns(p_settlements pgwf.settlement[], p_ids TEXT[], p_now TIMESTAMPTZ) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    v_needs TEXT[];
    v_keys  TEXT[];
BEGIN
    WITH given AS (
        SELECT s.*, CASE WHEN s.kind = 'fail' THEN p_now + make_interval(secs => s.retry_seconds) END AS again_at
        FROM unnest(p_settlements) s WHERE s.kind IN ('fail', 'release') AND s.job_id = ANY (p_ids)
    ), moved AS (
        UPDATE pgwf.jobs j SET
            lease_id = NULL, lease_worker = NULL, lease_expires_at = '-infinity',
            failures = j.failures + CASE WHEN g.kind = 'fail' THEN 1 ELSE 0 END,
            last_error = CASE WHEN g.kind = 'fail' THEN coalesce(g.error, '') ELSE j.last_error END,
            available_at = coalesce(g.again_at, j.available_at),
            usage_units = greatest(j.usage_units, j.usage_before + coalesce(g.units, 0)),
            work_started_at = coalesce(j.work_started_at, CASE WHEN g.work_started THEN p_now END),
            stage = pgwf._stage_of(j.wait_for, coalesce(g.again_at, j.available_at), j.singleton_key, p_now)
        FROM given g WHERE j.job_id = ANY (p_ids) AND j.job_id || '' = g.job_id
        RETURNING j AS job, g.kind, g.worker, g.reason, g.error, g.lease_id
    ), told AS (
        INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state, reason)
        SELECT (job).job_id, CASE kind WHEN 'fail' THEN 'job_failed' ELSE 'job_released' END, worker, p_now,
               jsonb_build_object('lease_id', lease_id),
               jsonb_strip_nulls(jsonb_build_object(
                   'failures', (job).failures, 'last_error', (job).last_error, 'available_at', (job).available_at,
                   'usage_units', (job).usage_units, 'work_started_at', (job).work_started_at)),
               pgwf._state_of(job, p_now), CASE kind WHEN 'fail' THEN coalesce(error, '') ELSE reason END
        FROM moved WHERE (SELECT trace FROM pgwf.settings WHERE only_row)
    )
    SELECT array_agg((job).next_need) FILTER (WHERE (job).stage IN ('ready', 'parked')),
           array_agg((job).singleton_key) FILTER (WHERE (job).singleton_key IS NOT NULL)
    INTO v_needs, v_keys FROM moved;
    PERFORM pgwf._notify_needs(v_needs);
    IF v_keys IS NOT NULL THEN
        PERFORM pgwf._elect(v_keys, p_now);
    END IF;
END $$;

-- Those that send their job on. What it is to wait for may be unknown or wait for it: that is a refusal like any other.
CREATE FUNCTION pgwf._settle_reschedules(
    p_settlements pgwf.settlement[], p_verdicts pgwf.verdict[], p_now TIMESTAMPTZ
) RETURNS pgwf.verdict[] LANGUAGE plpgsql AS $$
DECLARE
    v_settlement pgwf.settlement;
    v_job        pgwf.jobs;
    v_wait_for   TEXT[];
    v_ids        TEXT[];
    v_refusal    TEXT;
BEGIN
    FOR i IN 1 .. cardinality(p_settlements) LOOP
        v_settlement := p_settlements[i];
        CONTINUE WHEN v_settlement.kind <> 'reschedule' OR (p_verdicts[i]).refusal IS NOT NULL;
        SELECT * INTO v_job FROM pgwf.jobs WHERE job_id = v_settlement.job_id;
        v_wait_for := pgwf.normalize_wait_for(v_settlement.wait_for);
        v_refusal := 'UnknownDependency';
        v_ids := pgwf._unknown(v_wait_for);
        IF v_ids IS NULL THEN
            v_refusal := 'DependencyCycle';
            v_ids := pgwf._cycle(v_job.job_id, v_wait_for);
        END IF;
        IF v_ids IS NOT NULL THEN
            p_verdicts[i] := ROW(v_job.job_id, v_refusal, v_ids, FALSE);
            CONTINUE;
        END IF;
        v_job.usage_units := greatest(v_job.usage_units, v_job.usage_before + coalesce(v_settlement.units, 0));
        v_job.work_started_at := coalesce(v_job.work_started_at, CASE WHEN v_settlement.work_started THEN p_now END);
        PERFORM pgwf._reschedule_locked_job(
            v_job, v_settlement.worker, v_settlement.need, v_wait_for, v_settlement.singleton_key,
            coalesce(v_settlement.available_at, p_now) + make_interval(secs => coalesce(v_settlement.delay_seconds, 0)),
            jsonb_build_object('lease_id', v_settlement.lease_id));
    END LOOP;
    RETURN p_verdicts;
END $$;

-- End leases and, in the same call, take new work. One answer per settlement, then one per job claimed, in order.
CREATE FUNCTION pgwf.settle_jobs(
    p_settlements JSON, p_worker_id TEXT DEFAULT NULL, p_worker_caps TEXT[] DEFAULT NULL,
    p_lease_seconds DOUBLE PRECISION DEFAULT 60, p_limit_jobs INTEGER DEFAULT 1
) RETURNS SETOF pgwf.answer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_verdicts pgwf.verdict[];
    v_claimed  TEXT[];
BEGIN
    IF p_worker_caps IS NOT NULL THEN
        PERFORM pgwf._check_claim(p_worker_id, p_worker_caps, p_lease_seconds, p_limit_jobs);
    END IF;
    IF p_settlements::TEXT <> '[]' THEN
        v_verdicts := pgwf._settle(
            ARRAY(SELECT s FROM json_populate_recordset(NULL::pgwf.settlement, p_settlements) s));
        RETURN QUERY SELECT * FROM pgwf._answers(v_verdicts, pgwf._now());
    END IF;
    IF p_worker_caps IS NOT NULL THEN
        v_claimed := pgwf._claim(p_worker_id, p_worker_caps, p_lease_seconds, p_limit_jobs);
        IF v_claimed <> '{}' THEN
            RETURN QUERY SELECT * FROM pgwf._claimed(v_claimed, pgwf._now());
        END IF;
    END IF;
END $$;

CREATE FUNCTION pgwf._check_claim(p_worker_id TEXT, p_needs TEXT[], p_lease_seconds DOUBLE PRECISION, p_limit INTEGER)
RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    IF coalesce(cardinality(p_needs), 0) = 0 THEN
        PERFORM pgwf._invalid('worker_caps cannot be empty');
    ELSIF EXISTS (SELECT 1 FROM unnest(p_needs) need WHERE need IS NULL) THEN
        RAISE EXCEPTION 'worker_caps cannot contain NULL' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM pgwf._check_seconds(p_lease_seconds, 'lease_seconds');
    PERFORM pgwf._check_limit(p_limit, 'limit_jobs');
END $$;
