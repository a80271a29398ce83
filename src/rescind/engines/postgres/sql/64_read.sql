-- Looking without touching: jobs, counts, histories, the feed, documents, and whether there is anything to do.

CREATE FUNCTION pgwf.get_jobs(p_job_ids TEXT[]) RETURNS SETOF pgwf.answer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgwf._jobs(p_job_ids, pgwf._now());
END $$;

-- The needs that any job has, live or archived: each by one step in an index, however many jobs there are.
CREATE FUNCTION pgwf._needs() RETURNS SETOF TEXT LANGUAGE sql AS $$
    WITH RECURSIVE live (need) AS (
        (SELECT next_need FROM pgwf.jobs ORDER BY next_need LIMIT 1)
        UNION ALL
        SELECT further.next_need FROM live CROSS JOIN LATERAL (
            SELECT next_need FROM pgwf.jobs WHERE next_need > live.need ORDER BY next_need LIMIT 1) further
    ), archived (need) AS (
        (SELECT next_need FROM pgwf.jobs_archive ORDER BY next_need LIMIT 1)
        UNION ALL
        SELECT further.next_need FROM archived CROSS JOIN LATERAL (
            SELECT next_need FROM pgwf.jobs_archive WHERE next_need > archived.need ORDER BY next_need LIMIT 1) further
    )
    SELECT need FROM live UNION SELECT need FROM archived
$$;

-- Jobs, newest first, behind the one whose `seq` is p_after. What is NULL does not narrow the list. Read from the index
-- of each need, or of the owner, no further than it takes.
CREATE FUNCTION pgwf.list_jobs(
    p_need TEXT DEFAULT NULL, p_owner TEXT DEFAULT NULL, p_states TEXT[] DEFAULT NULL, p_purged BOOLEAN DEFAULT NULL,
    p_after BIGINT DEFAULT NULL, p_limit_jobs INTEGER DEFAULT 100
) RETURNS SETOF pgwf.answer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_ids   TEXT[];
    v_needs TEXT[] := CASE WHEN p_need IS NOT NULL THEN ARRAY[p_need]
                           WHEN p_owner IS NULL THEN ARRAY(SELECT pgwf._needs()) ELSE ARRAY[NULL::TEXT] END;
    v_where TEXT := concat(CASE WHEN p_need IS NOT NULL OR p_owner IS NULL THEN ' AND x.next_need = n.need' END,
                           CASE WHEN p_owner IS NOT NULL THEN ' AND x.owner = $2' END,
                           CASE WHEN p_after IS NOT NULL THEN ' AND x.seq < $3' END);
BEGIN
    PERFORM pgwf._check_limit(p_limit_jobs, 'limit_jobs');
    EXECUTE format($sql$
        SELECT array_agg(job_id ORDER BY seq DESC) FROM (
            SELECT each.* FROM unnest($1) AS n (need) CROSS JOIN LATERAL (
                (SELECT x.job_id, x.seq FROM pgwf.jobs x
                 WHERE ($4 IS NULL OR pgwf._state_of(x, $6) = ANY ($4)) AND $7 IS NOT TRUE %1$s
                 ORDER BY x.seq DESC LIMIT $5)
                UNION ALL
                (SELECT x.job_id, x.seq FROM pgwf.jobs_archive x
                 WHERE ($4 IS NULL OR x.outcome = ANY ($4)) AND ($7 IS NULL OR (x.purged_at IS NOT NULL) = $7) %1$s
                 ORDER BY x.seq DESC LIMIT $5)
            ) each ORDER BY each.seq DESC LIMIT $5) newest
    $sql$, v_where)
    INTO v_ids USING v_needs, p_owner, p_after, p_states, p_limit_jobs, pgwf._now(), p_purged;
    RETURN QUERY SELECT * FROM pgwf._jobs(v_ids, pgwf._now());
END $$;

