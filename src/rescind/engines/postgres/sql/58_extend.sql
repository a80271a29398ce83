-- Heartbeats: a worker is alive, its leases go on, and it learns what is to stop.

DROP TYPE IF EXISTS pgwf.report;
CREATE TYPE pgwf.report AS (
    job_id TEXT, lease_id TEXT, worker TEXT, progress DOUBLE PRECISION, message TEXT, units BIGINT, work_started BOOLEAN
);
COMMENT ON TYPE pgwf.report IS
    'What extend_jobs takes in JSON for each lease. `units` counts from the start of the attempt, so that a report '
    'sent twice counts once.';

-- One heartbeat for all leases of a worker. Progress and usage are written down; a lease goes on unless p_lease_seconds
-- is NULL or its job was asked to stop: then that this was told is written down instead. One answer per report.
CREATE FUNCTION pgwf.extend_jobs(
    p_worker JSON, p_reports JSON, p_lease_seconds DOUBLE PRECISION DEFAULT 60
) RETURNS SETOF pgwf.answer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now     TIMESTAMPTZ;
    v_reports pgwf.report[] := ARRAY(SELECT r FROM json_populate_recordset(NULL::pgwf.report, p_reports) r);
    v_ids     TEXT[] := ARRAY(SELECT job_id FROM unnest(v_reports));
    v_held    TEXT[];
BEGIN
    IF p_lease_seconds IS NOT NULL THEN
        PERFORM pgwf._check_seconds(p_lease_seconds, 'lease_seconds');
    END IF;
    PERFORM pgwf._check_reports(v_reports);
    PERFORM pgwf._seen(json_populate_record(NULL::pgwf.workers, p_worker), pgwf._now());
    PERFORM 1 FROM pgwf.jobs WHERE job_id = ANY (v_ids) ORDER BY job_id || '' FOR NO KEY UPDATE;
    v_now := pgwf._now();
    v_held := ARRAY(
        SELECT j.job_id FROM unnest(v_reports) r
        JOIN pgwf.jobs j ON j.job_id || '' = r.job_id AND j.lease_id = r.lease_id AND j.lease_expires_at > v_now
        WHERE j.job_id = ANY (v_ids));
    PERFORM pgwf._extend(v_reports, v_held, p_lease_seconds, v_now);
    RETURN QUERY SELECT * FROM pgwf._answers(ARRAY(
        SELECT ROW(r.job_id, CASE
                   WHEN r.job_id = ANY (v_held) THEN NULL
                   WHEN EXISTS (SELECT 1 FROM pgwf.jobs j WHERE j.job_id = r.job_id LIMIT 1)
                       OR EXISTS (SELECT 1 FROM pgwf.jobs_archive a WHERE a.job_id = r.job_id LIMIT 1) THEN 'LeaseLost'
                   ELSE 'JobNotFound' END, NULL, TRUE)::pgwf.verdict
        FROM unnest(v_reports) WITH ORDINALITY r ORDER BY r.ordinality), v_now);
END $$;

CREATE FUNCTION pgwf._check_reports(p_reports pgwf.report[]) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM unnest(p_reports) WHERE job_id IS NULL OR lease_id IS NULL OR worker IS NULL) THEN
        PERFORM pgwf._invalid('job_id, lease_id and worker of a report cannot be NULL');
    ELSIF EXISTS (SELECT 1 FROM unnest(p_reports) WHERE units < 0 OR units > 9007199254740992) THEN
        PERFORM pgwf._invalid('units must be from 0 to 2^53');
    ELSIF EXISTS (SELECT 1 FROM unnest(p_reports) WHERE NOT progress BETWEEN 0 AND 1) THEN
        PERFORM pgwf._invalid('progress must be from 0 to 1');
    ELSIF (SELECT count(DISTINCT job_id) < count(*) FROM unnest(p_reports)) THEN
        PERFORM pgwf._invalid('a job can be reported only once in a call');
    END IF;
END $$;

CREATE FUNCTION pgwf._seen(p_worker pgwf.workers, p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF p_worker.worker_id IS NULL THEN
        RETURN;
    END IF;
    PERFORM pgwf._check_text(p_worker.worker_id, 'worker_id', 512);
    IF NOT pgwf._is_moment(p_worker.started_at) THEN
        PERFORM pgwf._invalid('started_at must be a time in the years 1 to 9999');
    END IF;
    INSERT INTO pgwf.workers (worker_id, needs, slots, host, pid, started_at, seen_at)
    VALUES (p_worker.worker_id, coalesce(p_worker.needs, '{}'), coalesce(p_worker.slots, 1),
            coalesce(p_worker.host, ''), coalesce(p_worker.pid, 0), coalesce(p_worker.started_at, p_now), p_now)
    ON CONFLICT (worker_id) DO UPDATE SET
        needs = excluded.needs, slots = excluded.slots, host = excluded.host, pid = excluded.pid,
        started_at = excluded.started_at, seen_at = excluded.seen_at;
END $$;

-- Write reports down and keep the leases. Progress is not history: it would drown it.
CREATE FUNCTION pgwf._extend(
    p_reports pgwf.report[], p_held TEXT[], p_lease_seconds DOUBLE PRECISION, p_now TIMESTAMPTZ
) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    WITH before AS (
        SELECT job_id, lease_expires_at, delivered_at, usage_units, work_started_at
        FROM pgwf.jobs WHERE job_id = ANY (p_held)
    ), moved AS (
        UPDATE pgwf.jobs j SET
            lease_expires_at = CASE WHEN NOT j.cancel_requested AND p_lease_seconds IS NOT NULL
                THEN p_now + make_interval(secs => p_lease_seconds) ELSE j.lease_expires_at END,
            delivered_at = coalesce(j.delivered_at, CASE WHEN j.cancel_requested THEN p_now END),
            progress = coalesce(r.progress, j.progress),
            progress_message = coalesce(r.message, j.progress_message),
            usage_units = greatest(j.usage_units, j.usage_before + coalesce(r.units, 0)),
            work_started_at = coalesce(j.work_started_at, CASE WHEN r.work_started THEN p_now END)
        FROM unnest(p_reports) r
        WHERE j.job_id || '' = r.job_id AND j.job_id = ANY (p_held)
        RETURNING j AS job, r.worker
    )
    INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state)
    SELECT (job).job_id, 'lease_extended', worker, p_now, '{}', jsonb_strip_nulls(jsonb_build_object(
               'lease_expires_at', (job).lease_expires_at, 'delivered_at', (job).delivered_at,
               'usage_units', nullif((job).usage_units, 0), 'work_started_at', (job).work_started_at)), 'ACTIVE'
    FROM moved JOIN before b ON b.job_id = (job).job_id
    WHERE (SELECT trace FROM pgwf.settings WHERE only_row)
      AND (b.lease_expires_at, b.delivered_at, b.usage_units, b.work_started_at) IS DISTINCT FROM
          ((job).lease_expires_at, (job).delivered_at, (job).usage_units, (job).work_started_at);
END $$;
