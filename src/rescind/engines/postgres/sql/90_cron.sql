-- Extensions that help where they are to be had, and are not missed where they are not.
SET LOCAL client_min_messages = notice;

DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'pgcrypto') THEN
        RAISE NOTICE 'pgcrypto is not available here; nothing in pgwf needs it';
    ELSIF NOT EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'pgcrypto') THEN
        CREATE EXTENSION pgcrypto;
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE 'pgcrypto was not created (%); nothing in pgwf needs it', SQLERRM;
END $$;

-- The archival of cancelled jobs every minute, for installations without a rescind worker; with one it does no harm.
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'pg_cron') THEN
        RAISE NOTICE 'pg_cron is not available here; let a worker, rescind sweep or a cron job call pgwf.archive_cancelled_jobs';
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'pg_cron') THEN
        CREATE EXTENSION pg_cron;
    END IF;
    PERFORM cron.unschedule(jobid) FROM cron.job WHERE jobname = 'pgwf_archive_cancelled';
    PERFORM cron.schedule('pgwf_archive_cancelled', '* * * * *',
                          $job$SELECT pgwf.archive_cancelled_jobs('pgwf-cron', 500);$job$);
EXCEPTION WHEN OTHERS THEN
    -- Not preloaded, bound to another database, or not ours to use.
    RAISE NOTICE 'pg_cron is not used (%); let a worker, rescind sweep or a cron job call pgwf.archive_cancelled_jobs', SQLERRM;
END $$;