-- How many jobs each need has in each state.
CREATE FUNCTION pgwf.count_jobs(
    p_need TEXT DEFAULT NULL, p_owner TEXT DEFAULT NULL, p_states TEXT[] DEFAULT NULL, p_purged BOOLEAN DEFAULT NULL
) RETURNS TABLE (need TEXT, state TEXT, jobs BIGINT) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now   TIMESTAMPTZ := pgwf._now();
    v_where TEXT := concat(CASE WHEN p_need IS NOT NULL THEN ' AND x.next_need = $1' END,
                           CASE WHEN p_owner IS NOT NULL THEN ' AND x.owner = $2' END);
BEGIN
    RETURN QUERY EXECUTE format($sql$
        SELECT c.need, c.state, sum(c.jobs)::BIGINT FROM (
            SELECT x.next_need AS need, pgwf._state_of(x, $4) AS state, count(*) AS jobs FROM pgwf.jobs x
            WHERE $5 IS NOT TRUE %1$s GROUP BY 1, 2
            UNION ALL
            SELECT x.next_need, x.outcome, count(*) FROM pgwf.jobs_archive x
            WHERE ($5 IS NULL OR (x.purged_at IS NOT NULL) = $5) %1$s GROUP BY 1, 2
        ) c WHERE $3 IS NULL OR c.state = ANY ($3) GROUP BY 1, 2
    $sql$, v_where) USING p_need, p_owner, p_states, v_now, p_purged;
END $$;

-- What happened to a job, in order. What tracing did not write down is told from the job's own columns and marked
-- `partial`.
CREATE FUNCTION pgwf.job_history(p_job_id TEXT) RETURNS TABLE (
    trace_id BIGINT, job_id TEXT, event_type TEXT, worker_id TEXT, event_at TIMESTAMPTZ, input_data JSONB,
    output_data JSONB, state TEXT, reason TEXT, partial BOOLEAN
) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY
        WITH told AS (
            SELECT t.* FROM pgwf.jobs_trace t WHERE t.job_id = p_job_id
        ), job AS (
            SELECT r.* FROM pgwf._jobs(ARRAY[p_job_id], pgwf._now()) r
        ), untold (event_type, worker_id, event_at, output_data, state, reason) AS (
            SELECT 'job_submitted', submitted_by, created_at, jsonb_build_object('next_need', next_need), 'READY', NULL
            FROM job WHERE NOT EXISTS (SELECT 1 FROM told t WHERE t.event_type = 'job_submitted')
            UNION ALL
            SELECT 'job_retrieved', coalesce(lease_worker, 'unknown'), claimed_at, jsonb_build_object('attempt', attempt),
                   'ACTIVE', NULL
            FROM job WHERE claimed_at IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM told t WHERE t.event_type = 'job_retrieved' AND t.event_at = claimed_at)
            UNION ALL
            SELECT 'job_cancel_requested', cancel_requested_by, cancel_requested_at, jsonb_build_object(
                       'cancel_requested_at', cancel_requested_at, 'cancel_requested_by', cancel_requested_by,
                       'cancel_reason', cancel_reason), NULL, cancel_reason
            FROM job WHERE cancel_requested_at IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM told t WHERE t.event_type = 'job_cancel_requested')
            UNION ALL
            SELECT CASE outcome WHEN 'COMPLETED' THEN 'job_finished' WHEN 'FAILED' THEN 'job_failed'
                       ELSE 'job_cancel_archived' END, 'unknown', finished_at,
                   jsonb_build_object('outcome', outcome, 'rung', rung), outcome, last_error
            FROM job WHERE outcome IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM told t WHERE t.output_data ? 'outcome')
        )
        SELECT t.trace_id, t.job_id, t.event_type, t.worker_id, t.event_at, t.input_data, t.output_data, t.state,
               t.reason, FALSE
        FROM told t
        UNION ALL
        SELECT 0, p_job_id, u.event_type, u.worker_id, u.event_at, '{}', u.output_data,
               coalesce(u.state, (SELECT j.state FROM job j)), u.reason, TRUE
        FROM untold u
        ORDER BY 5, 1;
