-- Submitting: all of a batch or none of it.

DROP TYPE IF EXISTS pgwf.job_spec;
CREATE TYPE pgwf.job_spec AS (
    id TEXT, need TEXT, input JSON, submitted_by TEXT, owner TEXT, priority INTEGER, singleton_key TEXT, wait_for TEXT[],
    on_dependency_cancelled TEXT, on_dependency_failed TEXT, available_at TIMESTAMPTZ, delay_seconds DOUBLE PRECISION,
    max_attempts INTEGER, idempotency_key TEXT, body_hash TEXT, estimate BIGINT,
    input_text TEXT  -- instead of `input`: its JSON as a text, for what JSON functions cannot read, as \u0000
);
COMMENT ON TYPE pgwf.job_spec IS 'A job to be, as submit_jobs takes it in JSON; what is left out has its default.';

-- What is wrong with a job to be, in words; NULL when nothing is.
CREATE FUNCTION pgwf._flaw(s pgwf.job_spec) RETURNS TEXT LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN s.submitted_by IS NULL THEN 'worker_id cannot be NULL'
    WHEN s.id IS NULL THEN 'job_id cannot be NULL'
    WHEN s.need IS NULL THEN 'next_need cannot be NULL'
    WHEN btrim(s.id) = '' THEN 'job_id cannot be empty'
    WHEN btrim(s.need) = '' THEN 'next_need cannot be empty'
    WHEN btrim(s.submitted_by) = '' THEN 'worker_id cannot be empty'
    WHEN btrim(s.owner) = '' OR btrim(s.singleton_key) = '' OR btrim(s.idempotency_key) = ''
        THEN 'owner, singleton_key and idempotency_key cannot be empty'
    WHEN octet_length(s.id) > 512 THEN 'job_id cannot be longer than 512 bytes'
    WHEN octet_length(s.need) > 53 THEN 'next_need cannot be longer than 53 bytes'  -- it ends a NOTIFY channel's name
    WHEN octet_length(s.submitted_by) > 4000 THEN 'worker_id cannot be longer than 4000 bytes'
    WHEN octet_length(s.owner) > 1000 OR octet_length(s.singleton_key) > 1000 OR octet_length(s.idempotency_key) > 1000
        THEN 'owner, singleton_key and idempotency_key cannot be longer than 1000 bytes'
    WHEN s.id || s.need || s.submitted_by || coalesce(s.owner, '') || coalesce(s.singleton_key, '')
        || coalesce(s.idempotency_key, '') ~ '[\x01-\x1f\x7f]'
        THEN 'job_id, next_need, worker_id, owner and keys cannot contain control characters'
    WHEN NOT s.delay_seconds BETWEEN 0 AND 315360000 THEN 'delay_seconds must be from 0 to ten years'
    WHEN NOT pgwf._is_moment(s.available_at) OR NOT pgwf._is_moment(
        s.available_at + make_interval(secs => coalesce(s.delay_seconds, 0)))
        THEN 'available_at must be a time in the years 1 to 9999'
    WHEN s.max_attempts < 1 THEN 'max_attempts must be positive'
    WHEN s.on_dependency_cancelled NOT IN ('release', 'cancel') OR s.on_dependency_failed NOT IN ('release', 'cancel')
        THEN 'on_dependency_cancelled and on_dependency_failed must be release or cancel'
    WHEN NOT s.estimate BETWEEN 1 AND 9007199254740992 THEN 'estimate must be from 1 to 2^53'
    WHEN s.estimate IS NOT NULL AND s.owner IS NULL THEN 'estimate needs an owner: whose tokens would it reserve?'
    WHEN cardinality(s.wait_for) > 10000 THEN 'wait_for cannot name more than 10000 jobs'
END;

CREATE FUNCTION pgwf._check_specs(p_specs pgwf.job_spec[]) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_flaw TEXT := (  -- OFFSET 0: the long list of questions is made ready once, not once for each use of the answer
        SELECT flaw FROM (SELECT pgwf._flaw(s) AS flaw FROM unnest(p_specs) s OFFSET 0) each
        WHERE flaw IS NOT NULL LIMIT 1);
BEGIN
    IF v_flaw LIKE '% cannot be NULL' THEN
        RAISE EXCEPTION '%', v_flaw USING ERRCODE = 'null_value_not_allowed';
    ELSIF v_flaw IS NOT NULL THEN
        PERFORM pgwf._invalid(v_flaw);
    END IF;
END $$;

