"""Databases that a test has to itself, for what cannot be undone, and what a schema there must do."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from rescind.testing.postgres import create_database, maintenance_url
from tests.pgwf.client import Client, Row


@contextmanager
def temporary_database() -> Iterator[str]:
    """The URL of an empty one."""
    name = f"rescind_test_{uuid.uuid4().hex[:12]}"
    yield create_database(maintenance_url(), name)
    with psycopg.connect(maintenance_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def description(db: Client) -> list[Row]:
    """Everything that the script makes, as the catalogue has it."""
    return db.rows(
        "SELECT format('%s %s', p.oid::regprocedure, md5(pg_get_functiondef(p.oid))) AS what,"
        " proacl::text AS acl"
        " FROM pg_proc p WHERE pronamespace = 'pgwf'::regnamespace AND prokind = 'f'"
        " UNION ALL SELECT format('%s %s %s %s', c.oid::regclass, attname, atttypid::regtype, attnotnull),"
        " relacl::text"
        " FROM pg_class c JOIN pg_attribute ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped"
        " WHERE relnamespace = 'pgwf'::regnamespace"
        " UNION ALL SELECT pg_get_constraintdef(oid), conrelid::regclass::text FROM pg_constraint"
        " WHERE connamespace = 'pgwf'::regnamespace AND contype <> 'n'"
        " UNION ALL SELECT pg_get_indexdef(indexrelid), NULL FROM pg_index"
        " JOIN pg_class ON pg_class.oid = indexrelid WHERE relnamespace = 'pgwf'::regnamespace"
        " ORDER BY 1, 2"
    )


def works(db: Client) -> None:
    """The life of a job, from end to end."""
    db.submit("works", "works", p_singleton_key="works")
    db.submit("follows", "works", p_wait_for=["works"])
    lease = db.claim("works")["lease_id"]
    db.answer("extend_lease", "works", lease, "worker")
    assert db.answer("complete_job", "works", lease, "worker") is True
    db.cancel("follows")
    assert db.archive() >= 1
    assert db.archived("follows")["outcome"] == "CANCELLED"
    assert db.call("check") == []