END $$;

-- The feed of everything that was traced, in order, from a place in it. Where a number is missing, a transaction may
-- not have ended yet: the feed waits there for two seconds before it takes the number for lost. A move made inside a
-- caller's own longer transaction is in job_history, but may be missing here.
CREATE FUNCTION pgwf.changes(p_after BIGINT DEFAULT 0, p_limit INTEGER DEFAULT 1000) RETURNS SETOF pgwf.jobs_trace
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pgwf._not_null(p_after::TEXT, 'after');
    PERFORM pgwf._check_limit(p_limit, 'limit');
    RETURN QUERY
        WITH next AS (
            SELECT t.*, t.trace_id - lag(t.trace_id, 1, p_after) OVER (ORDER BY t.trace_id) > 1
                        AND t.event_at > pgwf._now() - INTERVAL '2 seconds' AND p_after > 0 AS after_gap
            FROM (SELECT * FROM pgwf.jobs_trace WHERE trace_id > p_after ORDER BY trace_id LIMIT p_limit) t
        )
        SELECT t.* FROM pgwf.jobs_trace t
        WHERE t.trace_id > p_after
          AND t.trace_id < coalesce((SELECT min(n.trace_id) FROM next n WHERE n.after_gap), 9223372036854775807)
        ORDER BY t.trace_id LIMIT p_limit;
END $$;

CREATE FUNCTION pgwf.list_workers() RETURNS SETOF pgwf.workers LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgwf.workers ORDER BY worker_id;
END $$;

CREATE FUNCTION pgwf.get_document(p_name TEXT, OUT revision BIGINT, OUT body JSONB) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT d.revision, d.body INTO revision, body FROM pgwf.documents d WHERE d.name = p_name;
    revision := coalesce(revision, 0);
END $$;

-- Replace a document when its revision is still this one; 0 means that it does not exist yet.
CREATE FUNCTION pgwf.put_document(p_name TEXT, p_revision BIGINT, p_body JSONB) RETURNS BIGINT LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgwf._check_text(p_name, 'name', 512);
    PERFORM pgwf._not_null(p_revision::TEXT, 'revision');
    PERFORM pgwf._not_null(p_body::TEXT, 'body');
    IF p_name = 'policies' THEN
        PERFORM pgwf._check_policies(p_body);
    END IF;
    IF p_revision = 0 THEN
        INSERT INTO pgwf.documents (name, revision, body) VALUES (p_name, 1, p_body) ON CONFLICT DO NOTHING;
    ELSE
        UPDATE pgwf.documents SET revision = p_revision + 1, body = p_body WHERE name = p_name AND revision = p_revision;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'document % is not at revision % any more', p_name, p_revision USING ERRCODE = 'PW012',
            DETAIL = jsonb_build_object('name', p_name, 'revision', p_revision)::TEXT, HINT = 'read it and try again';
    END IF;
    RETURN p_revision + 1;
END $$;

-- May a claim find something, has a sweep something to do, and in how many seconds will the clock alone change that?
CREATE FUNCTION pgwf.look(
    p_worker_caps TEXT[], OUT work BOOLEAN, OUT sweep BOOLEAN, OUT due_in DOUBLE PRECISION
) LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now TIMESTAMPTZ := pgwf._now();
    v_due TIMESTAMPTZ;
