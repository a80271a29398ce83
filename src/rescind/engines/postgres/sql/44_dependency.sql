-- Who waits for whom: locks taken before a job is moved, and what the end of one means for the others.

CREATE FUNCTION pgwf.normalize_wait_for(p_wait_for TEXT[]) RETURNS TEXT[] LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(id ORDER BY place), '{}')
    FROM (
        SELECT id, min(place) AS place FROM unnest(p_wait_for) WITH ORDINALITY AS each (id, place)
        WHERE id IS NOT NULL GROUP BY id
    ) once
$$;

-- Lock these jobs and all that wait for them, in the order of their ids, and then the accounts of those among them that
-- hold reservations, by owner; `p_also` are locked with them, but not what waits for those. True when anything waits for
-- them. A dependent that turned up while we waited is locked without waiting; if that cannot be, the call fails and may
-- be repeated.
CREATE FUNCTION pgwf._lock_jobs(p_ids TEXT[], p_also TEXT[] DEFAULT '{}') RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    v_first  TEXT[];
    v_late   TEXT[];
    v_owners TEXT[];
BEGIN
    SELECT array_agg(job_id) INTO v_first FROM pgwf.jobs WHERE wait_for && p_ids AND wait_for <> '{}';
    SELECT array_agg(owner) FILTER (WHERE billing = 'RESERVED') INTO v_owners FROM (
        SELECT owner, billing FROM pgwf.jobs WHERE job_id = ANY (p_ids || p_also || v_first)
        ORDER BY job_id || '' FOR UPDATE) locked;
    SELECT array_agg(job_id) INTO v_late FROM pgwf.jobs
    WHERE wait_for && p_ids AND wait_for <> '{}' AND NOT job_id = ANY (p_ids || p_also || v_first);
    IF v_late IS NOT NULL THEN
        v_owners := v_owners || pgwf._lock_late(v_late);
    END IF;
    IF v_owners IS NOT NULL THEN
        PERFORM 1 FROM pgwf.accounts WHERE owner = ANY (v_owners) ORDER BY owner || '' FOR UPDATE;
    END IF;
    RETURN v_first IS NOT NULL OR v_late IS NOT NULL;
END $$;

CREATE FUNCTION pgwf._lock_late(p_ids TEXT[]) RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    v_got    INTEGER;
    v_owners TEXT[];
BEGIN
    SELECT count(*), array_agg(owner) FILTER (WHERE billing = 'RESERVED') INTO v_got, v_owners FROM (
        SELECT owner, billing FROM pgwf.jobs WHERE job_id = ANY (p_ids) FOR UPDATE SKIP LOCKED) locked;
    IF v_got < cardinality(p_ids) THEN
        RAISE EXCEPTION 'jobs that wait for this one changed meanwhile' USING ERRCODE = 'serialization_failure',
            HINT = 'nothing was changed; try again';
    END IF;
    RETURN v_owners;
END $$;

-- Of these jobs, which we hold, those that can end without waiting for anybody: what waits for them, and the accounts of
-- all that hold reservations, could be locked at once.
CREATE FUNCTION pgwf._free_to_end(p_ids TEXT[]) RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    v_dependents TEXT[];
    v_owners     TEXT[];
    v_stuck      TEXT[];
BEGIN
    SELECT array_agg(job_id) INTO v_dependents FROM pgwf.jobs WHERE wait_for && p_ids AND wait_for <> '{}';
    SELECT array_agg(owner) INTO v_owners FROM pgwf.jobs
    WHERE job_id = ANY (p_ids || v_dependents) AND billing = 'RESERVED';
    IF v_dependents IS NULL AND v_owners IS NULL THEN
        RETURN p_ids;
    END IF;
    v_dependents := v_dependents || '{}';
    v_stuck := ARRAY(SELECT unnest(v_dependents) EXCEPT
                     SELECT * FROM pgwf._try_jobs(v_dependents));
    v_owners := ARRAY(SELECT unnest(v_owners) EXCEPT SELECT * FROM pgwf._try_accounts(v_owners));
    v_stuck := v_stuck || ARRAY(
        SELECT job_id FROM pgwf.jobs WHERE job_id = ANY (p_ids || v_dependents) AND billing = 'RESERVED'
          AND owner = ANY (v_owners));
    RETURN ARRAY(
        SELECT id FROM unnest(p_ids) id
        WHERE NOT id = ANY (v_stuck) AND NOT EXISTS (
            SELECT 1 FROM pgwf.jobs d WHERE d.job_id = ANY (v_stuck) AND d.wait_for @> ARRAY[id]));
