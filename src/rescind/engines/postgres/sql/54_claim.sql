-- Claiming. The cost follows what is taken, never what waits: a claim reads the index of jobs it may take, in the order
-- in which it takes them. It skips what others hold and waits for nobody.

-- Bring the stages up to the clock: jobs whose time has come, and keys that are to pass on. `p_claimer` are the needs of
-- who asks, and need not be told.
CREATE FUNCTION pgwf._wake_due(p_limit INTEGER, p_claimer TEXT[], p_now TIMESTAMPTZ) RETURNS INTEGER LANGUAGE plpgsql AS $$
DECLARE
    v_needs TEXT[];
    v_keys  TEXT[];
    v_count INTEGER;
BEGIN
    WITH moved AS (
        UPDATE pgwf.jobs j SET stage = pgwf._stage_of(j.wait_for, j.available_at, j.singleton_key, p_now)
        WHERE j.job_id = ANY (ARRAY(
            SELECT job_id FROM pgwf.jobs WHERE stage = 'future' AND available_at <= p_now
            ORDER BY available_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED))
        RETURNING j.next_need, j.singleton_key
    )
    SELECT count(*), array_agg(DISTINCT next_need) FILTER (WHERE NOT next_need = ANY (p_claimer)),
           array_agg(singleton_key) FILTER (WHERE singleton_key IS NOT NULL)
    INTO v_count, v_needs, v_keys FROM moved;
    PERFORM pgwf._notify_needs(v_needs);
    IF v_keys IS NOT NULL THEN
        PERFORM pgwf._elect(v_keys, p_now);
    END IF;
    RETURN v_count;
END $$;