-- The whole of submitting. Answers, for each spec in order, with the id of the job that it made or, for a known
-- idempotency key, repeated. Takes the locks of keys, of what is waited for (shared), of accounts; see the lock order.
CREATE FUNCTION pgwf._submit(p_specs pgwf.job_spec[]) RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    v_answers  TEXT[];
    v_specs    pgwf.job_spec[] := p_specs;
    v_wait_for TEXT[];
    v_now      TIMESTAMPTZ;
BEGIN
    PERFORM pgwf._check_specs(p_specs);
    IF EXISTS (SELECT 1 FROM unnest(p_specs) WHERE idempotency_key IS NOT NULL) THEN
        v_answers := pgwf._known_keys(p_specs);
        SELECT coalesce(array_agg(ROW(
                   x.id, x.need, x.input, x.submitted_by, x.owner, x.priority, x.singleton_key, x.wait_for,
                   x.on_dependency_cancelled, x.on_dependency_failed, x.available_at, x.delay_seconds, x.max_attempts,
                   x.idempotency_key, x.body_hash, x.estimate, x.input_text)::pgwf.job_spec ORDER BY x.ordinality
               ) FILTER (WHERE x.unnest IS NULL), '{}'),
               array_agg(coalesce(x.unnest, x.id) ORDER BY x.ordinality)
        INTO v_specs, v_answers
        FROM ROWS FROM (unnest(p_specs), unnest(v_answers)) WITH ORDINALITY AS x;
    ELSE
        v_answers := ARRAY(SELECT id FROM unnest(p_specs));
    END IF;
    v_wait_for := ARRAY(SELECT DISTINCT unnest(wait_for) FROM unnest(v_specs));
    IF v_wait_for <> '{}' THEN
        PERFORM pgwf._check_dependencies(v_specs, v_wait_for);
    END IF;
    v_now := pgwf._now();
    PERFORM pgwf._insert_jobs(v_specs, v_now);
    IF v_wait_for <> '{}' THEN
        PERFORM pgwf._release_ended(v_wait_for, v_now);
    END IF;
    RETURN v_answers;
END $$;

-- Per spec the job that its idempotency key has, or the first spec here with the same key; NULL when it is new.
CREATE FUNCTION pgwf._known_keys(p_specs pgwf.job_spec[]) RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    v_lock    BIGINT;
    v_answers TEXT[];
    v_clash   RECORD;
BEGIN
    FOR v_lock IN
        SELECT DISTINCT hashtextextended('pgwf:key:' || coalesce(owner, '') || E'\x01' || idempotency_key, 0) AS lock
        FROM unnest(p_specs) WHERE idempotency_key IS NOT NULL ORDER BY lock
    LOOP
        PERFORM pg_advisory_xact_lock(v_lock);
    END LOOP;
    WITH spec AS (
        SELECT x.id, x.owner, x.idempotency_key AS key, x.ordinality AS place,
               pgwf._body_hash(x.need, coalesce(x.input_text, x.input::TEXT), x.body_hash) AS hash
        FROM unnest(p_specs) WITH ORDINALITY AS x
    ), stored AS (
        SELECT s.place, s.key, s.hash, k.job_id, k.body_hash FROM spec s CROSS JOIN LATERAL (
            SELECT j.job_id, j.body_hash FROM pgwf.jobs j
            WHERE coalesce(j.owner, '') = coalesce(s.owner, '') AND j.idempotency_key = s.key
            UNION ALL
            SELECT a.job_id, a.body_hash FROM pgwf.jobs_archive a
            WHERE coalesce(a.owner, '') = coalesce(s.owner, '') AND a.idempotency_key = s.key
            LIMIT 1) k
        WHERE s.key IS NOT NULL
    ), earlier AS (
        SELECT s.place, s.key, s.hash, f.id AS job_id, f.hash AS body_hash
        FROM spec s JOIN LATERAL (
            SELECT id, hash, place FROM spec e
            WHERE e.key = s.key AND coalesce(e.owner, '') = coalesce(s.owner, '') ORDER BY place LIMIT 1) f
        ON f.place < s.place
        WHERE s.key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM stored t WHERE t.place = s.place)
    ), known AS (SELECT * FROM stored UNION ALL SELECT * FROM earlier)
    SELECT array_agg(k.job_id ORDER BY s.place),
           min(ARRAY[k.key, k.job_id]) FILTER (WHERE k.hash IS DISTINCT FROM k.body_hash) AS clash
    INTO v_clash FROM spec s LEFT JOIN known k ON k.place = s.place;
    IF v_clash.clash IS NOT NULL THEN
        RAISE EXCEPTION 'idempotency key % already belongs to job %, submitted with another body',
            v_clash.clash[1], v_clash.clash[2]
            USING ERRCODE = 'PW010',
                  DETAIL = jsonb_build_object('key', v_clash.clash[1], 'job_id', v_clash.clash[2])::TEXT;
    END IF;
    v_answers := v_clash.array_agg;
    RETURN v_answers;
