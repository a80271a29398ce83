-- pgwf: durable jobs you can take back, in plain SQL. PostgreSQL 15 or newer, no extension needed.
--
-- One job is one row. While it lives it is in pgwf.jobs, afterwards in pgwf.jobs_archive; its id is never used
-- again. Rows hold facts; what a job *is* follows from them and the clock (pgwf._state_of, and the views
-- jobs_with_status and jobs_friendly_status). Every move is a function, and a client needs nothing else:
--
--   submit_job, submit_jobs                         a job begins
--   get_work                                        a worker leases jobs it can do
--   extend_lease, extend_jobs                       it goes on holding them, and hears of cancel requests
--   complete_job, fail_job, release_job, reschedule_job, acknowledge_cancel, settle_jobs
--                                                   its last word; settle_jobs takes new work in the same call
--   complete_unheld_job, reschedule_unheld_job      the same for a job that nobody holds
--   cancel_job, cancel_jobs                         stop it: at once while it waits, by request while it runs
--   archive_cancelled_jobs, sweep                   what time alone has decided
--
-- Guarantees: a cancelled job is never handed out again; a lease is held by one worker, and only that worker moves
-- the job under it; at most one job per singleton key is leased; the cost of a metered job is settled in the
-- transaction that ends it; a function that raises has changed nothing.
--
-- Lock order, which makes deadlock impossible between these functions:
--   1. the dependency graph (advisory), by those who make an existing job wait for others
--   2. idempotency keys (advisory), sorted
--   3. rows of pgwf.jobs: all that a call will touch, its dependents included, in one statement, by job_id
--      (_lock_jobs). Nobody waits for a job's row after that: what turns up later is taken with SKIP LOCKED,
--      or left for the next sweep, or the call fails with 40001 and may be repeated
--   4. rows of pgwf.accounts: all that a call will touch, by owner; sweeps only try
--   5. singleton keys (advisory): only ever tried, never waited for
-- Claims and sweeps skip what is locked and wait for nobody. Only what ends a job locks its row against those who just
-- made something wait for it (FOR UPDATE); who claims, extends or cancels it does not mind them (FOR NO KEY UPDATE).
--
-- Plans. A session plans a statement once and may do so while the tables are empty; what is best then must still be right
-- at a million rows. So the functions forbid sequential scans and keep one plan; jobs are found by `job_id = ANY (...)`
-- and joined or sorted on `job_id || ''`, which no index order can serve: the whole index is then never worth reading.
-- That makes the one row of settings look dear, so jit is off: nothing is to be compiled for its sake.
--
-- This script may be run as often as one likes, also over an older version: nothing stored is lost.

BEGIN;
SET LOCAL client_min_messages = warning;
DO $$ BEGIN PERFORM pg_advisory_xact_lock(hashtextextended('pgwf:install', 0)); END $$;
CREATE SCHEMA IF NOT EXISTS pgwf;

-- A schema from a newer version is left alone.
DO $$
DECLARE
    v_there INTEGER;
BEGIN
    IF to_regclass('pgwf.settings') IS NOT NULL THEN
        SELECT schema_version INTO v_there FROM pgwf.settings;
        IF v_there > 1 THEN
            RAISE EXCEPTION 'this database has pgwf version %, newer than this script (1)', v_there
                USING ERRCODE = 'PW013', HINT = 'install a newer rescind';
        END IF;
    END IF;
END $$;

-- The first version kept its settings in functions.
DO $$
BEGIN
    IF to_regclass('pgwf.settings') IS NULL THEN
        IF to_regprocedure('pgwf.is_trace_enabled()') IS NOT NULL THEN
            PERFORM set_config('pgwf.old_trace', pgwf.is_trace_enabled()::TEXT, TRUE);
        END IF;
        IF to_regprocedure('pgwf.is_notify_enabled()') IS NOT NULL THEN
            PERFORM set_config('pgwf.old_notify', pgwf.is_notify_enabled()::TEXT, TRUE);
        END IF;
    END IF;
END $$;

-- Views and functions are made anew, whatever shape an older version gave them: one overload per name. What a view uses
-- goes after the views, what uses a view before them; and among functions the newest goes first.
DO $$
DECLARE
    v_old REGPROCEDURE;
BEGIN
    FOR v_pass IN 1 .. 2 LOOP
        FOR v_old IN
            SELECT oid::REGPROCEDURE FROM pg_proc WHERE pronamespace = 'pgwf'::REGNAMESPACE ORDER BY oid DESC
        LOOP
            BEGIN
                EXECUTE format('DROP ROUTINE %s', v_old);
            EXCEPTION WHEN dependent_objects_still_exist THEN
                IF v_pass = 2 THEN
                    RAISE;
                END IF;
            END;
        END LOOP;
        DROP VIEW IF EXISTS pgwf.jobs_friendly_status, pgwf.jobs_with_status, pgwf.policies;
    END LOOP;
END $$;
