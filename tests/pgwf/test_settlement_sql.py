"""What SQL and Python both say: what a job costs, what its facts mean; and where a store is damaged."""

import itertools
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from rescind.job import Billing, Job, Outcome
from rescind.lifecycle import state_of
from rescind.policy import NO_POLICY, Policy, settle_cost
from rescind.state import FINAL_STATES, State
from tests.pgwf.client import Client

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)

on_one_database: Final = settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

# The cost

Facts = tuple[Outcome, int, int, bool]
"""Outcome, estimate, units used, and whether work had started."""


def cost_in_python(policy: Policy, facts: Facts) -> int:
    outcome, estimate, units, started = facts
    job = Job(
        id="a",
        need="work",
        owner="owner",
        submitted_at=NOW,
        submitted_by="producer",
        available_at=NOW,
        billing=Billing.RESERVED,
        estimate=estimate,
        usage_units=units,
        work_started_at=NOW if started else None,
    )
    charge = settle_cost(job, outcome, policy)
    assert charge is not None
    return charge.committed


def costs_in_sql(db: Client, need: str, facts: list[Facts]) -> list[int]:
    outcomes, estimates, units, started = zip(*facts, strict=True)
    rows = db.rows(
        "SELECT pgwf._cost(%s, outcome, estimate, units, CASE WHEN started THEN pgwf._now() END) AS cost"
        " FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::boolean[])"
        " WITH ORDINALITY AS each (outcome, estimate, units, started, place) ORDER BY place",
        need,
        [outcome.value for outcome in outcomes],
        list(estimates),
        list(units),
        list(started),
    )
    return [row["cost"] for row in rows]


def set_policies(db: Client, policies: dict[str, Policy]) -> None:
    revision = db.call("get_document", "policies")[0]["revision"]
    db.answer("put_document", "policies", revision, msgspec.json.encode(policies).decode())


def test_the_cost_is_that_of_python_over_a_grid(db: Client) -> None:
    amounts = (0, 1, 2, 9, 10, 11, 999, 1000, 1001, 5000)
    facts: list[Facts] = list(itertools.product(Outcome, amounts[1:], amounts, (False, True)))
    policies = {
        f"need {n}": Policy(commit_on_cancel=commits, min_start_fee=fee, units_per_token=ratio)
        for n, (commits, fee, ratio) in enumerate(
            itertools.product((False, True), (0, 1, 100), (1, 10, 1000))
        )
    }
    set_policies(db, policies)

    for need, policy in {**policies, "a need without a policy": NO_POLICY}.items():
        assert costs_in_sql(db, need, facts) == [cost_in_python(policy, each) for each in facts]


_LARGE: Final = 2**53
_POLICIES: Final = st.builds(
    Policy,
    commit_on_cancel=st.booleans(),
    min_start_fee=st.integers(0, 10**15 - 1),
    units_per_token=st.integers(1, 10**15 - 1),
)
_FACTS: Final = st.tuples(
    st.sampled_from(Outcome), st.integers(1, _LARGE), st.integers(0, _LARGE), st.booleans()
)


@on_one_database
@given(policy=_POLICIES, facts=st.lists(_FACTS, min_size=1, max_size=20))
def test_the_cost_is_that_of_python_for_any_policy(db: Client, policy: Policy, facts: list[Facts]) -> None:
    set_policies(db, {"work": policy})

    assert costs_in_sql(db, "work", facts) == [cost_in_python(policy, each) for each in facts]