END $$;

CREATE FUNCTION pgwf._try_jobs(p_ids TEXT[]) RETURNS SETOF TEXT LANGUAGE sql AS $$
    SELECT job_id FROM pgwf.jobs WHERE job_id = ANY (p_ids) FOR UPDATE SKIP LOCKED
$$;

CREATE FUNCTION pgwf._try_accounts(p_owners TEXT[]) RETURNS SETOF TEXT LANGUAGE sql AS $$
    SELECT owner FROM pgwf.accounts WHERE owner = ANY (p_owners) FOR UPDATE SKIP LOCKED
$$;

-- Jobs have ended: what waits for them waits for less, or is cancelled with them if it asked to be. The dependents are
-- locked already. No work is announced for a dependent that is itself cancelled.
CREATE FUNCTION pgwf._update_waiters_for_completion(p_ids TEXT[], p_outcomes TEXT[], p_now TIMESTAMPTZ) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    v_free    TEXT[];
    v_doomed  TEXT[];
    v_because TEXT[];
    v_how     TEXT[];
BEGIN
    WITH hit AS (
        SELECT d.job_id, d.seq, e.id, e.outcome,
               e.outcome = 'CANCELLED' AND d.on_dependency_cancelled = 'cancel'
               OR e.outcome = 'FAILED' AND d.on_dependency_failed = 'cancel' AS dooms
        FROM pgwf.jobs d
        JOIN unnest(p_ids, p_outcomes) AS e (id, outcome) ON e.id = ANY (d.wait_for)
        WHERE d.wait_for && p_ids AND d.wait_for <> '{}' AND NOT d.cancel_requested
    ), each AS (
        SELECT job_id, bool_or(dooms) AS doomed, min(id) FILTER (WHERE dooms) AS because,
               min(outcome) FILTER (WHERE dooms) AS how
        FROM hit GROUP BY job_id, seq
    )
    SELECT array_agg(job_id) FILTER (WHERE NOT doomed), array_agg(job_id) FILTER (WHERE doomed),
           array_agg(because) FILTER (WHERE doomed), array_agg(how) FILTER (WHERE doomed)
    INTO v_free, v_doomed, v_because, v_how FROM each;
    IF v_free IS NOT NULL THEN
        PERFORM pgwf._unblock(v_free, p_ids, p_now);
    END IF;
    FOR i IN 1 .. coalesce(cardinality(v_doomed), 0) LOOP
        PERFORM pgwf._cancel_now(ARRAY[v_doomed[i]], 'job:' || v_because[i], format('job %s, which it waited for, %s',
            v_because[i], CASE v_how[i] WHEN 'FAILED' THEN 'failed' ELSE 'was cancelled' END), FALSE, p_now);
    END LOOP;
END $$;

