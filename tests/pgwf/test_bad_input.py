"""Bad input at every parameter of every public function: refused with a documented SQLSTATE, or taken in a
way that leaves the schema agreeing with itself; and a refusal has changed nothing."""

import json
import math
import random
import re
import string
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import psycopg
import pytest

from rescind.policy import Policy
from tests.pgwf.calls import good_calls, parameters
from tests.pgwf.client import Client, Row, refusal_of

# 22xxx is bad data, 23505 a duplicate, PWxxx a refusal of ours; everything else means that it was surprised.
DOCUMENTED: Final = re.compile(r"22...|23505|PW\d{3}")

_LETTERS: Final = random.Random(1)  # long texts that do not compress, for indexes have limits


def _noise(length: int) -> str:
    return "".join(_LETTERS.choices(string.ascii_letters, k=length))


_INJECTION: Final = "'; DROP TABLE pgwf.jobs; --"
_TEMPLATE: Final = '$$ ") %s %I %1$s {} \\ \\x00 🦤'
_TEXTS: Final = (
    None,
    "",
    "   ",
    "no such thing",
    _noise(1_000_000),
    _noise(3_000),
    "control \x01",
    _INJECTION,
    _TEMPLATE,
)
_WHOLE: Final = (None, 0, -1, 2**31 - 1, -(2**31))
_JSON: Final = (
    None,
    "null",
    "{}",
    "[]",
    "[[]]",
    "[null]",
    "[1]",
    '["text"]',
    "[{}]",
    '[{"no": "such field"}]',
    '{"an": "object"}',
    '"text"',
    "1",
    "true",
    "{",
    "",
    '["\\u0000"]',
    "[" * 500 + "]" * 500,
)

BAD: Final[dict[str, tuple[object, ...]]] = {
    "text": _TEXTS,
    "text[]": (
        None,
        [],
        [None],
        [[]],
        [["work", "ready"], ["other", "held"]],
        "[5:6]={work,ready}",
        ["ready", "ready", "held"],
        [f"need {n}" for n in range(11_000)],
        *([text] for text in _TEXTS),
    ),
    "integer": _WHOLE,
    "bigint": (*_WHOLE, 2**63 - 1, -(2**63)),
    "double precision": (None, 0.0, -1.0, 1e300, 1e-300, math.nan, math.inf, -math.inf),
    "timestamp with time zone": (
        None,
        "infinity",
        "-infinity",
        "294276-12-31 23:59:59+00",
        "4713-01-01 00:00:00+00 BC",
        "1970-01-01 00:00:00+00",
    ),
    "interval": (None, "0", "-1 second", "178000000 years", "-178000000 years"),
    "boolean": (None, False, True),
    "json": _JSON,
    "jsonb": _JSON,
}


@pytest.fixture
def calls(db: Client) -> dict[str, Row]:
    return good_calls(db)


def tried(db: Client, function: str, call: Row) -> str | None:
    """The code it was refused with, if it was. What it did is undone."""
    try:
        with db.undone():
            db.call(function, **call)
            assert db.call("check") == []
    except psycopg.Error as problem:
        return refusal_of(problem).code
    return None


def surprises(db: Client, function: str, attempts: Iterator[Row]) -> list[str]:
    """Those attempts that were refused otherwise than with a documented code. None leaves anything behind."""
    before = db.contents()
    codes = [(tried(db, function, call), call) for call in attempts]
    assert db.contents() == before
    return [
        f"{code}: {function}({str(call)[:200]})"
        for code, call in codes
        if code is not None and not DOCUMENTED.fullmatch(code)
    ]


def test_every_public_function_has_a_good_call(db: Client, calls: dict[str, Row]) -> None:
    assert set(calls) == set(parameters(db))

    refused = {function: tried(db, function, call) for function, call in calls.items()}

    assert set(refused.values()) == {None}, refused


