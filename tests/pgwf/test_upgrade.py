"""The script over a database of the first pgwf: no row is lost, and everything can be gone on with."""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest
from psycopg import sql

from rescind.engines.postgres.script import script
from tests.pgwf.client import Client
from tests.pgwf.databases import description, temporary_database, works
from tests.pgwf.first_version import LEASES, LONG, make_first_version

REMEMBER: Final = """
    CREATE TABLE jobs_before AS
        SELECT job_id, next_need, wait_for, available_at, lease_id::text, lease_expires_at, created_at
        FROM pgwf.jobs;
    CREATE TABLE jobs_archive_before AS SELECT * FROM pgwf.jobs_archive;
    CREATE TABLE jobs_trace_before AS SELECT * FROM pgwf.jobs_trace;
"""


@pytest.fixture(scope="module", params=[("UUID", False), ("TEXT", True)], ids=["uuid", "text-cancelling"])
def old(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A database that the first pgwf made, in the meantime upgraded."""
    lease_type, cancelling = request.param
    with temporary_database() as url, closing(Client(url)) as client:
        make_first_version(client, lease_type, cancelling=cancelling)
        client.rows(REMEMBER)
        client.rows(script())
        yield client


@pytest.fixture
def upgraded(old: Client) -> Iterator[Client]:
    """For one test, after which it is as before."""
    with old.undone():
        yield old


def has_cancelled(db: Client) -> bool:
    return bool(db.rows("SELECT 1 FROM pgwf.jobs WHERE job_id = 'cancelled'"))


def test_an_upgrade_loses_no_row(upgraded: Client) -> None:
    cancelling = has_cancelled(upgraded)

    live = {row["job_id"] for row in upgraded.rows("SELECT job_id FROM pgwf.jobs")}
    archived = {row["job_id"] for row in upgraded.rows("SELECT job_id FROM pgwf.jobs_archive")}

    assert live == {
        *(
            "ready",
            "future",
            "waiting",
            "keyed-1",
            "keyed-2",
            "live",
            "lapsed",
            "given-back",
            "twin-1",
            "twin-2",
        ),
        "long" * 250,
        *(("cancelled", "asked", "asked-lapsed") if cancelling else ()),
    }
    assert archived == {"done", *(("stopped",) if cancelling else ())}
    assert [row["event_type"] for row in upgraded.trace(job_id="done")] == ["job_submitted", "job_finished"]


@pytest.mark.parametrize("table", ["jobs", "jobs_archive", "jobs_trace"])
def test_an_upgrade_keeps_what_the_columns_said(upgraded: Client, table: str) -> None:
    columns = sql.SQL(", ").join(
        sql.Identifier(row["column_name"])
        for row in upgraded.rows(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY 1",
            f"{table}_before",
        )
    )
    lost = upgraded.rows(
        sql.SQL("SELECT {0} FROM {1} EXCEPT SELECT {0} FROM {2}").format(
            columns, sql.Identifier(f"{table}_before"), sql.Identifier("pgwf", table)
        )
    )

    # Only a lease that had no end is gone: nobody held it.
    assert [row["job_id"] for row in lost] == (["given-back"] if table == "jobs" else [])


def test_an_upgraded_schema_agrees_with_itself(upgraded: Client) -> None:
    assert upgraded.call("check") == []


def test_an_upgraded_schema_is_as_a_new_one_but_for_the_columns_it_had_more(old: Client) -> None:
    with temporary_database() as url, closing(Client(url)) as fresh:
        fresh.rows(script())
        new, upgraded = (
            {re.sub(" [tf]$", "", row["what"]) for row in description(each)}  # whether or not it may be NULL
            for each in (fresh, old)
        )

    assert new - upgraded == set()


def test_the_statuses_of_old_rows_are_right(upgraded: Client) -> None:
    statuses = {
        row["job_id"]: row["status"]
        for row in upgraded.rows("SELECT job_id, status FROM pgwf.jobs_with_status")
    }
    cancelled = {"cancelled": "CANCELLED", "asked": "ACTIVE", "asked-lapsed": "CANCELLED"}

    assert statuses == {
        "ready": "READY",
        "future": "AWAITING_FUTURE",
        "waiting": "PENDING_JOBS",
        "keyed-1": "READY",
        "keyed-2": "READY",
        "live": "ACTIVE",
        "lapsed": "READY",
        "given-back": "READY",
        "long" * 250: "READY",
        "twin-1": "ACTIVE",
        "twin-2": "ACTIVE",
        **(cancelled if has_cancelled(upgraded) else {}),
    }


def test_old_rows_can_be_claimed_in_their_order(upgraded: Client) -> None:
    assert upgraded.claims("work") == ["ready"]
    assert upgraded.claims("keyed") == ["keyed-1"]
    assert upgraded.claims("lapsed", "back") == ["lapsed", "given-back"]
    upgraded.advance(3600)
    assert "future" in upgraded.claims("work")


def test_old_leases_still_hold(upgraded: Client) -> None:
    # Given the jobs that workers held over the upgrade, by their old lease ids,
    for job_id in ("live", "twin-1", "twin-2"):
        upgraded.answer("extend_lease", job_id, LEASES[job_id], "worker")

        # When they end them, then that is accepted,
        assert upgraded.answer("complete_job", job_id, LEASES[job_id], "worker") is True

    # and lets go what waited for them.
    assert upgraded.job("waiting")["wait_for"] == ["ready"]
    assert upgraded.call("check") == []


def test_old_rows_can_be_cancelled_and_archived(upgraded: Client) -> None:
    for job_id in ("ready", "future", "waiting", "keyed-1", "live"):
        upgraded.cancel(job_id)
    upgraded.advance(3601)
    upgraded.call("sweep", "sweeper")

    assert upgraded.archived("live")["outcome"] == "CANCELLED"
    assert upgraded.claims("keyed") == ["keyed-2"]
    assert upgraded.call("check") == []


def test_names_that_are_too_long_today_are_in_nobodys_way(upgraded: Client) -> None:
    """Notifications are on, and can name neither such a need nor such a job."""
    upgraded.call("sweep", "sweeper")
    (lease,) = upgraded.call("get_work", "worker", [LONG])
    job_id = lease["job_id"]
    upgraded.answer("release_job", job_id, lease["lease_id"], "worker")
    upgraded.claim(LONG)

    assert upgraded.cancel(job_id)["cancel_requested"]


def test_old_cancels_are_kept_and_finished(upgraded: Client) -> None:
    if not has_cancelled(upgraded):
        assert upgraded.archive() == 0
        return
    assert upgraded.archive() == 2
    assert upgraded.archived("cancelled")["cancel_requested_by"] == "alice"
    assert upgraded.refusal("extend_lease", "asked", LEASES["asked"], "worker").code == "PW004"
    assert upgraded.answer("acknowledge_cancel", "asked", LEASES["asked"], "worker") == "CANCELLED"
    assert upgraded.archived("stopped")["outcome"] == "CANCELLED"


def test_old_ids_are_not_given_again(upgraded: Client) -> None:
    assert upgraded.refusal("submit_job", "done", "producer", "work").code == "PW002"
    assert upgraded.refusal("submit_job", "ready", "producer", "work").code == "23505"


def test_old_settings_are_kept(upgraded: Client) -> None:
    """They were functions that said so."""
    assert (upgraded.answer("is_trace_enabled"), upgraded.answer("is_notify_enabled")) == (False, True)


def test_an_upgraded_schema_works(upgraded: Client) -> None:
    upgraded.answer("set_trace", True)

    works(upgraded)


def test_an_upgraded_schema_is_left_alone_by_the_next_upgrade(old: Client) -> None:
    before = (description(old), old.contents())

    old.rows(script())

    assert (description(old), old.contents()) == before