-- These jobs wait for less. Those that wait for nothing any more may be claimed when their time has come.
CREATE FUNCTION pgwf._unblock(p_free TEXT[], p_ended TEXT[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_needs TEXT[];
    v_keys  TEXT[];
BEGIN
    WITH less AS (
        SELECT j.job_id, ARRAY(
                   SELECT id FROM unnest(j.wait_for) WITH ORDINALITY AS each (id, place)
                   WHERE NOT id = ANY (p_ended) ORDER BY place
               ) AS wait_for,
               (SELECT id FROM unnest(j.wait_for) id WHERE id = ANY (p_ended) LIMIT 1) AS because
        FROM pgwf.jobs j WHERE j.job_id = ANY (p_free)
    ), moved AS (
        UPDATE pgwf.jobs j SET
            wait_for = less.wait_for,
            unblocked_at = CASE WHEN less.wait_for = '{}' THEN p_now ELSE j.unblocked_at END,
            stage = pgwf._stage_of(less.wait_for, j.available_at, j.singleton_key, p_now)
        FROM less WHERE j.job_id = ANY (p_free) AND j.job_id || '' = less.job_id
        RETURNING j AS job, less.because
    ), told AS (
        INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state)
        SELECT (job).job_id, 'job_unblocked', 'job:' || because, p_now, '{}',
               jsonb_build_object('wait_for', (job).wait_for, 'unblocked_at', (job).unblocked_at),
               pgwf._state_of(job, p_now)
        FROM moved WHERE (SELECT trace FROM pgwf.settings WHERE only_row)
    )
    SELECT array_agg((job).next_need) FILTER (WHERE (job).stage IN ('ready', 'parked')),
           array_agg((job).singleton_key) FILTER (WHERE (job).stage = 'parked')
    INTO v_needs, v_keys FROM moved;
    PERFORM pgwf._notify_needs(v_needs);
    IF v_keys IS NOT NULL THEN
        PERFORM pgwf._elect(v_keys, p_now);
    END IF;
END $$;

-- The ids, in order, by which a job would come to wait for itself; NULL when it would not. Each edge is met once.
CREATE FUNCTION pgwf._cycle(p_job_id TEXT, p_wait_for TEXT[]) RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    v_from TEXT[];
    v_to   TEXT[];
    v_way  TEXT[] := ARRAY[p_job_id];
BEGIN
    WITH RECURSIVE edge (here, further) AS (
        SELECT p_job_id, id FROM unnest(p_wait_for) id
        UNION
        SELECT edge.further, id FROM edge
        CROSS JOIN LATERAL (SELECT wait_for FROM pgwf.jobs WHERE job_id = edge.further LIMIT 1) j
        CROSS JOIN LATERAL unnest(j.wait_for) id
        WHERE edge.further <> p_job_id
    )
    SELECT array_agg(here), array_agg(further) INTO v_from, v_to FROM edge;
    IF array_position(v_to, p_job_id) IS NULL THEN
        RETURN NULL;
    END IF;
    LOOP
        v_way := v_from[array_position(v_to, v_way[1])] || v_way;
        EXIT WHEN v_way[1] = p_job_id;
    END LOOP;
    RETURN v_way;
END $$;

CREATE FUNCTION pgwf._raise_cycle(p_way TEXT[]) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'wait_for would make these jobs wait for each other: %', array_to_string(p_way, ' -> ')
        USING ERRCODE = 'PW009', DETAIL = jsonb_build_object('ids', p_way)::TEXT;
END $$;

CREATE FUNCTION pgwf._raise_unknown(p_ids TEXT[]) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'wait_for references unknown jobs: %', array_to_string(p_ids, ', ')
        USING ERRCODE = 'PW008', DETAIL = jsonb_build_object('ids', p_ids)::TEXT;
END $$;

-- Of these ids those that name no job, live or archived.
CREATE FUNCTION pgwf._unknown(p_ids TEXT[]) RETURNS TEXT[] LANGUAGE sql AS $$
    SELECT array_agg(id ORDER BY place) FROM unnest(p_ids) WITH ORDINALITY AS each (id, place)
    WHERE NOT id = ANY (ARRAY(SELECT job_id FROM pgwf.jobs WHERE job_id = ANY (p_ids)))
      AND NOT id = ANY (ARRAY(SELECT job_id FROM pgwf.jobs_archive WHERE job_id = ANY (p_ids)))
$$;

-- A job has just been told to wait for these, which all exist: those that have ended count as if they ended now.
CREATE FUNCTION pgwf._release_ended(p_ids TEXT[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_ended    TEXT[];
    v_outcomes TEXT[];
BEGIN
    SELECT array_agg(job_id), array_agg(outcome) INTO v_ended, v_outcomes
    FROM pgwf.jobs_archive WHERE job_id = ANY (p_ids);
    IF v_ended IS NOT NULL THEN
        PERFORM pgwf._update_waiters_for_completion(v_ended, v_outcomes, p_now);
    END IF;
END $$;
