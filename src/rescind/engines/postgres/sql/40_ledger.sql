-- Owners' accounts: an append-only ledger beside the balances, changed in the job's own transaction.

-- The rules of each need that has any; they are kept as one document, so that they change together.
CREATE VIEW pgwf.policies AS
SELECT each.key AS need, each.value AS rules
FROM pgwf.documents d CROSS JOIN jsonb_each(d.body) each
WHERE d.name = 'policies';

-- A rule that cannot be followed must not get in: every later move of its need would stumble over it.
CREATE FUNCTION pgwf._check_policies(p_body JSONB) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_flaw TEXT;
BEGIN
    IF jsonb_typeof(p_body) <> 'object' THEN
        PERFORM pgwf._invalid('policies must be an object: the rules of each need');
    END IF;
    SELECT format('the policy of %s has no rule %s', each.need, rule.line) INTO v_flaw
    FROM jsonb_each(p_body) AS each (need, rules)
    CROSS JOIN LATERAL (
        SELECT r.key, r.value, format('%s = %s', r.key, r.value) AS line
        FROM jsonb_each(CASE jsonb_typeof(each.rules) WHEN 'object' THEN each.rules ELSE '{}' END) r
        UNION ALL
        SELECT NULL, NULL, each.rules::TEXT WHERE jsonb_typeof(each.rules) <> 'object'
    ) rule
    WHERE CASE rule.key
        WHEN 'activation_timeout_seconds' THEN CASE jsonb_typeof(rule.value)
            WHEN 'number' THEN rule.value::NUMERIC > 0 AND rule.value::NUMERIC <= 315360000
            WHEN 'null' THEN TRUE END
        WHEN 'commit_on_cancel' THEN jsonb_typeof(rule.value) = 'boolean'
        WHEN 'min_start_fee' THEN rule.value::TEXT ~ '^[0-9]{1,15}$'
        WHEN 'units_per_token' THEN rule.value::TEXT ~ '^[1-9][0-9]{0,14}$'
    END IS NOT TRUE
    LIMIT 1;
    IF v_flaw IS NOT NULL THEN
        PERFORM pgwf._invalid(left(v_flaw, 1000));
    END IF;
END $$;

-- What of a reservation is spent when its job ends so: tokens used, rounded up over the total, capped by the estimate.
CREATE FUNCTION pgwf._cost(
    p_need TEXT, p_outcome TEXT, p_estimate BIGINT, p_usage BIGINT, p_started_at TIMESTAMPTZ
) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_rules  JSONB := (SELECT body -> p_need FROM pgwf.documents WHERE name = 'policies');
    v_ratio  BIGINT := coalesce((v_rules ->> 'units_per_token')::BIGINT, 1000);
    v_tokens BIGINT := (p_usage + v_ratio - 1) / v_ratio;
BEGIN
    IF p_outcome = 'COMPLETED' THEN
        RETURN least(v_tokens, p_estimate);
    ELSIF p_outcome = 'CANCELLED' AND p_started_at IS NOT NULL
        AND coalesce((v_rules ->> 'commit_on_cancel')::BOOLEAN, TRUE) THEN
        RETURN least(greatest(v_tokens, coalesce((v_rules ->> 'min_start_fee')::BIGINT, 0)), p_estimate);
    END IF;
    RETURN 0;
END $$;

-- One line in the ledger, with the balances after it. Locks the owner's account.
CREATE FUNCTION pgwf._enter(
    p_owner TEXT, p_kind TEXT, p_amount BIGINT, p_by TEXT, p_key TEXT, p_available BIGINT, p_reserved BIGINT,
    p_job_id TEXT, p_now TIMESTAMPTZ
) RETURNS pgwf.accounts LANGUAGE plpgsql AS $$
DECLARE
    v_after pgwf.accounts;
BEGIN
    UPDATE pgwf.accounts SET available = available + p_available, reserved = reserved + p_reserved
    WHERE owner = p_owner RETURNING * INTO v_after;
    IF NOT FOUND THEN
        INSERT INTO pgwf.accounts AS a (owner, available, reserved) VALUES (p_owner, p_available, p_reserved)
        ON CONFLICT (owner) DO UPDATE
            SET available = a.available + excluded.available, reserved = a.reserved + excluded.reserved
        RETURNING * INTO v_after;
    END IF;
    INSERT INTO pgwf.ledger (owner, kind, amount, job_id, key, at, actor, available_after, reserved_after)
    VALUES (p_owner, p_kind, p_amount, p_job_id, p_key, p_now, p_by, v_after.available, v_after.reserved);
    RETURN v_after;