@pytest.mark.parametrize(
    ("end", "kinds"),
    [
        ("complete_job", [("RESERVE", 10), ("COMMIT", 3), ("RELEASE", 7)]),
        ("cancel_job", [("RESERVE", 10), ("COMMIT", 3), ("RELEASE", 7)]),
        ("fail_job", [("RESERVE", 10), ("RELEASE", 10)]),
        ("release_job", [("RESERVE", 10)]),
    ],
)
def test_a_settlement_is_in_the_ledger_and_adds_up(
    db: Client, end: str, kinds: list[tuple[str, int]]
) -> None:
    # Given a metered job that has used 2,001 units at 1,000 per token,
    db.call("credit", "owner", 100, "operator")
    lease = db.held("a", p_owner="owner", p_estimate=10)
    report = {"job_id": "a", "lease_id": lease, "worker": "worker", "units": 2001, "work_started": True}
    db.call("extend_jobs", None, json.dumps([report]))

    # When it ends this way,
    said: dict[str, list[object]] = {"cancel_job": ["alice"], "fail_job": [lease, "worker", "broken"]}
    db.call(end, "a", *said.get(end, [lease, "worker"]))

    # Then the ledger says what became of the reservation, and the account agrees.
    entries = db.rows("SELECT * FROM pgwf.ledger WHERE kind <> 'CREDIT' ORDER BY seq")
    assert [(entry["kind"], entry["amount"]) for entry in entries] == kinds
    (account,) = db.call("account", "owner")
    spent = sum(amount for kind, amount in kinds if kind == "COMMIT")
    held = 0 if len(kinds) > 1 else 10
    assert account == {"available": 100 - spent - held, "reserved": held}
    assert db.call("check") == []


# The state

_SECONDS: Final = st.sampled_from([-3600, -1, 0, 1, 3600])
_JOBS: Final = st.fixed_dictionaries(
    {
        "lease": st.none() | _SECONDS,
        "cancelled": st.booleans(),
        "available": _SECONDS,
        "wait_for": st.sampled_from([(), ("b",), ("b", "c")]),
        "failures": st.integers(0, 4),
        "max_attempts": st.none() | st.integers(1, 4),
    }
)


def at(seconds: int) -> datetime:
    return NOW + timedelta(seconds=seconds)


def state_in_python(facts: dict[str, Any]) -> State:
    lease = facts["lease"]
    return state_of(
        Job(
            id="a",
            need="work",
            submitted_at=NOW,
            submitted_by="producer",
            available_at=at(facts["available"]),
            wait_for=facts["wait_for"],
            failures=facts["failures"],
            max_attempts=facts["max_attempts"],
            cancel_requested_at=NOW if facts["cancelled"] else None,
            lease_expires_at=None if lease is None else at(lease),
        ),
        NOW,
    )


def states_in_sql(db: Client, jobs: list[dict[str, Any]]) -> list[str]:
    rows = [
        {
            "job_id": str(place),
            "available_at": at(facts["available"]).isoformat(),
            "wait_for": facts["wait_for"],
            "failures": facts["failures"],
            "max_attempts": facts["max_attempts"],
            "cancel_requested": facts["cancelled"],
            "lease_expires_at": "-infinity" if facts["lease"] is None else at(facts["lease"]).isoformat(),
        }
        for place, facts in enumerate(jobs)
    ]
    answers = db.rows(
        "SELECT pgwf._state_of(j, %s) AS state FROM json_populate_recordset(NULL::pgwf.jobs, %s) j"
        " ORDER BY j.job_id::integer",
        NOW,
        json.dumps(rows),
    )
    return [answer["state"] for answer in answers]


@on_one_database
@given(jobs=st.lists(_JOBS, min_size=20, max_size=60))
def test_facts_mean_the_state_they_mean_in_python(db: Client, jobs: list[dict[str, Any]]) -> None:
    assert states_in_sql(db, jobs) == [state_in_python(facts).value for facts in jobs]


def test_every_state_of_a_live_job_is_among_those(db: Client) -> None:
    """So that the comparison cannot become one of nothing with nothing."""
    waiting: dict[str, Any] = {
        "lease": None,
        "cancelled": False,
        "available": 0,
        "wait_for": (),
        "failures": 0,
        "max_attempts": None,
    }
    jobs = [
        waiting,
        {**waiting, "wait_for": ("b",)},
        {**waiting, "available": 1},
        {**waiting, "lease": 1, "cancelled": True},
        {**waiting, "cancelled": True, "available": 1},
        {**waiting, "lease": -1, "max_attempts": 1},
    ]

    states = states_in_sql(db, jobs)

    assert states == ["READY", "PENDING_JOBS", "AWAITING_FUTURE", "ACTIVE", "CANCELLED", "FAILED"]
    assert set(states) == {state.value for state in State} - {"COMPLETED"}
    assert {"COMPLETED", "FAILED", "CANCELLED"} == {state.value for state in FINAL_STATES}