BEGIN
    v_due := least(
        (SELECT available_at FROM pgwf.jobs WHERE stage = 'future' ORDER BY available_at LIMIT 1),
        (SELECT lease_expires_at FROM pgwf.jobs WHERE stage = 'leased' ORDER BY lease_expires_at LIMIT 1),
        (SELECT until FROM pgwf.singleton_holds ORDER BY until LIMIT 1));
    work := v_due <= v_now IS TRUE OR EXISTS (
        SELECT 1 FROM unnest(p_worker_caps) need CROSS JOIN LATERAL (
            SELECT 1 FROM pgwf.jobs j WHERE j.next_need = need AND j.stage = 'ready'
            ORDER BY j.priority DESC, j.available_at, j.seq LIMIT 1) ready);
    sweep := EXISTS (SELECT 1 FROM pgwf.jobs WHERE stage = 'cancelled');
    due_in := CASE WHEN v_due > v_now THEN extract(epoch FROM v_due - v_now) END;
END $$;

-- Where the schema disagrees with itself; no row is the right answer.
CREATE FUNCTION pgwf.check() RETURNS TABLE (job_id TEXT, problem TEXT) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
        SELECT j.job_id, format('stage is %s, its facts say %s', j.stage, f.stage) FROM pgwf.jobs j
        CROSS JOIN (SELECT pgwf._now() AS now) clock  -- read after the snapshot was taken: no job is newer
        CROSS JOIN LATERAL (SELECT CASE
            WHEN j.lease_id IS NOT NULL THEN 'leased'
            WHEN j.cancel_requested THEN 'cancelled'
            ELSE pgwf._stage_of(j.wait_for, j.available_at, j.singleton_key, clock.now) END AS stage) f
        WHERE j.stage <> f.stage
          AND NOT (j.stage = 'ready' AND f.stage = 'parked')                              -- elected
          AND NOT (j.stage = 'future' AND f.stage IN ('ready', 'parked'))                 -- not passed by yet
        UNION ALL
        SELECT j.job_id, 'has a lease id without an expiry, or the other way round' FROM pgwf.jobs j
        WHERE (j.lease_id IS NULL) <> (j.lease_expires_at = '-infinity')
        UNION ALL
        SELECT j.job_id, 'is parked on a key that nobody has and nobody will let pass on' FROM pgwf.jobs j
        WHERE j.stage = 'parked'
          AND NOT EXISTS (SELECT 1 FROM pgwf.jobs o
                          WHERE o.singleton_key = j.singleton_key AND o.stage = 'leased' AND o.singleton_key IS NOT NULL)
          AND NOT EXISTS (SELECT 1 FROM pgwf.jobs o
                          WHERE o.singleton_key = j.singleton_key AND o.next_need = j.next_need AND o.stage = 'ready')
          AND NOT EXISTS (SELECT 1 FROM pgwf.singleton_holds h WHERE h.singleton_key = j.singleton_key)
        UNION ALL
        SELECT j.job_id, format('waits for %s, which has ended or never was', w.id) FROM pgwf.jobs j
        CROSS JOIN LATERAL unnest(j.wait_for) AS w (id)
        WHERE NOT j.cancel_requested AND NOT EXISTS (SELECT 1 FROM pgwf.jobs o WHERE o.job_id = w.id)
        UNION ALL
        SELECT j.job_id, 'is live and archived' FROM pgwf.jobs j JOIN pgwf.jobs_archive a ON a.job_id = j.job_id
        UNION ALL
        SELECT NULL, format('account of %s has %s reserved, its jobs hold %s', a.owner, a.reserved, coalesce(h.held, 0))
        FROM pgwf.accounts a LEFT JOIN (
            SELECT j.owner, sum(j.estimate) AS held FROM pgwf.jobs j WHERE j.billing = 'RESERVED' GROUP BY j.owner
        ) h ON h.owner = a.owner
        WHERE a.reserved <> coalesce(h.held, 0);
END $$;

-- Jobs that run and were asked to stop: what a worker asks for that may have missed a notification.
CREATE FUNCTION pgwf.cancelling_jobs() RETURNS TEXT[] LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(SELECT job_id FROM pgwf.jobs WHERE stage = 'leased' AND cancel_requested LIMIT 10000);
END $$;