END $$;

-- Set a metered job's estimate aside, or refuse the job.
CREATE FUNCTION pgwf._reserve(
    p_owner TEXT, p_need TEXT, p_job_id TEXT, p_estimate BIGINT, p_by TEXT, p_now TIMESTAMPTZ
) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_available BIGINT := coalesce((SELECT available FROM pgwf.accounts WHERE owner = p_owner FOR UPDATE), 0);
BEGIN
    IF v_available < p_estimate THEN
        RAISE EXCEPTION 'Not enough tokens to reserve: required=%, available=%', p_estimate, v_available
            USING ERRCODE = 'PW011',
                  DETAIL = jsonb_build_object('required', p_estimate, 'available', v_available)::TEXT;
    END IF;
    PERFORM pgwf._enter(p_owner, 'RESERVE', p_estimate, p_by, format('%s:%s:reserve', p_need, p_job_id),
                        -p_estimate, p_estimate, p_job_id, p_now);
END $$;

-- End a reservation. The unique key makes a second settlement of the same job impossible.
CREATE FUNCTION pgwf._charge(
    p_job pgwf.jobs, p_outcome TEXT, p_committed BIGINT, p_by TEXT, p_now TIMESTAMPTZ
) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_freed BIGINT := p_job.estimate - p_committed;
    v_key   TEXT := format('%s:%s:%s', p_job.next_need, p_job.job_id, CASE
        WHEN p_committed = 0 THEN 'release' WHEN p_outcome = 'CANCELLED' THEN 'commit-cancel' ELSE 'commit' END);
BEGIN
    IF p_committed > 0 THEN
        PERFORM pgwf._enter(p_job.owner, 'COMMIT', p_committed, p_by, v_key, 0, -p_committed, p_job.job_id, p_now);
        v_key := v_key || ':remainder';
    END IF;
    IF v_freed > 0 THEN
        PERFORM pgwf._enter(p_job.owner, 'RELEASE', v_freed, p_by, v_key, v_freed, -v_freed, p_job.job_id, p_now);
    END IF;
END $$;

CREATE FUNCTION pgwf.account(p_owner TEXT, OUT available BIGINT, OUT reserved BIGINT) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgwf._check_text(p_owner, 'owner');
    SELECT a.available, a.reserved INTO available, reserved FROM pgwf.accounts a WHERE a.owner = p_owner;
    available := coalesce(available, 0);
    reserved := coalesce(reserved, 0);
END $$;

-- Add to what an owner can spend; the same key twice adds once.
CREATE FUNCTION pgwf.credit(
    p_owner TEXT, p_amount BIGINT, p_worker_id TEXT, p_key TEXT DEFAULT NULL, OUT available BIGINT, OUT reserved BIGINT
) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_known pgwf.ledger;
    v_after pgwf.accounts;
BEGIN
    PERFORM pgwf._check_text(p_owner, 'owner', 1000);
    PERFORM pgwf._check_text(p_worker_id, 'worker_id');
    PERFORM pgwf._check_optional_text(p_key, 'key', 1000);
    PERFORM pgwf._not_null(p_amount::TEXT, 'amount');
    IF p_amount NOT BETWEEN 1 AND 9007199254740992 THEN
        PERFORM pgwf._invalid(format('amount must be from 1 to 2^53, not %s', p_amount));
    END IF;
    IF p_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('pgwf:ledger:' || p_key, 0));
        SELECT * INTO v_known FROM pgwf.ledger l WHERE l.key = p_key;
        IF v_known.owner = p_owner AND v_known.kind = 'CREDIT' AND v_known.amount = p_amount THEN
            SELECT a.available, a.reserved INTO available, reserved FROM pgwf.accounts a WHERE a.owner = p_owner;
            RETURN;
        ELSIF v_known.seq IS NOT NULL THEN
            RAISE EXCEPTION 'idempotency key % already belongs to another ledger entry', p_key
                USING ERRCODE = 'PW010', DETAIL = jsonb_build_object('key', p_key)::TEXT;
        END IF;
    END IF;
    v_after := pgwf._enter(p_owner, 'CREDIT', p_amount, p_worker_id, p_key, p_amount, 0, NULL, pgwf._now());
    available := v_after.available;
    reserved := v_after.reserved;
END $$;