# Damage

DAMAGE: Final = {
    "a stage that its facts deny": (
        "UPDATE pgwf.jobs SET stage = 'ready' WHERE job_id = 'pending'",
        "pending",
        "stage is ready, its facts say waiting",
    ),
    "a cancelled job among the ready": (
        "UPDATE pgwf.jobs SET stage = 'ready' WHERE job_id = 'cancelled'",
        "cancelled",
        "stage is ready, its facts say cancelled",
    ),
    "a cancelled job among those that time makes ready": (
        "UPDATE pgwf.jobs SET stage = 'future' WHERE job_id = 'cancelled'",
        "cancelled",
        "stage is future, its facts say cancelled",
    ),
    "a lease without an end": (
        "UPDATE pgwf.jobs SET lease_expires_at = '-infinity' WHERE job_id = 'held'",
        "held",
        "has a lease id without an expiry, or the other way round",
    ),
    "the end of no lease": (
        "UPDATE pgwf.jobs SET lease_expires_at = pgwf._now() WHERE job_id = 'ready'",
        "ready",
        "has a lease id without an expiry, or the other way round",
    ),
    "a key that nobody passes on": (
        "UPDATE pgwf.jobs SET singleton_key = 'lost', stage = 'parked' WHERE job_id = 'ready'",
        "ready",
        "is parked on a key that nobody has and nobody will let pass on",
    ),
    "waiting for nothing": (
        "UPDATE pgwf.jobs SET wait_for = '{never,ready}' WHERE job_id = 'pending'",
        "pending",
        "waits for never, which has ended or never was",
    ),
    "waiting for what has ended": (
        "UPDATE pgwf.jobs SET wait_for = '{ready,done}' WHERE job_id = 'pending'",
        "pending",
        "waits for done, which has ended or never was",
    ),
    "two lives": (
        "INSERT INTO pgwf.jobs_archive (job_id, next_need) VALUES ('ready', 'work')",
        "ready",
        "is live and archived",
    ),
    "money that nobody holds": (
        "UPDATE pgwf.accounts SET reserved = reserved + 1",
        None,
        "account of owner has 11 reserved, its jobs hold 10",
    ),
}


@pytest.fixture
def sound(db: Client) -> Client:
    """A store with something of everything, and nothing wrong with it."""
    db.call("credit", "owner", 100, "operator")
    db.completed("done", "done")
    db.held("held", "held", p_singleton_key="key")
    db.submit("keyed", "held", p_singleton_key="key")
    db.submit("ready", p_owner="owner", p_estimate=10)
    db.submit("pending", p_wait_for=["ready"])
    db.submit_in("1 h", "future")
    db.submit("cancelled", p_wait_for=["ready"])
    db.cancel("cancelled")
    assert db.claims("held") == []
    return db


def test_a_sound_store_has_nothing_to_report(sound: Client) -> None:
    assert sound.call("check") == []
    sound.advance(7200)
    assert sound.call("check") == []
    sound.call("sweep", "sweeper")
    assert sound.call("check") == []


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_kind_of_damage_is_reported(sound: Client, kind: str) -> None:
    statement, job_id, problem = DAMAGE[kind]
    sound.connection.execute(statement.encode())

    assert {"job_id": job_id, "problem": problem} in sound.call("check")


def test_every_complaint_of_the_check_is_tested(db: Client) -> None:
    """By the fixed words in its source."""
    source = db.value("SELECT prosrc FROM pg_proc WHERE oid = 'pgwf.check'::regproc")
    complaints = re.findall(r"SELECT (?:j\.job_id|NULL),\s+(?:format\()?'([^']+)'", source)

    tested = [problem for _, _, problem in DAMAGE.values()]
    patterns = [re.escape(complaint).replace("%s", ".*") for complaint in complaints]

    assert len(complaints) >= 6
    assert all(any(re.fullmatch(pattern, problem) for problem in tested) for pattern in patterns)
