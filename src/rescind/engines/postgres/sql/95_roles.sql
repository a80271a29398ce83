-- Who may do what. Functions run with the rights of their owner and touch nothing but this schema; nobody gets a table.

REVOKE ALL ON SCHEMA pgwf FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgwf FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA pgwf FROM PUBLIC;

DO $$
DECLARE
    v_role  TEXT;
    v_looks TEXT[] := ARRAY[
        'schema_version', 'is_trace_enabled', 'is_notify_enabled', 'get_jobs', 'list_jobs', 'count_jobs',
        'job_history', 'changes', 'list_workers', 'account', 'get_document', 'look', 'normalize_wait_for',
        'cancelling_jobs', '_now', '_state_of'];
    v_submits TEXT[] := ARRAY['submit_job', 'submit_jobs', 'cancel_job', 'cancel_jobs'];
    v_works TEXT[] := ARRAY[
        'get_work', 'extend_lease', 'extend_jobs', 'complete_job', 'fail_job', 'release_job', 'reschedule_job',
        'acknowledge_cancel', 'settle_jobs', 'complete_unheld_job', 'reschedule_unheld_job',
        'archive_cancelled_jobs', 'sweep'];
    v_operates TEXT[] := ARRAY[
        'complete_unheld_job', 'reschedule_unheld_job', 'archive_cancelled_jobs', 'sweep', 'credit', 'put_document',
        'set_trace', 'set_notify', 'check', 'cancel_job', 'cancel_jobs'];
    v_may TEXT[];
BEGIN
    FOREACH v_role IN ARRAY ARRAY['pgwf_producer', 'pgwf_worker', 'pgwf_operator', 'pgwf_observer'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = v_role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;  -- made this moment, for another database
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'role % could not be created: ask an administrator for it and run this again', v_role;
                    CONTINUE;
            END;
        END IF;
        v_may := v_looks || CASE v_role
            WHEN 'pgwf_producer' THEN v_submits WHEN 'pgwf_worker' THEN v_works || v_submits
            WHEN 'pgwf_operator' THEN v_operates || 'submit_job'::TEXT || 'submit_jobs'::TEXT ELSE '{}' END;
        EXECUTE format('GRANT USAGE ON SCHEMA pgwf TO %I', v_role);
        EXECUTE format('GRANT SELECT ON pgwf.settings, pgwf.jobs_with_status, pgwf.jobs_friendly_status, pgwf.policies '
                       'TO %I', v_role);
        EXECUTE (SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I',
                               string_agg(DISTINCT format('pgwf.%I', name), ', '), v_role)
                 FROM unnest(v_may) name);
    END LOOP;
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'pgwf_observer') THEN
        GRANT SELECT ON pgwf.jobs_trace, pgwf.jobs_archive TO pgwf_observer;
    END IF;
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'pgwf_operator') THEN
        GRANT SELECT ON pgwf.jobs_trace, pgwf.jobs_archive, pgwf.ledger, pgwf.accounts TO pgwf_operator;
    END IF;
END $$;

COMMIT;