@pytest.mark.parametrize("types", [{"text"}, set(BAD) - {"text"}], ids=["texts", "others"])
def test_every_parameter_of_every_function_stands_bad_input(
    db: Client, calls: dict[str, Row], types: set[str]
) -> None:
    found = []
    for function, names in parameters(db).items():
        assert set(names.values()) <= set(BAD)
        bad = [(name, value) for name, type_ in names.items() if type_ in types for value in BAD[type_]]
        found += surprises(db, function, ({**calls[function], name: value} for name, value in bad))

    assert not found, "\n".join(found)


# The JSON of batches: every field of an item, with every kind of wrong value

_ITEMS: Final = {
    "submit_jobs": ("p_jobs", "pgwf.job_spec"),
    "settle_jobs": ("p_settlements", "pgwf.settlement"),
    "extend_jobs": ("p_reports", "pgwf.report"),
}
_VALUES: Final[tuple[Any, ...]] = (
    None,
    "",
    "  ",
    "text",
    _noise(1_000_000),
    _noise(3_000),
    "control \x01",
    "\x00",
    _INJECTION,
    _TEMPLATE,
    0,
    -1,
    1.5,
    2**31,
    2**63,
    10**400,
    "NaN",
    "Infinity",
    "-infinity",
    True,
    {},
    {"a": 1},
    [],
    [1],
    [None],
    [[]],
    [{"a": []}],
    ["no such job"],
    ["ready"],
    ["new"],
)


def fields(db: Client, type_: str) -> list[str]:
    return [
        row["attname"]
        for row in db.rows(
            "SELECT attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
            " WHERE pg_class.oid = to_regclass(%s) AND attnum > 0 ORDER BY attnum",
            type_,
        )
    ]


def kind_of(field: str) -> str:
    """The kind of settlement that looks at this field."""
    if field in ("need", "wait_for", "singleton_key", "available_at", "delay_seconds"):
        return "reschedule"
    return {"error": "fail", "retry_seconds": "fail", "reason": "release"}.get(field, "complete")


@pytest.mark.parametrize("function", _ITEMS)
def test_every_field_of_an_item_of_a_batch_stands_bad_input(
    db: Client, calls: dict[str, Row], function: str
) -> None:
    parameter, type_ = _ITEMS[function]
    names = fields(db, type_)
    (item,) = json.loads(calls[function][parameter])
    assert set(names) > set(item)

    items = (
        {"need": "next", **item, **({"kind": kind_of(name)} if "kind" in names else {}), name: value}
        for name in names
        for value in _VALUES
    )

    found = surprises(db, function, ({**calls[function], parameter: json.dumps([item])} for item in items))
    assert not found, "\n".join(found)


def test_what_a_worker_says_of_itself_stands_bad_input(db: Client, calls: dict[str, Row]) -> None:
    worker = json.loads(calls["extend_jobs"]["p_worker"])

    attempts = (
        {**calls["extend_jobs"], "p_worker": json.dumps({**worker, name: value})}
        for name in fields(db, "pgwf.workers")
        for value in _VALUES
    )

    found = surprises(db, "extend_jobs", attempts)
    assert not found, "\n".join(found)


# What is accepted means what it says


def test_a_text_that_looks_like_sql_is_a_text(db: Client) -> None:
    text = _INJECTION
    db.answer("set_notify", True)
    db.call("get_work", text, [text])  # finds nothing, and listens for a channel of this name

    (answer,) = db.call(
        "submit_job", text, text, text, p_singleton_key=text, p_owner=text, p_idempotency_key=text
    )
    assert answer["job_id"] == text
    (lease,) = db.call("get_work", text, [text])
    assert (lease["job_id"], lease["next_need"], lease["singleton_key"], lease["owner"]) == (text,) * 4
    assert db.answer("fail_job", text, lease["lease_id"], text, text, 0.0) == "READY"
    (job,) = db.call("list_jobs", text, text)
    assert (job["job_id"], job["last_error"]) == (text, text)
    assert db.cancel(text, by=text, reason=text)["cancel_reason"] == text
    assert db.archive(text) == 1
    assert set(db.heard()) == {(f"pgwf.need.{text}", "")}


