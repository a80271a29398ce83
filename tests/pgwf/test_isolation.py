"""Calls inside a caller's own transaction, which may have another isolation level than the usual one."""

from typing import Final

import psycopg
import pytest

from tests.pgwf.client import Client, Connect

LEVELS: Final = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


def begun(connect: Connect, level: str) -> Client:
    """A session whose transaction has looked at the jobs already, so that its snapshot is taken."""
    session = connect()
    session.connection.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
    session.rows("SELECT count(*) FROM pgwf.jobs")
    return session


@pytest.mark.parametrize("level", LEVELS)
def test_a_job_lives_its_life_at_any_level(db: Client, connect: Connect, level: str) -> None:
    caller = begun(connect, level)
    caller.submit("a", p_singleton_key="key")
    caller.submit("b", p_wait_for=["a"])
    lease = caller.claim()["lease_id"]
    assert caller.answer("complete_job", "a", lease, "worker") is True
    caller.cancel("b")
    assert caller.archive() == 1
    caller.rows("COMMIT")

    assert {row["job_id"] for row in db.rows("SELECT job_id FROM pgwf.jobs_archive")} == {"a", "b"}
    assert db.call("check") == []


@pytest.mark.parametrize("level", LEVELS)
def test_an_id_is_not_given_again_though_the_job_ended_out_of_sight(
    db: Client, connect: Connect, level: str
) -> None:
    # Given a transaction that began while a job was alive, which has ended since,
    lease = db.held("a")
    caller = begun(connect, level)
    db.answer("complete_job", "a", lease, "worker")

    # When it submits a job of that id, then it is refused, whether or not it can see why.
    refusal = caller.refusal("submit_job", "a", "producer", "work")
    assert refusal.code == ("PW002" if level == "READ COMMITTED" else "23505")


@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_key_names_one_job_though_it_was_used_out_of_sight(
    db: Client, connect: Connect, level: str, ended: bool
) -> None:
    # Given a transaction that began before somebody used an idempotency key,
    caller = begun(connect, level)
    db.submit("a", p_owner="owner", p_idempotency_key="key")
    if ended:
        db.answer("complete_unheld_job", "a", "worker")

    # When it uses the same, then it gets the job of that key or, if it cannot see it, a refusal.
    try:
        (answer,) = caller.call(
            "submit_job", "b", "producer", "work", p_owner="owner", p_idempotency_key="key"
        )
        assert (answer["job_id"], level) == ("a", "READ COMMITTED")
    except psycopg.errors.UniqueViolation:
        assert level != "READ COMMITTED"


@pytest.mark.parametrize("level", LEVELS)
def test_a_job_does_not_wait_for_what_ended_out_of_sight(db: Client, connect: Connect, level: str) -> None:
    lease = db.held("first", "other")
    caller = begun(connect, level)
    db.answer("complete_job", "first", lease, "worker")

    try:
        caller.submit("a", p_wait_for=["first"])
        caller.rows("COMMIT")
    except psycopg.errors.SerializationFailure:
        caller.rows("ROLLBACK")  # and the caller tries again, as these levels ask of them
        caller.submit("a", p_wait_for=["first"])

    assert db.status("a") == "READY"
    assert db.call("check") == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_key_has_one_holder_though_its_claim_was_out_of_sight(
    db: Client, connect: Connect, level: str
) -> None:
    # Given two jobs of one key that are in front, for two needs,
    db.submit("a", "one", p_singleton_key="key")
    db.submit("b", "other", p_singleton_key="key")
    db.call("sweep", "sweeper")
    caller = begun(connect, level)

    # When one is claimed and then, by a transaction that cannot see it, the other,
    assert db.claims("one") == ["a"]
    try:
        got = caller.claims("other")
        caller.rows("COMMIT")
    except psycopg.errors.UniqueViolation:
        got = []

    # Then that one is not handed out.
    assert got == []
    assert db.status("b") == "READY"
