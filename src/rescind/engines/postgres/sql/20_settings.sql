-- Time, settings, trace and notifications.

-- The one clock of the schema; its offset is a row that only the owner may write.
CREATE FUNCTION pgwf._now() RETURNS TIMESTAMPTZ LANGUAGE plpgsql AS $$
BEGIN
    RETURN clock_timestamp() + (SELECT clock_offset FROM pgwf.settings WHERE only_row);
END $$;

CREATE FUNCTION pgwf.schema_version() RETURNS INTEGER LANGUAGE sql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN (SELECT schema_version FROM pgwf.settings);

CREATE FUNCTION pgwf.set_trace(p_enabled BOOLEAN) RETURNS VOID LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgwf._not_null(p_enabled::TEXT, 'enabled');
    UPDATE pgwf.settings SET trace = p_enabled;
END $$;

CREATE FUNCTION pgwf.is_trace_enabled() RETURNS BOOLEAN LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT trace FROM pgwf.settings WHERE only_row);
END $$;

CREATE FUNCTION pgwf.set_notify(p_enabled BOOLEAN) RETURNS VOID LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgwf._not_null(p_enabled::TEXT, 'enabled');
    UPDATE pgwf.settings SET notify = p_enabled;
END $$;

CREATE FUNCTION pgwf.is_notify_enabled() RETURNS BOOLEAN LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT notify FROM pgwf.settings WHERE only_row);
END $$;

-- One line of a job's history. Statements that move many jobs insert their lines in bulk instead.
CREATE FUNCTION pgwf._emit_trace_event(
    p_job_id TEXT, p_event_type TEXT, p_worker_id TEXT, p_input JSONB, p_output JSONB DEFAULT NULL,
    p_state TEXT DEFAULT NULL, p_reason TEXT DEFAULT NULL
) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF pgwf.is_trace_enabled() THEN
        INSERT INTO pgwf.jobs_trace (job_id, event_type, worker_id, event_at, input_data, output_data, state, reason)
        VALUES (p_job_id, p_event_type, p_worker_id, pgwf._now(), coalesce(p_input, '{}'), p_output, p_state, p_reason);
    END IF;
END $$;

-- There may be work for these needs. Sent at commit, once per need and transaction, however often it is said.
CREATE FUNCTION pgwf._notify_needs(p_needs TEXT[]) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF p_needs <> '{}' AND pgwf.is_notify_enabled() THEN
        PERFORM pg_notify('pgwf.need.' || need, '') FROM unnest(p_needs) need
        WHERE octet_length(need) <= 53 GROUP BY need;  -- the first pgwf took longer ones: nobody can listen for those
    END IF;
END $$;

CREATE FUNCTION pgwf._notify_need(p_need TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgwf._notify_needs(ARRAY[p_need]);
END $$;

-- Workers that hold these jobs are to stop them. A message has room for some 8,000 bytes, so ids go in groups.
CREATE FUNCTION pgwf._notify_cancel(p_ids TEXT[]) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF p_ids <> '{}' AND pgwf.is_notify_enabled() THEN
        PERFORM pg_notify('pgwf.cancel', string_agg(id, E'\n'))
        FROM unnest(p_ids) WITH ORDINALITY AS each (id, place) WHERE octet_length(id) <= 512 GROUP BY place / 14;
    END IF;
END $$;

-- Cancelled jobs wait for their archival.
CREATE FUNCTION pgwf._notify_sweep() RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF pgwf.is_notify_enabled() THEN
        PERFORM pg_notify('pgwf.sweep', '');
    END IF;
END $$;

-- Bad input: what a caller may not say, refused before anything is touched.

CREATE FUNCTION pgwf._invalid(p_message TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', p_message USING ERRCODE = 'invalid_parameter_value';
END $$;

CREATE FUNCTION pgwf._not_null(p_value TEXT, p_name TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF p_value IS NULL THEN
        RAISE EXCEPTION '% cannot be NULL', p_name USING ERRCODE = 'null_value_not_allowed';
    END IF;
END $$;

-- A text that must be there: not blank, not long, no control characters.
CREATE FUNCTION pgwf._check_text(p_value TEXT, p_name TEXT, p_bytes INTEGER DEFAULT 4000) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgwf._not_null(p_value, p_name);
    IF btrim(p_value) = '' THEN
        PERFORM pgwf._invalid(p_name || ' cannot be empty');
    ELSIF octet_length(p_value) > p_bytes THEN
        PERFORM pgwf._invalid(format('%s cannot be longer than %s bytes', p_name, p_bytes));
    ELSIF p_value ~ '[\x01-\x1f\x7f]' THEN
        PERFORM pgwf._invalid(p_name || ' cannot contain control characters');
    END IF;
END $$;

CREATE FUNCTION pgwf._check_optional_text(p_value TEXT, p_name TEXT, p_bytes INTEGER DEFAULT 4000) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
    IF p_value IS NOT NULL THEN
        PERFORM pgwf._check_text(p_value, p_name, p_bytes);
    END IF;
END $$;

-- A time that every client can read: most know the years 1 to 9999 and no more.
CREATE FUNCTION pgwf._is_moment(p_value TIMESTAMPTZ) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE
RETURN p_value BETWEEN TIMESTAMPTZ '0001-01-01 00:00:00+00' AND TIMESTAMPTZ '9999-12-31 23:59:59.999999+00';

-- A number of seconds: from 0, or from just above it, up to ten years.
CREATE FUNCTION pgwf._check_seconds(p_value DOUBLE PRECISION, p_name TEXT, p_positive BOOLEAN DEFAULT TRUE) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgwf._not_null(p_value::TEXT, p_name);
    IF p_positive AND NOT p_value > 0 OR p_value < 0 THEN
        PERFORM pgwf._invalid(p_name || CASE WHEN p_positive THEN ' must be positive' ELSE ' cannot be negative' END);
    ELSIF NOT p_value <= 315360000 THEN  -- NaN is greater than any number
        PERFORM pgwf._invalid(p_name || ' cannot be more than ten years');
    END IF;
END $$;

CREATE FUNCTION pgwf._check_limit(p_value INTEGER, p_name TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgwf._not_null(p_value::TEXT, p_name);
    IF p_value <= 0 THEN
        PERFORM pgwf._invalid(p_name || ' must be positive');
    END IF;
END $$;