def test_needs_in_an_array_of_any_shape_are_needs(db: Client) -> None:
    for need in ("a", "b", "c", "d"):
        db.submit(need, need)

    got = db.call("get_work", "worker", [["a", "b"], ["c", "a"]], p_limit_jobs=2**31 - 1)

    assert sorted(row["job_id"] for row in got) == ["a", "b", "c"]


@pytest.mark.parametrize("flag", ["p_force", "p_running", "p_running_only", "p_dry_run"])
def test_a_cancel_of_many_does_not_guess_what_null_means(db: Client, flag: str) -> None:
    db.held("a")

    refusal = db.refusal("cancel_jobs", "alice", ["a"], **{flag: None})

    assert refusal[:2] == ("22004", "force, running, running_only and dry_run cannot be NULL")


_YEARS: Final = "must be a time in the years 1 to 9999"


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "10000-01-01Z", "0001-01-01 BC"])
def test_a_time_is_one_that_every_client_can_read(db: Client, calls: dict[str, Row], moment: str) -> None:
    item = {"id": "new", "need": "work", "available_at": "9999-12-29Z", "delay_seconds": 86400 * 3}
    (report,) = json.loads(calls["extend_jobs"]["p_reports"])
    told = [{**report, "kind": "complete", "acknowledged_at": moment}]
    worker = {"worker_id": "worker", "started_at": moment}

    refusals = [
        db.refusal("submit_job", "new", "producer", "work", p_available_at=moment),
        db.refusal("submit_jobs", json.dumps([item]), "producer"),
        db.refusal(**calls["reschedule_unheld_job"], function="reschedule_unheld_job", p_available_at=moment),
        db.refusal(**calls["reschedule_job"], function="reschedule_job", p_available_at=moment),
        db.refusal("settle_jobs", json.dumps(told)),
        db.refusal("extend_jobs", json.dumps(worker), "[]"),
    ]

    assert [refusal[:2] for refusal in refusals] == [
        *[("22023", f"available_at {_YEARS}")] * 4,
        ("22023", f"acknowledged_at {_YEARS}"),
        ("22023", f"started_at {_YEARS}"),
    ]


@pytest.mark.parametrize("progress", [-0.1, 1.1, "NaN", "Infinity"])
def test_progress_is_a_fraction(db: Client, progress: object) -> None:
    report = {"job_id": "a", "lease_id": db.held("a"), "worker": "worker", "progress": progress}

    refusal = db.refusal("extend_jobs", None, json.dumps([report]))

    assert refusal[:2] == ("22023", "progress must be from 0 to 1")


@pytest.mark.parametrize(
    "policies",
    [
        "[]",
        '"work"',
        '{"work": 1}',
        '{"work": null}',
        '{"work": {"no_such_rule": 1}}',
        '{"work": {"units_per_token": 0}}',
        '{"work": {"units_per_token": 1.5}}',
        '{"work": {"units_per_token": "10"}}',
        '{"work": {"min_start_fee": -1}}',
        '{"work": {"min_start_fee": null}}',
        '{"work": {"commit_on_cancel": "yes"}}',
        '{"work": {"activation_timeout_seconds": 0}}',
        '{"work": {"activation_timeout_seconds": 1e300}}',
        '{"fine": {}, "work": {"units_per_token": 10, "min_start_fee": []}}',
    ],
)
def test_a_policy_that_moves_would_stumble_over_does_not_get_in(db: Client, policies: str) -> None:
    refusal = db.refusal("put_document", "policies", 0, policies)

    assert refusal.code == "22023"
    assert "polic" in refusal.message


def test_a_policy_as_python_writes_it_gets_in(db: Client) -> None:
    policies = {
        "all": Policy(
            activation_timeout_seconds=0.5, commit_on_cancel=False, min_start_fee=3, units_per_token=7
        ),
        "none": Policy(),
    }

    revision = db.answer("put_document", "policies", 0, msgspec.json.encode(policies).decode())

    assert revision == 1
    assert db.call("sweep", "sweeper")
