-- Singleton keys: at most one job of a key is leased. The others are parked; when the key comes free, the best of each
-- need is put in front (needs apart, so that a job nobody serves is in nobody's way). Several may come to be in front:
-- the claim takes one and parks the others.
--
-- Only who holds the key's advisory lock leases, parks or elects, after looking once more in a new statement. The lock
-- is tried, never waited for; who does not get it leaves a row in singleton_holds, and the next claim or sweep elects.

CREATE FUNCTION pgwf._try_key(p_key TEXT) RETURNS BOOLEAN LANGUAGE sql AS $$
    SELECT pg_try_advisory_xact_lock(hashtextextended('pgwf:singleton:' || p_key, 0))
$$;

CREATE FUNCTION pgwf._is_taken(p_key TEXT, p_now TIMESTAMPTZ) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM pgwf.jobs
                   WHERE singleton_key = p_key AND stage = 'leased' AND singleton_key IS NOT NULL)
        OR EXISTS (SELECT 1 FROM pgwf.singleton_holds WHERE singleton_key = p_key AND until > p_now);
END $$;

-- Ask for an election as soon as somebody passes by. Takes no lock, so it is safe in a caller's long transaction.
CREATE FUNCTION pgwf._elect_later(p_keys TEXT[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgwf.singleton_holds (singleton_key, until) SELECT DISTINCT key, p_now FROM unnest(p_keys) key;
END $$;

-- Let keys pass on: the best parked job of each need becomes ready, unless the key is taken. Waits for nobody.
CREATE FUNCTION pgwf._elect(p_keys TEXT[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_key     TEXT;
    v_needs   TEXT[];
    v_elected TEXT[];
BEGIN
    FOR v_key IN SELECT DISTINCT key FROM unnest(p_keys) key WHERE key IS NOT NULL LOOP
        IF NOT pgwf._try_key(v_key) THEN
            PERFORM pgwf._elect_later(ARRAY[v_key], p_now);
        ELSIF NOT pgwf._is_taken(v_key, p_now) THEN
            v_needs := pgwf._parked_needs(v_key);
            WITH best AS MATERIALIZED (
                SELECT each.job_id FROM unnest(v_needs) need CROSS JOIN LATERAL (
                    SELECT j.job_id FROM pgwf.jobs j
                    WHERE j.singleton_key = v_key AND j.next_need = need AND j.stage = 'parked'
                    ORDER BY j.priority DESC, j.available_at, j.seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
                ) each
            ), moved AS (
                UPDATE pgwf.jobs j SET stage = 'ready' WHERE j.job_id = ANY (ARRAY(SELECT job_id FROM best))
                RETURNING j.next_need
            )
            SELECT array_agg(next_need) INTO v_elected FROM moved;
            PERFORM pgwf._notify_needs(v_elected);
            IF coalesce(cardinality(v_elected), 0) < coalesce(cardinality(v_needs), 0) THEN
                PERFORM pgwf._elect_later(ARRAY[v_key], p_now);  -- somebody had the best one in hand
            END IF;
        END IF;
    END LOOP;
END $$;

-- Each need once, by as many steps in the index, however many jobs are parked.
CREATE FUNCTION pgwf._parked_needs(p_key TEXT) RETURNS TEXT[] LANGUAGE sql AS $$
    WITH RECURSIVE needs (need) AS (
        (SELECT next_need FROM pgwf.jobs WHERE singleton_key = p_key AND stage = 'parked' ORDER BY next_need LIMIT 1)
        UNION ALL
        SELECT further.next_need FROM needs CROSS JOIN LATERAL (
            SELECT j.next_need FROM pgwf.jobs j
            WHERE j.singleton_key = p_key AND j.stage = 'parked' AND j.next_need > needs.need
            ORDER BY j.next_need LIMIT 1
        ) further
    )
    SELECT array_agg(need) FROM needs
$$;

-- A job lost its lease while its handler may still run: its key stays taken until that lease would have ended.
CREATE FUNCTION pgwf._hold_key(p_key TEXT, p_lease_id TEXT, p_until TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgwf.singleton_holds (singleton_key, lease_id, until) VALUES (p_key, p_lease_id, p_until);
END $$;

-- The fenced-off handlers of these leases have ended: their keys are free.
CREATE FUNCTION pgwf._free_keys(p_lease_ids TEXT[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_keys TEXT[];
BEGIN
    WITH freed AS (
        DELETE FROM pgwf.singleton_holds WHERE lease_id = ANY (p_lease_ids) RETURNING singleton_key
    )
    SELECT array_agg(singleton_key) INTO v_keys FROM freed;
    IF v_keys IS NOT NULL THEN
        PERFORM pgwf._elect(v_keys, p_now);
    END IF;
END $$;

-- Elections that are due. Answers how many keys came up.
CREATE FUNCTION pgwf._elect_due(p_limit INTEGER, p_now TIMESTAMPTZ) RETURNS INTEGER LANGUAGE plpgsql AS $$
DECLARE
    v_keys TEXT[];
BEGIN
    WITH due AS (
        DELETE FROM pgwf.singleton_holds
        WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM pgwf.singleton_holds WHERE until <= p_now ORDER BY until LIMIT p_limit
            FOR UPDATE SKIP LOCKED))
        RETURNING singleton_key
    )
    SELECT array_agg(DISTINCT singleton_key) INTO v_keys FROM due;
    IF v_keys IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM pgwf._elect(v_keys, p_now);
    RETURN cardinality(v_keys);
END $$;
