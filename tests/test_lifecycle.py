"""The lifecycle as a pure rule: what facts mean, that the table is whole, and that SQL says the same."""

import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescind import errors
from rescind.engines.sqlite.rows import COLUMNS, STATE_SQL, job_from_row, moment, to_column
from rescind.job import Job, Outcome
from rescind.lifecycle import (
    TABLE,
    Situation,
    Verb,
    attempts_used_up,
    enter,
    lease_lapsed,
    situation_of,
    snapshot,
    state_of,
)
from rescind.state import FINAL_STATES, PENDING_STATES, STATUS_OF, State, TaskStatus

NOW = datetime(2026, 1, 2, 3, 4, 5, 6789, tzinfo=UTC)
MOMENTS = [NOW - timedelta(hours=1), NOW - timedelta(microseconds=1), NOW, NOW + timedelta(microseconds=1)]


def job(**facts: Any) -> Job:
    given_facts = {"id": "j", "need": "work", "submitted_at": NOW, "submitted_by": "t", "available_at": NOW}
    return Job(**{**given_facts, **facts})


FACTS = st.fixed_dictionaries(
    {
        "available_at": st.sampled_from(MOMENTS),
        "wait_for": st.sampled_from([(), ("a",), ("a", "b")]),
        "lease_expires_at": st.sampled_from([None, *MOMENTS]),
        "cancel_requested_at": st.sampled_from([None, *MOMENTS]),
        "outcome": st.sampled_from([None, *Outcome]),
        "failures": st.integers(0, 4),
        "max_attempts": st.sampled_from([None, 1, 2, 3]),
    }
)


def _by_the_design(facts: dict[str, Any]) -> State:
    """Spelled as the documented table is: the first condition that holds."""
    expires, attempts = facts["lease_expires_at"], facts["max_attempts"]
    live, lapsed = expires is not None and expires > NOW, expires is not None and expires <= NOW
    rows = [
        (facts["outcome"] is not None, State(facts["outcome"] or "READY")),
        (live, State.ACTIVE),
        (facts["cancel_requested_at"] is not None, State.CANCELLED),
        (facts["available_at"] > NOW, State.AWAITING_FUTURE),
        (bool(facts["wait_for"]), State.PENDING_JOBS),
        (lapsed and attempts is not None and facts["failures"] + 1 >= attempts, State.FAILED),
        (True, State.READY),
    ]
    return next(state for holds, state in rows if holds)


@given(FACTS)
def test_every_combination_of_facts_means_what_the_design_says(facts: dict[str, Any]) -> None:
    assert state_of(job(**facts), NOW) is _by_the_design(facts)


def test_the_few_facts_that_matter_are_tried_in_all_their_combinations() -> None:
    """Hypothesis samples; this one leaves nothing out."""
    names = ["available_at", "wait_for", "lease_expires_at", "cancel_requested_at", "outcome", "failures"]
    values: list[list[Any]] = [MOMENTS, [(), ("a",)], [None, *MOMENTS], [None, NOW], [None, *Outcome]]
    for combination in product(*values, [0, 1, 2], [None, 1, 2]):
        facts = dict(zip([*names, "max_attempts"], combination, strict=True))
        assert state_of(job(**facts), NOW) is _by_the_design(facts)


@given(FACTS)
def test_the_situation_tells_a_running_job_that_was_asked_to_stop_apart(facts: dict[str, Any]) -> None:
    there, state = situation_of(job(**facts), NOW), state_of(job(**facts), NOW)
    asked = facts["cancel_requested_at"] is not None
    expected = Situation.CANCELLING if state is State.ACTIVE and asked else Situation(state.value)
    assert there is expected
    assert snapshot(job(**facts), NOW).cancelling is (there is Situation.CANCELLING)