-- Leases that ran out: back to the queue, unless the job was asked to stop or this was its last attempt. Where what waits
-- for a job that ends is in other hands, the job is left for the next time.
CREATE FUNCTION pgwf._lapse(p_limit INTEGER, p_claimer TEXT[], p_now TIMESTAMPTZ) RETURNS INTEGER LANGUAGE plpgsql AS $$
DECLARE
    v_ids TEXT[] := ARRAY(
        SELECT job_id FROM pgwf.jobs WHERE stage = 'leased' AND lease_expires_at <= p_now
        ORDER BY lease_expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
BEGIN
    IF v_ids = '{}' THEN
        RETURN 0;
    END IF;
    RETURN cardinality(pgwf._move_each('_lapse_jobs', pgwf._free_to_end(v_ids), p_claimer, p_now));
END $$;

CREATE FUNCTION pgwf._lapse_jobs(p_ids TEXT[], p_claimer TEXT[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_ends  pgwf.job_end[];
    v_needs TEXT[];
    v_keys  TEXT[];
BEGIN
    v_ends := ARRAY(
        SELECT ROW(j.job_id, CASE WHEN j.cancel_requested THEN 'CANCELLED' ELSE 'FAILED' END, 'lease_lapsed',
                   'rescind:sweep', format('lease of %s ran out', j.lease_worker), p_now, NULL,
                   CASE WHEN j.cancel_requested THEN j.cancel_reason ELSE format('lease of %s ran out', j.lease_worker) END,
                   j.failures + CASE WHEN j.cancel_requested THEN 0 ELSE 1 END, j.usage_units, j.work_started_at,
                   j.delivered_at, j.acknowledged_at, CASE WHEN j.cancel_requested THEN j.lease_expires_at END,
                   CASE WHEN j.cancel_requested THEN 'lapsed' END, NULL)::pgwf.job_end
        FROM pgwf.jobs j
        WHERE j.job_id = ANY (p_ids) AND (j.cancel_requested OR j.failures + 1 >= j.max_attempts));
    IF cardinality(v_ends) > 0 THEN
        PERFORM pgwf._finish(v_ends, TRUE, TRUE, p_now);
    END IF;
    WITH moved AS (
        UPDATE pgwf.jobs j SET
            lease_id = NULL, lease_worker = NULL, lease_expires_at = '-infinity', failures = j.failures + 1,
            last_error = format('lease of %s ran out', j.lease_worker),
            stage = pgwf._stage_of(j.wait_for, j.available_at, j.singleton_key, p_now)
        WHERE j.job_id = ANY (p_ids) RETURNING j AS job
    ), told AS (
        INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state, reason)
        SELECT (job).job_id, 'lease_lapsed', 'rescind:sweep', p_now, '{}',
               jsonb_build_object('failures', (job).failures, 'last_error', (job).last_error),
               pgwf._state_of(job, p_now), (job).last_error
        FROM moved WHERE (SELECT trace FROM pgwf.settings WHERE only_row)
    )
    SELECT array_agg((job).next_need) FILTER (WHERE NOT (job).next_need = ANY (p_claimer)),
           array_agg((job).singleton_key) FILTER (WHERE (job).singleton_key IS NOT NULL)
    INTO v_needs, v_keys FROM moved;
    PERFORM pgwf._notify_needs(v_needs);
    IF v_keys IS NOT NULL THEN
        PERFORM pgwf._elect(v_keys, p_now);
    END IF;
END $$;

-- Move jobs that time has decided about, together or, if that fails, one by one: a job that cannot be moved is told of in
-- a warning and never stops the rest. The ids of those that moved.
CREATE FUNCTION pgwf._move_each(p_move TEXT, p_ids TEXT[], p_what TEXT[], p_now TIMESTAMPTZ) RETURNS TEXT[]
LANGUAGE plpgsql AS $$
DECLARE
    v_call  TEXT := format('SELECT pgwf.%I($1, $2, $3)', p_move);
    v_moved TEXT[] := '{}';
    v_id    TEXT;
BEGIN
    BEGIN
        EXECUTE v_call USING p_ids, p_what, p_now;
        RETURN p_ids;
    EXCEPTION WHEN OTHERS THEN
        IF cardinality(p_ids) = 1 THEN
            RAISE WARNING 'job % could not be moved by %: %', p_ids[1], p_move, SQLERRM;
            RETURN v_moved;
        END IF;
    END;
    FOREACH v_id IN ARRAY p_ids LOOP
        v_moved := v_moved || pgwf._move_each(p_move, ARRAY[v_id], p_what, p_now);
    END LOOP;
    RETURN v_moved;
END $$;

DROP TYPE IF EXISTS pgwf.candidate;
CREATE TYPE pgwf.candidate AS (
    rank BIGINT, available_at TIMESTAMPTZ, seq BIGINT, job_id TEXT, next_need TEXT, keyed BOOLEAN
);

-- The most urgent ready jobs of these needs, locked, and whether any of them has a singleton key. Read from the index of
-- each need in small steps, and of a need no further than its jobs can still be among the best: a hundred needs cost a
-- hundred short looks, not a hundred times the limit.
CREATE FUNCTION pgwf._candidates(
    p_needs TEXT[], p_limit INTEGER, OUT ids TEXT[], OUT keyed BOOLEAN
) LANGUAGE plpgsql SET enable_sort = off AS $$
DECLARE
    v_step  INTEGER := greatest(1, least(p_limit, 2 * p_limit::BIGINT / cardinality(p_needs)));
    v_open  TEXT[] := p_needs;
    v_taken INTEGER := 0;
    v_seen  pgwf.candidate[] := '{}';
    v_more  pgwf.candidate[];
BEGIN
    IF cardinality(p_needs) = 1 THEN
        SELECT coalesce(array_agg(c.job_id), '{}'), bool_or(c.singleton_key IS NOT NULL) INTO ids, keyed FROM (
            SELECT j.job_id, j.singleton_key FROM pgwf.jobs j
            WHERE j.next_need = p_needs[1] AND j.stage = 'ready'
            ORDER BY j.priority DESC, j.available_at, j.seq LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED) c;
        RETURN;
    END IF;
    LOOP
        SELECT coalesce(array_agg(c::pgwf.candidate), '{}') INTO v_more
        FROM unnest(v_open) need CROSS JOIN LATERAL (
            SELECT -j.priority::BIGINT, j.available_at, j.seq, j.job_id, j.next_need, j.singleton_key IS NOT NULL
            FROM pgwf.jobs j WHERE j.next_need = need AND j.stage = 'ready'
            ORDER BY j.priority DESC, j.available_at, j.seq LIMIT v_step OFFSET v_taken FOR NO KEY UPDATE SKIP LOCKED
        ) c;
        -- One that others let go of meanwhile moves the rest: then the next step begins with what we have seen.
        v_seen := ARRAY(
            SELECT s FROM (SELECT DISTINCT s FROM unnest(v_seen || v_more) s) once
            ORDER BY (s).rank, (s).available_at, (s).seq LIMIT p_limit);
        v_taken := v_taken + v_step;
        -- A need goes on when it filled its step and all of that step is among the best so far.
        v_open := ARRAY(
            SELECT m.next_need FROM unnest(v_more) m
            GROUP BY m.next_need
            HAVING count(*) = v_step AND v_taken < p_limit
               AND (cardinality(v_seen) < p_limit OR bool_and(m.job_id = ANY (ARRAY(SELECT job_id FROM unnest(v_seen))))));
        EXIT WHEN v_open = '{}';
    END LOOP;
    SELECT coalesce(array_agg(job_id), '{}'), bool_or(s.keyed) INTO ids, keyed FROM unnest(v_seen) s;
END $$;

-- Of these locked candidates, in order, those that may be leased as far as singleton keys go. One whose key is taken is
-- parked: the end of the holder elects anew. One whose key is in other hands this moment is left as it is.
CREATE FUNCTION pgwf._one_per_key(p_ids TEXT[], p_now TIMESTAMPTZ) RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    v_job  RECORD;
    v_ours TEXT[] := '{}';
    v_park TEXT[] := '{}';
    v_free TEXT[] := '{}';
BEGIN
    FOR v_job IN
        SELECT j.job_id, j.singleton_key AS key FROM unnest(p_ids) WITH ORDINALITY AS each (id, place)
        JOIN pgwf.jobs j ON j.job_id || '' = each.id WHERE j.job_id = ANY (p_ids) ORDER BY each.place
    LOOP
        IF v_job.key IS NULL THEN
            v_free := v_free || v_job.job_id;
        ELSIF v_job.key = ANY (v_ours) THEN
            v_park := v_park || v_job.job_id;
        ELSIF pgwf._try_key(v_job.key) THEN
            IF pgwf._is_taken(v_job.key, p_now) THEN
                v_park := v_park || v_job.job_id;
            ELSE
                v_ours := v_ours || v_job.key;
                v_free := v_free || v_job.job_id;
            END IF;
        END IF;
    END LOOP;
    IF v_park <> '{}' THEN
        UPDATE pgwf.jobs SET stage = 'parked' WHERE job_id = ANY (v_park);
    END IF;
    RETURN v_free;
END $$;

-- Lease up to so many jobs of these needs: their ids, most urgent first.
CREATE FUNCTION pgwf._claim(
    p_worker_id TEXT, p_needs TEXT[], p_lease_seconds DOUBLE PRECISION, p_limit INTEGER
) RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    v_now    TIMESTAMPTZ := pgwf._now();
    v_needs  TEXT[] := ARRAY(SELECT DISTINCT need FROM unnest(p_needs) need);
    v_ids    TEXT[] := '{}';
    v_found  TEXT[];
    v_keyed  BOOLEAN;
    v_leased TEXT[];
    v_last   TEXT[];
    v_lapsed BOOLEAN := FALSE;
BEGIN
    IF EXISTS (SELECT 1 FROM pgwf.jobs WHERE stage = 'future' AND available_at <= v_now)
        OR EXISTS (SELECT 1 FROM pgwf.singleton_holds WHERE until <= v_now) THEN
        PERFORM pgwf._wake_due(500, v_needs, v_now), pgwf._elect_due(500, v_now);
    END IF;
    LOOP
        SELECT ids, keyed INTO v_found, v_keyed FROM pgwf._candidates(v_needs, p_limit - cardinality(v_ids));
        v_leased := CASE WHEN v_keyed THEN pgwf._one_per_key(v_found, v_now) ELSE v_found END;
        PERFORM pgwf._lease(v_leased, p_worker_id, p_lease_seconds);
        v_ids := v_ids || v_leased;
        EXIT WHEN cardinality(v_ids) >= p_limit;
        -- Some had their key taken and are out of the way now: look behind them.
        IF cardinality(v_leased) < cardinality(v_found) AND v_found IS DISTINCT FROM v_last THEN
            v_last := v_found;
            CONTINUE;
        END IF;
        -- Room left: did somebody fall silent?
        EXIT WHEN v_lapsed;
        v_lapsed := TRUE;
        EXIT WHEN pgwf._lapse(500, v_needs, v_now) = 0;
    END LOOP;
    RETURN v_ids;
END $$;

-- Lease these, which we have locked; the time is read now, so that it is not before the time any of them became ready.
CREATE FUNCTION pgwf._lease(p_ids TEXT[], p_worker_id TEXT, p_lease_seconds DOUBLE PRECISION) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    v_now TIMESTAMPTZ := pgwf._now();
BEGIN
    IF p_ids = '{}' THEN
        RETURN;
    END IF;
    WITH leased AS (
        UPDATE pgwf.jobs j SET
            stage = 'leased', attempt = j.attempt + 1, claimed_at = v_now, lease_id = gen_random_uuid()::TEXT,
            lease_worker = p_worker_id, lease_expires_at = v_now + make_interval(secs => p_lease_seconds),
            usage_before = j.usage_units, progress = NULL, progress_message = NULL
        WHERE j.job_id = ANY (p_ids)
        RETURNING j.job_id, j.attempt, j.lease_id, j.lease_expires_at, j.usage_before
    )
    INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state)
    SELECT job_id, 'job_retrieved', p_worker_id, v_now, '{}',
           jsonb_build_object('lease_id', lease_id, 'lease_expires_at', lease_expires_at, 'attempt', attempt,
                              'usage_before', usage_before), 'ACTIVE'
    FROM leased WHERE (SELECT trace FROM pgwf.settings WHERE only_row);
END $$;