END $$;

-- What a repeated submit must repeat: the work asked for, not the id it got.
CREATE FUNCTION pgwf._body_hash(p_need TEXT, p_input TEXT, p_given TEXT) RETURNS TEXT LANGUAGE sql IMMUTABLE
RETURN coalesce(p_given, encode(sha256(
    convert_to(p_need, 'UTF8') || '\x00'::BYTEA || convert_to(coalesce(p_input, 'null'), 'UTF8')), 'hex'));

-- What jobs are to wait for exists, or is of their own batch and does not wait for them. Locks it against ending.
CREATE FUNCTION pgwf._check_dependencies(p_specs pgwf.job_spec[], p_wait_for TEXT[]) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_own     TEXT[] := ARRAY(SELECT id FROM unnest(p_specs));
    v_open    TEXT[];
    v_left    TEXT[];
    v_unknown TEXT[];
BEGIN
    PERFORM 1 FROM pgwf.jobs WHERE job_id = ANY (p_wait_for) ORDER BY job_id || '' FOR KEY SHARE;
    v_unknown := pgwf._unknown(ARRAY(
        SELECT id FROM (
            SELECT w.id, min(x.ordinality * 100000 + w.place) AS first
            FROM unnest(p_specs) WITH ORDINALITY AS x
            CROSS JOIN LATERAL unnest(x.wait_for) WITH ORDINALITY AS w (id, place)
            WHERE NOT w.id = ANY (v_own) GROUP BY w.id) each
        ORDER BY first));
    IF v_unknown IS NOT NULL THEN
        PERFORM pgwf._raise_unknown(v_unknown);
    END IF;
    -- Jobs that exist cannot wait for new ones, so a cycle must lie within the batch: take away, again and again,
    -- those that wait for none of the rest; what cannot be taken away waits for itself.
    v_open := ARRAY(SELECT id FROM unnest(p_specs) WHERE wait_for && v_own);
    LOOP
        v_left := ARRAY(SELECT id FROM unnest(p_specs) WHERE id = ANY (v_open) AND wait_for && v_open);
        EXIT WHEN cardinality(v_left) = cardinality(v_open);
        v_open := v_left;
    END LOOP;
    IF v_open <> '{}' THEN
        PERFORM pgwf._raise_cycle(pgwf._cycle_within(p_specs, v_open));
    END IF;
END $$;

-- A way round, among jobs each of which waits for another of them.
CREATE FUNCTION pgwf._cycle_within(p_specs pgwf.job_spec[], p_ids TEXT[]) RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    v_way TEXT[] := ARRAY[p_ids[1]];
    v_next TEXT;
BEGIN
    LOOP
        SELECT w INTO v_next FROM unnest(p_specs) s CROSS JOIN LATERAL unnest(s.wait_for) w
        WHERE s.id = v_way[cardinality(v_way)] AND w = ANY (p_ids) LIMIT 1;
        v_way := v_way || v_next;
        IF array_position(v_way, v_next) < cardinality(v_way) THEN
            RETURN v_way[array_position(v_way, v_next):];
        END IF;
    END LOOP;
END $$;

-- The rows of new jobs, their reservations and their first line of history. By id, so that two batches with the same
-- ids meet in the same order; places in the queue follow the order of the batch.
CREATE FUNCTION pgwf._insert_jobs(p_specs pgwf.job_spec[], p_now TIMESTAMPTZ) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_spec  pgwf.job_spec;
    v_needs TEXT[];
    v_keys  TEXT[];
    v_used  TEXT;