@given(FACTS)
def test_the_sql_of_the_sqlite_engine_says_the_same(facts: dict[str, Any]) -> None:
    database = sqlite3.connect(":memory:")
    try:
        stored = job(**facts)
        values = [to_column(name, getattr(stored, name)) for name in COLUMNS]
        database.execute(f"CREATE TABLE jobs ({', '.join(COLUMNS)})")
        database.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * len(COLUMNS))})", values)
        (state,) = database.execute(f"SELECT {STATE_SQL} FROM jobs", {"now": moment(NOW)}).fetchone()
        row = database.execute(f"SELECT {', '.join(COLUMNS)} FROM jobs").fetchone()
    finally:
        database.close()
    assert State(state) is state_of(stored, NOW)
    assert job_from_row(row, NOW) == snapshot(stored, NOW)


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_stored_moments_sort_as_the_times_they_stand_for(one: datetime, two: datetime) -> None:
    assert (moment(one) < moment(two)) is (one < two)
    assert datetime.fromisoformat(moment(one)) == one


def test_the_table_has_a_cell_for_every_situation_of_every_verb_a_caller_may_use() -> None:
    by_time = {
        Verb.SUBMIT,
        Verb.UNBLOCK,
        Verb.LAPSE,
        Verb.TIME_OUT,
        Verb.ARCHIVE,
        Verb.PURGE,
        Verb.FORGET_KEY,
    }
    assert set(TABLE) == set(Verb) - by_time
    for row in TABLE.values():
        assert set(row) == set(Situation)
        for cell in row.values():
            assert cell if isinstance(cell, frozenset) else issubclass(cell, errors.WrongState)


def test_nothing_leads_out_of_a_final_situation() -> None:
    for verb, row in TABLE.items():
        for situation in map(Situation, FINAL_STATES):
            cell = row[situation]
            assert not isinstance(cell, frozenset) or cell == {situation}, (verb, situation)


def test_nothing_leads_from_cancelling_back_to_the_queue() -> None:
    lawful = {Situation.CANCELLING, Situation.CANCELLED, Situation.COMPLETED}
    for verb, row in TABLE.items():
        cell = row[Situation.CANCELLING]
        assert not isinstance(cell, frozenset) or cell <= lawful, verb


def test_only_a_ready_job_is_claimed() -> None:
    allowed = {here for here, cell in TABLE[Verb.CLAIM].items() if isinstance(cell, frozenset)}
    assert allowed == {Situation.READY}


def test_every_state_has_its_status() -> None:
    assert set(STATUS_OF) == set(State)
    assert set(STATUS_OF.values()) == set(TaskStatus) - {TaskStatus.Archived}
    assert {*PENDING_STATES, *FINAL_STATES, State.ACTIVE} == set(State)
    assert all(status.value == status.name.lower() for status in TaskStatus)


@pytest.mark.parametrize(
    ("seconds", "state"), [(-1, State.READY), (0, State.READY), (1, State.AWAITING_FUTURE)]
)
def test_a_job_is_free_at_the_very_moment_it_was_given(seconds: int, state: State) -> None:
    assert state_of(job(available_at=NOW + timedelta(microseconds=seconds)), NOW) is state


def test_a_lease_is_over_at_the_very_moment_it_ends() -> None:
    held = job(lease_id="l", lease_expires_at=NOW)
    assert lease_lapsed(held, NOW)
    assert not lease_lapsed(held, NOW - timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("failures", "max_attempts", "expected"), [(0, None, False), (0, 1, True), (0, 2, False), (1, 2, True)]
)
def test_the_last_attempt_is_the_one_whose_failure_ends_the_job(
    failures: int, max_attempts: int | None, expected: bool
) -> None:
    assert attempts_used_up(job(failures=failures, max_attempts=max_attempts)) is expected


def test_a_snapshot_changes_nothing_but_the_state() -> None:
    before = job(available_at=NOW + timedelta(seconds=5))
    after = snapshot(before, NOW)
    assert after.state is State.AWAITING_FUTURE
    assert msgspec.structs.replace(after, state=before.state) == before


def test_every_refusal_says_which_job_what_was_tried_and_what_it_is() -> None:
    done = job(outcome=Outcome.COMPLETED)
    for verb, row in TABLE.items():
        cell = row[Situation.COMPLETED]
        assert not isinstance(cell, frozenset)
        with pytest.raises(cell) as caught:
            enter(verb, done, NOW)
        assert (caught.value.job_id, caught.value.verb, caught.value.state) == (
            "j",
            verb.value,
            State.COMPLETED,
        )
        assert "j" in str(caught.value)
