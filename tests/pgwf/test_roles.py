"""Who may do what: four roles, nothing for PUBLIC, no table to write, and no way to put other code in the
place of the schema's own. What these tests create they take back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, LiteralString

import psycopg
import pytest

from tests.pgwf.calls import ROLES, good_calls
from tests.pgwf.client import Client, Refusal, refusal_of

LOOK: Final = {
    "_now",
    "_state_of",
    "account",
    "cancelling_jobs",
    "changes",
    "count_jobs",
    "get_document",
    "get_jobs",
    "is_notify_enabled",
    "is_trace_enabled",
    "job_history",
    "list_jobs",
    "list_workers",
    "look",
    "normalize_wait_for",
    "schema_version",
}
SUBMIT: Final = {"submit_job", "submit_jobs", "cancel_job", "cancel_jobs"}
REPAIR: Final = {"complete_unheld_job", "reschedule_unheld_job", "archive_cancelled_jobs", "sweep"}
WORK: Final = {
    "acknowledge_cancel",
    "complete_job",
    "extend_jobs",
    "extend_lease",
    "fail_job",
    "get_work",
    "release_job",
    "reschedule_job",
    "settle_jobs",
}
OPERATE: Final = {"check", "credit", "put_document", "set_notify", "set_trace"}

MAY: Final = {
    "pgwf_observer": LOOK,
    "pgwf_producer": LOOK | SUBMIT,
    "pgwf_worker": LOOK | SUBMIT | REPAIR | WORK,
    "pgwf_operator": LOOK | SUBMIT | REPAIR | OPERATE,
}
READ: Final = {"jobs_with_status", "jobs_friendly_status", "policies", "settings"}
MAY_READ: Final = {
    "pgwf_observer": READ | {"jobs_archive", "jobs_trace"},
    "pgwf_producer": READ,
    "pgwf_worker": READ,
    "pgwf_operator": READ | {"jobs_archive", "jobs_trace", "ledger", "accounts"},
}
FORBIDDEN: Final = "42501"


@contextmanager
def acting(db: Client, role: str) -> Iterator[None]:
    """Inside a transaction, which forgets it."""
    db.rows("SELECT set_config('role', %s, TRUE)", role)
    yield
    db.rows("RESET ROLE")


def names(db: Client, kind: LiteralString) -> list[str]:
    return [row["name"] for row in db.rows(kind)]


FUNCTIONS: Final = "SELECT proname AS name FROM pg_proc WHERE pronamespace = 'pgwf'::regnamespace ORDER BY 1"
RELATIONS: Final = (
    "SELECT relname AS name FROM pg_class"
    " WHERE relnamespace = 'pgwf'::regnamespace AND relkind IN ('r', 'v', 'S') ORDER BY 1"
)


def tried(db: Client, statement: LiteralString, *values: object) -> Refusal | None:
    try:
        with db.undone():
            db.rows(statement, *values)
    except psycopg.Error as problem:
        return refusal_of(problem)
    return None


# Functions


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_call_its_functions_and_no_other(db: Client, role: str) -> None:
    may = {
        name
        for name in names(db, FUNCTIONS)
        if db.value("SELECT has_function_privilege(%s, %s::regproc, 'EXECUTE')", role, f"pgwf.{name}")
    }

    assert may == MAY[role]


@pytest.mark.parametrize("role", ROLES)
def test_calls_are_allowed_or_refused_accordingly(db: Client, role: str) -> None:
    """A permitted call works without any right on tables; every other is refused before it does anything."""
    outcomes = {}
    for function, call in good_calls(db).items():
        try:
            with db.undone(), acting(db, role):
                db.call(function, **call)
            outcomes[function] = "allowed"
        except psycopg.errors.InsufficientPrivilege as problem:
            outcomes[function] = str(problem.diag.message_primary)

    assert outcomes == {
        function: "allowed" if function in MAY[role] else f"permission denied for function {function}"
        for function in outcomes
    }


def test_the_rest_of_a_settlement_is_open_to_those_who_may_settle(db: Client) -> None:
    """A whole life of a job, by the roles that are meant for it."""
    with db.undone():
        with acting(db, "pgwf_operator"):
            db.call("credit", "owner", 100, "operator")
            db.answer("set_notify", True)
        with acting(db, "pgwf_producer"):
            db.submit("a", p_owner="owner", p_estimate=10, p_singleton_key="key")
            db.submit("b", p_wait_for=["a"], p_on_dependency_failed="cancel")
        with acting(db, "pgwf_worker"):
            lease = db.claim()["lease_id"]
            assert db.answer("fail_job", "a", lease, "worker", "broken") == "FAILED"
            db.call("sweep", "sweeper")
        with acting(db, "pgwf_observer"):
            history = db.call("job_history", "b")

    assert [event["event_type"] for event in history][-1] == "job_cancel_archived"


# Tables and views


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_read_what_it_needs_and_write_no_table(db: Client, role: str) -> None:
    may: dict[str, set[str]] = {}
    for relation in names(db, RELATIONS):
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"):
            if db.value("SELECT has_table_privilege(%s, %s::regclass, %s)", role, f"pgwf.{relation}", right):
                may.setdefault(right, set()).add(relation)

    assert may == {"SELECT": MAY_READ[role]}


@pytest.mark.parametrize("role", ROLES)
def test_the_views_can_be_read_and_the_tables_cannot_be_written(db: Client, role: str) -> None:
    db.submit("a")
    with db.undone(), acting(db, role):
        assert db.status("a") == "READY"
        assert db.friendly("a")["status"] == "READY"
        for statement in (
            "INSERT INTO pgwf.jobs (job_id, next_need) VALUES ('b', 'work')",
            "UPDATE pgwf.jobs SET cancel_requested = FALSE",
            "DELETE FROM pgwf.jobs_trace",
            "UPDATE pgwf.accounts SET available = 1000000",
            "SELECT * FROM pgwf.jobs FOR UPDATE",
            "SELECT nextval('pgwf.jobs_seq')",
            "CREATE TABLE pgwf.mine ()",
            "CREATE FUNCTION pgwf.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "ALTER TABLE pgwf.jobs DISABLE TRIGGER ALL",
            "DROP FUNCTION pgwf.cancel_job",
        ):
            refusal = tried(db, statement)
            assert refusal and refusal.code == FORBIDDEN, statement


@pytest.mark.parametrize("role", ROLES)
def test_nobody_but_the_owner_moves_the_clock(db: Client, role: str) -> None:
    with db.undone(), acting(db, role):
        for statement in (
            "UPDATE pgwf.settings SET clock_offset = '1 year'",
            "INSERT INTO pgwf.settings (schema_version, clock_offset) VALUES (1, '1 year')",
            "DELETE FROM pgwf.settings",
        ):
            refusal = tried(db, statement)
            assert refusal and refusal.code == FORBIDDEN


# PUBLIC


@pytest.fixture
def stranger(db: Client) -> Iterator[str]:
    """A role that was granted nothing, inside a transaction that forgets it."""
    with db.undone():
        db.rows("CREATE ROLE pgwf_test_stranger")
        yield "pgwf_test_stranger"


def test_who_was_granted_nothing_may_do_nothing(db: Client, stranger: str) -> None:
    functions = [
        name
        for name in names(db, FUNCTIONS)
        if db.value("SELECT has_function_privilege(%s, %s::regproc, 'EXECUTE')", stranger, f"pgwf.{name}")
    ]
    relations = [
        name
        for name in names(db, RELATIONS)
        if db.value("SELECT has_any_column_privilege(%s, %s::regclass, 'SELECT')", stranger, f"pgwf.{name}")
    ]

    assert (functions, relations) == ([], [])
    assert not db.value("SELECT has_schema_privilege(%s, 'pgwf', 'USAGE')", stranger)
    with acting(db, stranger):
        refusal = tried(db, "SELECT pgwf.cancel_job('a', 'stranger')")
    assert refusal and refusal.code == FORBIDDEN


def test_nothing_at_all_is_granted_to_public(db: Client) -> None:
    granted = db.rows(
        "SELECT objid FROM (SELECT oid AS objid, proacl AS acl, pronamespace AS schema FROM pg_proc"
        " UNION ALL SELECT oid, relacl, relnamespace FROM pg_class"
        " UNION ALL SELECT oid, nspacl, oid FROM pg_namespace) each"
        " CROSS JOIN LATERAL aclexplode(acl) WHERE schema = 'pgwf'::regnamespace AND grantee = 0"
    )
    without_a_list = db.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'pgwf'::regnamespace AND proacl IS NULL"
    )

    assert (granted, without_a_list) == ([], [])  # a function without a list may be called by everybody


# Code in the place of ours


def test_every_function_with_the_rights_of_its_owner_pins_its_search_path(db: Client) -> None:
    definers = db.rows(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'pgwf'::regnamespace AND prosecdef"
    )

    assert len(definers) >= 30
    for row in definers:
        assert "search_path=pg_catalog, pg_temp" in (row["proconfig"] or []), row["proname"]


def test_what_a_role_may_call_has_the_rights_of_its_owner_or_needs_none(db: Client) -> None:
    invokers = db.rows(
        "SELECT proname AS name FROM pg_proc WHERE pronamespace = 'pgwf'::regnamespace AND NOT prosecdef"
        " AND has_function_privilege('pgwf_operator', oid, 'EXECUTE') ORDER BY 1"
    )

    assert [row["name"] for row in invokers] == ["_now", "_state_of", "normalize_wait_for"]


ATTACKS: Final = (
    # Functions and operators that the schema uses, made anew in front of the real ones.
    """
    CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO loot VALUES (current_user); RETURN pg_catalog.clock_timestamp(); END $$;
    CREATE FUNCTION {schema}.btrim(text) RETURNS text LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO loot VALUES (current_user); RETURN pg_catalog.btrim($1); END $$;
    CREATE FUNCTION {schema}.cardinality(anyarray) RETURNS int LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO loot VALUES (current_user); RETURN pg_catalog.cardinality($1); END $$;
    CREATE FUNCTION {schema}.same(text, text) RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO loot VALUES (current_user); RETURN TRUE; END $$;
    CREATE OPERATOR {schema}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {schema}.same);
    CREATE OPERATOR {schema}.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = {schema}.same);
    """,
    # Types and tables of the same names.
    """
    CREATE DOMAIN {schema}.text AS pg_catalog.text CHECK (FALSE);
    CREATE TABLE {schema}.jobs (job_id pg_catalog.text);
    CREATE TABLE {schema}.settings (clock_offset interval);
    """,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=["functions", "tables"])
@pytest.mark.parametrize("schema", ["own", "pg_temp"])
def test_what_a_caller_puts_in_front_is_not_run_with_the_rights_of_the_owner(
    db: Client, stranger: str, attack: str, schema: str
) -> None:
    # Given somebody with all four roles, and in their path a schema of their own with names that ours uses,
    for role in ROLES:
        db.connection.execute(f"GRANT {role} TO {stranger}".encode())
    db.connection.execute(
        f"""
        CREATE SCHEMA own AUTHORIZATION {stranger};
        SET LOCAL ROLE {stranger};
        CREATE TABLE own.loot (who text);
        GRANT ALL ON SCHEMA own TO PUBLIC;
        GRANT ALL ON own.loot TO PUBLIC;
        """.encode()
    )
    db.connection.execute(attack.replace("{schema}", schema).encode())
    db.connection.execute(f"SET LOCAL search_path = {schema}, own, pg_catalog".encode())

    # When they do everything they may,
    db.call("submit_job", "a", "producer", "work", p_singleton_key="key")
    lease = db.call("get_work", "worker", ["work"])[0]["lease_id"]
    db.call("extend_lease", "a", lease, "worker")
    db.call("complete_job", "a", lease, "worker")
    db.call("submit_jobs", '[{"id": "b", "need": "work"}]', "producer")
    db.call("cancel_jobs", "alice", ["b"])
    db.call("sweep", "sweeper")

    # Then the schema's own code did it, and none of theirs.
    db.connection.execute(b"SET LOCAL search_path = pg_catalog; RESET ROLE")
    assert db.rows("SELECT * FROM own.loot") == []
    assert {row["outcome"] for row in db.rows("SELECT outcome FROM pgwf.jobs_archive")} == {
        "COMPLETED",
        "CANCELLED",
    }


def test_a_role_cannot_replace_a_function_of_the_schema(db: Client, stranger: str) -> None:
    db.connection.execute(f"GRANT pgwf_operator TO {stranger}; SET LOCAL ROLE {stranger}".encode())

    refusal = tried(
        db,
        "CREATE OR REPLACE FUNCTION pgwf._now() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
    )

    assert refusal and refusal.code == FORBIDDEN


def test_settings_of_the_session_do_not_change_what_a_claim_answers(db: Client) -> None:
    """A caller's own choice of planner, time zone or style is none of the schema's business."""
    db.submit("a")
    db.rows("SET enable_indexscan = off; SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'ISO, DMY'")
    db.rows(
        "SET IntervalStyle = 'sql_standard'; SET standard_conforming_strings = off; SET bytea_output = escape"
    )

    assert db.claims() == ["a"]
    assert db.call("check") == []