BEGIN
    FOR v_spec IN SELECT * FROM unnest(p_specs) s WHERE s.estimate IS NOT NULL ORDER BY s.owner LOOP
        PERFORM pgwf._reserve(v_spec.owner, v_spec.need, v_spec.id, v_spec.estimate, v_spec.submitted_by, p_now);
    END LOOP;
    WITH spec AS (
        SELECT s.id, s.need, coalesce(s.input_text::JSON, s.input, 'null') AS input, s.submitted_by, s.owner,
               coalesce(s.priority, 0) AS priority, s.singleton_key,
               CASE WHEN s.wait_for IS NULL THEN '{}' ELSE pgwf.normalize_wait_for(s.wait_for) END AS wait_for,
               coalesce(s.on_dependency_cancelled, 'release') AS on_dependency_cancelled,
               coalesce(s.on_dependency_failed, 'release') AS on_dependency_failed,
               coalesce(s.available_at, p_now) + make_interval(secs => coalesce(s.delay_seconds, 0)) AS available_at,
               s.max_attempts, s.idempotency_key, s.estimate, s.body_hash, nextval('pgwf.jobs_seq') AS seq
        FROM unnest(p_specs) s
    ), made AS (
        INSERT INTO pgwf.jobs AS j (
            job_id, next_need, wait_for, singleton_key, available_at, created_at, seq, payload, owner, priority,
            on_dependency_cancelled, on_dependency_failed, max_attempts, idempotency_key, body_hash, submitted_by,
            estimate, billing, stage)
        SELECT s.id, s.need, s.wait_for, s.singleton_key, s.available_at, p_now, s.seq, s.input, s.owner,
            s.priority, s.on_dependency_cancelled, s.on_dependency_failed, s.max_attempts, s.idempotency_key,
            CASE WHEN s.idempotency_key IS NOT NULL THEN pgwf._body_hash(s.need, s.input::TEXT, s.body_hash) END,
            s.submitted_by, s.estimate, CASE WHEN s.estimate IS NULL THEN 'NONE' ELSE 'RESERVED' END,
            pgwf._stage_of(s.wait_for, s.available_at, s.singleton_key, p_now)
        FROM spec s ORDER BY s.id
        RETURNING j AS job
    ), told AS (
        INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state)
        SELECT (job).job_id, 'job_submitted', (job).submitted_by, p_now, '{}', pgwf._submitted_facts(job),
               pgwf._state_of(job, p_now)
        FROM (SELECT job FROM made WHERE (SELECT trace FROM pgwf.settings WHERE only_row) ORDER BY (job).seq) each
    )
    SELECT array_agg(DISTINCT (job).next_need) FILTER (WHERE (job).stage IN ('ready', 'parked')),
           array_agg(DISTINCT (job).singleton_key) FILTER (WHERE (job).stage = 'parked')
    INTO v_needs, v_keys FROM made;
    -- After the insert, so that a job which ended this very moment is found there.
    SELECT job_id INTO v_used FROM pgwf.jobs_archive WHERE job_id = ANY (ARRAY(SELECT id FROM unnest(p_specs))) LIMIT 1;
    IF v_used IS NOT NULL THEN
        RAISE EXCEPTION 'job_id % has already completed and cannot be resubmitted', v_used
            USING ERRCODE = 'PW002', DETAIL = jsonb_build_object('job_id', v_used)::TEXT;
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- The caller's snapshot does not show who ended since it was taken; only unique indexes do.
        INSERT INTO pgwf.jobs_archive (job_id, next_need, owner, idempotency_key)
        SELECT id, need, owner, idempotency_key FROM unnest(p_specs) ORDER BY id;
        DELETE FROM pgwf.jobs_archive WHERE job_id = ANY (ARRAY(SELECT id FROM unnest(p_specs)));
    END IF;
    IF v_keys IS NOT NULL THEN
        PERFORM pgwf._elect_later(v_keys, p_now);
    END IF;
    PERFORM pgwf._notify_needs(v_needs);
END $$;

-- What a submit wrote down, leaving out defaults and the payload.
CREATE FUNCTION pgwf._submitted_facts(p_job pgwf.jobs) RETURNS JSONB LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'next_need', p_job.next_need, 'owner', p_job.owner, 'priority', nullif(p_job.priority, 0),
        'singleton_key', p_job.singleton_key,
        'wait_for', CASE WHEN p_job.wait_for <> '{}' THEN to_jsonb(p_job.wait_for) END,
        'on_dependency_cancelled', p_job.on_dependency_cancelled, 'on_dependency_failed', p_job.on_dependency_failed,
        'max_attempts', p_job.max_attempts, 'available_at', p_job.available_at,
        'idempotency_key', p_job.idempotency_key, 'body_hash', p_job.body_hash, 'estimate', p_job.estimate,
        'billing', nullif(p_job.billing, 'NONE')))
$$;
