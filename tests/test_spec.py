"""A job to be: every kind of bad input is refused by itself, in words that say what to do about it."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescind import moves, payload
from rescind.errors import InvalidInput, PayloadTooLarge
from rescind.spec import NEED_LIMIT_BYTES, TEXT_LIMIT, JobSpec, check_reason, spec
from rescind.testing import Harness


def _spec(need: Any = "work", input: Any = None, **options: Any) -> JobSpec:
    return spec(need, input, **{"id": "j", "by": "ann", **options})


class Thing:
    """Nothing JSON knows."""


def _nested(depth: int, wrap: str = "list") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if wrap == "list" else {"a": value}
    return value


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "id",
    [
        "",
        " ",
        "a b",
        "a/b",
        "../etc",
        "-a",
        ".a",
        ":a",
        "a\n",
        "\na",
        "a\x00",
        "ä",
        "名",
        "a" * 129,
        "a,b",
        "a'b",
        "a%",
    ],
)
def test_an_id_with_odd_characters_is_refused(id: str) -> None:
    with pytest.raises(InvalidInput, match="is not usable: 1 to 128 letters, digits or"):
        _spec(id=id)


@pytest.mark.parametrize("id", [None, 7, b"a", ["a"], True])
def test_an_id_that_is_no_text_is_refused(id: Any) -> None:
    with pytest.raises(InvalidInput, match=r"job id .* is not a str: pass str\(id\)"):
        _spec(id=id)


@pytest.mark.parametrize("id", ["a", "0", "A.b_c:d@e-f", "x" * 128])
def test_a_legal_id_is_kept_as_it_is(id: str) -> None:
    assert _spec(id=id).id == id


@pytest.mark.parametrize(
    "need", ["", "  ", "\t", "a\nb", "a\x00b", "\x7f", "\u202e", "\ud800", None, 7, b"work"]
)
def test_a_need_is_a_readable_text(need: Any) -> None:
    with pytest.raises(InvalidInput, match="need must"):
        _spec(need)


@pytest.mark.parametrize("need", ["x" * (NEED_LIMIT_BYTES + 1), "ä" * 27, "🦆" * 14])
def test_a_need_is_measured_in_bytes(need: str) -> None:
    with pytest.raises(InvalidInput, match="is longer than 53 bytes"):
        _spec(need)


@pytest.mark.parametrize("need", ["x" * NEED_LIMIT_BYTES, "ä" * 26, "send mail", "print:a4"])
def test_a_need_of_up_to_53_bytes_is_kept_as_it_is(need: str) -> None:
    assert _spec(need).need == need


@pytest.mark.parametrize("field", ["by", "owner", "singleton_key", "idempotency_key"])
@pytest.mark.parametrize("value", ["", " ", "a\x00", "a\nb", "\ud800", "x" * (TEXT_LIMIT + 1), 7, b"a"])
def test_names_and_keys_are_readable_texts(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{field} must"):
        _spec(**{field: value})


def test_a_long_bad_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidInput) as caught:
        _spec(owner="x" * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        {"a": [1, {"b": float("nan")}]},
        Thing(),
        {"a": Thing()},
        {Thing()},
        [1, {2, 3j}],
        1j,
        {(1, 2): 3},
        {None: 1},
        "\ud800",
        {"\udfff": 1},
        _circle(),
        lambda: None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"input is not JSON: ."):
        _spec(input=value)


@pytest.mark.parametrize("wrap", ["list", "dict"])
def test_bottomless_nesting_is_refused(wrap: str) -> None:
    with pytest.raises(InvalidInput, match="input is not JSON"):
        _spec(input=_nested(100_000, wrap))


@pytest.mark.parametrize("wrap", ["list", "dict"])
async def test_the_deepest_nesting_that_is_taken_can_be_read_back_by_everybody(
    harness: Harness, wrap: str
) -> None:
    """A payload that only some can read would be a poison for every list and claim it is in."""
    # Given the deepest payload that a caller with an almost empty stack gets through
    with ThreadPoolExecutor(1) as bare:
        accepted = bare.submit(_deepest, wrap).result()
    # When it is submitted, then everybody can work with it
    await harness.engine.submit([accepted])
    held = await harness.claim_one()
    assert len(await harness.jobs()) == 1
    await harness.complete(held, "done")


def _deepest(wrap: str) -> JobSpec:
    taken = _spec(input=_nested(10, wrap))
    for depth in range(10, 3000):
        try:
            taken = _spec(input=_nested(depth, wrap))
        except InvalidInput:
            break
    return taken


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_json_value_goes_in_and_comes_out_unchanged(value: Any) -> None:
    body = _spec(input=value).body
    assert payload.decode(body) == value == json.loads(body)
    assert moves.submit(_spec(input=value), datetime.now(UTC)).job.input == value


def test_the_word_null_in_a_text_is_only_a_word() -> None:
    assert payload.decode(_spec(input={"null": "null", "x": None}).body) == {"null": "null", "x": None}


def test_a_payload_over_the_limit_is_refused_with_both_sizes() -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        _spec(input="x" * 256 * 1024)
    assert (caught.value.size, caught.value.limit) == (256 * 1024 + 2, 256 * 1024)
    assert str(caught.value).startswith("input is 262,146 bytes of JSON, the limit is 262,144:")


def test_a_payload_of_exactly_the_limit_is_taken() -> None:
    assert len(_spec(input="x" * (256 * 1024 - 2)).body) == 256 * 1024
    assert _spec(input="xx", payload_limit_bytes=4).body == b'"xx"'


@pytest.mark.parametrize("value", ["soon", 7, 1.5, datetime(2030, 1, 1)])
def test_a_moment_needs_a_time_zone(value: Any) -> None:
    with pytest.raises(InvalidInput, match="available_at must be a datetime with a time zone"):
        _spec(available_at=value)


def test_a_moment_is_kept_in_utc() -> None:
    there = timezone(timedelta(hours=5, minutes=45))
    assert _spec(available_at=datetime(2030, 1, 1, 5, 45, tzinfo=there)).available_at == datetime(
        2030, 1, 1, tzinfo=UTC
    )


@pytest.mark.parametrize(("moment", "hours"), [(datetime.max, -5), (datetime.min, 5)])
def test_a_moment_beyond_the_calendar_is_refused(moment: datetime, hours: int) -> None:
    with pytest.raises(InvalidInput, match="available_at"):
        _spec(available_at=moment.replace(tzinfo=timezone(timedelta(hours=hours))))


def test_a_delay_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidInput, match="delay_seconds"):
        _spec(available_at=datetime.max.replace(tzinfo=UTC), delay_seconds=1)


@pytest.mark.parametrize(
    "value", [-1, -0.001, float("nan"), float("inf"), 10**10, "3", None, True, timedelta(1)]
)
def test_a_delay_is_a_number_of_seconds(value: Any) -> None:
    with pytest.raises(InvalidInput, match="delay_seconds must be a number of seconds from 0 to ten years"):
        _spec(delay_seconds=value)


@pytest.mark.parametrize("value", [1.5, "1", None, True, 2**31, -(2**31) - 1])
def test_a_priority_is_a_whole_number_in_bounds(value: Any) -> None:
    with pytest.raises(InvalidInput, match="priority must be a whole number"):
        _spec(priority=value)


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, 2**31])
def test_max_attempts_is_a_whole_number_from_one(value: Any) -> None:
    with pytest.raises(InvalidInput, match="max_attempts must be a whole number from 1"):
        _spec(max_attempts=value)


def test_no_limit_of_attempts_is_said_by_none() -> None:
    assert _spec(max_attempts=None).max_attempts is None
    assert _spec().max_attempts == 3


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", 2**53 + 1])
def test_an_estimate_is_a_whole_number_from_one(value: Any) -> None:
    with pytest.raises(InvalidInput, match="estimate must be a whole number from 1"):
        _spec(owner="ann", estimate=value)


def test_an_estimate_needs_an_owner() -> None:
    with pytest.raises(InvalidInput, match="estimate needs an owner"):
        _spec(estimate=5)


@pytest.mark.parametrize("field", ["on_dependency_cancelled", "on_dependency_failed"])
@pytest.mark.parametrize("value", ["", "ignore", None, True, ["cancel"]])
def test_what_to_do_about_a_dependency_is_one_of_two(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f'{field} must be "release" or "cancel"'):
        _spec(**{field: value})


def test_a_text_is_no_list_of_ids() -> None:
    with pytest.raises(InvalidInput, match="wait_for must be a list of job ids, not 'job-1'"):
        _spec(wait_for="job-1")


@pytest.mark.parametrize("value", [5, 1.5, True, object()])
def test_wait_for_is_a_list(value: Any) -> None:
    with pytest.raises(InvalidInput, match="wait_for must be a list of job ids"):
        _spec(wait_for=value)


@pytest.mark.parametrize("value", [[""], ["a/b"], [None], [7], b"ab", [["a"]]])
def test_wait_for_is_a_list_of_ids(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"job id .* is not (usable|a str)"):
        _spec(wait_for=value)


def test_an_id_waited_for_twice_is_kept_once_in_order() -> None:
    assert _spec(wait_for=["b", "a", "b"]).wait_for == ("b", "a")


@pytest.mark.parametrize("value", [7, b"why", ["why"]])
def test_a_reason_is_a_text(value: Any) -> None:
    with pytest.raises(InvalidInput, match="reason must be a text"):
        check_reason(value)


def test_a_cancel_never_fails_for_its_words() -> None:
    assert check_reason(None) is None
    assert check_reason("x" * 5000) == "x" * TEXT_LIMIT
    assert check_reason("broken \ud800 text") == "broken ? text"


def test_the_body_hash_is_about_the_work_and_not_about_the_job() -> None:
    same = _spec("work", {"a": 1}, id="one").body_hash
    assert _spec("work", {"a": 1}, id="two", priority=5).body_hash == same
    assert _spec("work", {"a": 2}).body_hash != same
    assert _spec("other", {"a": 1}).body_hash != same
