-- A database made by the first pgwf: its rows get the facts that were implied, whatever columns it had beside ours.

DO $$
DECLARE
    v_column RECORD;
BEGIN
    IF (SELECT udt_name FROM information_schema.columns
        WHERE table_schema = 'pgwf' AND table_name = 'jobs' AND column_name = 'lease_id') <> 'text' THEN
        ALTER TABLE pgwf.jobs ALTER COLUMN lease_id TYPE TEXT USING lease_id::TEXT;
    END IF;
    UPDATE pgwf.jobs SET lease_expires_at = '-infinity' WHERE lease_expires_at IS NULL;
    UPDATE pgwf.jobs SET lease_id = NULL WHERE lease_id IS NOT NULL AND lease_expires_at = '-infinity';
    UPDATE pgwf.jobs SET wait_for = '{}' WHERE wait_for IS NULL;
    UPDATE pgwf.jobs_archive SET wait_for = '{}' WHERE wait_for IS NULL;
    ALTER TABLE pgwf.jobs ALTER COLUMN lease_expires_at SET NOT NULL, ALTER COLUMN lease_expires_at SET DEFAULT '-infinity',
        ALTER COLUMN wait_for SET NOT NULL, ALTER COLUMN wait_for SET DEFAULT '{}';
    ALTER TABLE pgwf.jobs_archive ALTER COLUMN wait_for SET NOT NULL, ALTER COLUMN wait_for SET DEFAULT '{}';

    -- A column we do not know must not stop rows that we write.
    FOR v_column IN
        SELECT c.table_name, c.column_name FROM information_schema.columns c
        WHERE c.table_schema = 'pgwf' AND c.is_nullable = 'NO' AND c.column_default IS NULL AND c.is_identity = 'NO'
          AND (c.table_name = 'jobs' AND c.column_name NOT IN ('job_id', 'next_need')
               OR c.table_name = 'jobs_archive' AND c.column_name NOT IN ('job_id', 'next_need')
               OR c.table_name = 'jobs_trace' AND c.column_name NOT IN ('event_type'))
    LOOP
        EXECUTE format('ALTER TABLE pgwf.%I ALTER COLUMN %I DROP NOT NULL', v_column.table_name, v_column.column_name);
    END LOOP;
END $$;

UPDATE pgwf.jobs_archive
SET finished_at = archived_at, available_at = coalesce(available_at, created_at),
    outcome = CASE WHEN cancel_requested THEN 'CANCELLED' ELSE 'COMPLETED' END
WHERE finished_at IS NULL;

-- Rows that were written before stages existed; those written since are already right.
UPDATE pgwf.jobs SET
    lease_worker = CASE WHEN lease_id IS NOT NULL THEN coalesce(lease_worker, 'unknown') END,
    stopped_at = CASE WHEN cancel_requested AND lease_id IS NULL THEN coalesce(stopped_at, cancel_requested_at) END,
    stage = CASE
        WHEN lease_id IS NOT NULL THEN 'leased'
        WHEN cancel_requested THEN 'cancelled'
        WHEN wait_for <> '{}' THEN 'waiting'
        WHEN available_at > clock_timestamp() THEN 'future'
        WHEN singleton_key IS NOT NULL THEN 'parked'
        ELSE 'ready'
    END
WHERE stage = 'ready' AND (lease_id IS NOT NULL OR cancel_requested OR wait_for <> '{}' OR singleton_key IS NOT NULL
    OR available_at > clock_timestamp())
  AND to_regclass('pgwf.jobs_ready') IS NULL;
-- The first pgwf could lease two jobs of one key in a batch; the later ones lose the key, not the work.
UPDATE pgwf.jobs late SET singleton_key = NULL
WHERE late.stage = 'leased' AND to_regclass('pgwf.jobs_ready') IS NULL AND EXISTS (
    SELECT 1 FROM pgwf.jobs early
    WHERE early.stage = 'leased' AND early.singleton_key = late.singleton_key AND early.seq < late.seq);
UPDATE pgwf.jobs SET lease_expires_at = '-infinity' WHERE lease_id IS NULL AND lease_expires_at > '-infinity';
INSERT INTO pgwf.singleton_holds (singleton_key, until)
SELECT DISTINCT singleton_key, clock_timestamp() FROM pgwf.jobs
WHERE stage = 'parked' AND to_regclass('pgwf.jobs_ready') IS NULL;
