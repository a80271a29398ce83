"""JSON in and out: what may be a job's input or output, and how big. Nothing else is ever stored."""

import json
from typing import Any

import msgspec

from rescind.errors import InvalidInput, PayloadTooLarge

DEFAULT_LIMIT_BYTES = 256 * 1024
DEEPEST = 200  # JSON readers recurse; what only some of them can read would be a poison for the rest

_encode = msgspec.json.Encoder().encode
decode = msgspec.json.decode


def encode(value: Any, what: str, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """The JSON of `value`, or a clear error when it has none or too much of it."""
    try:
        body = _encode(value)
        if b"null" in body:
            # msgspec writes NaN and infinities as null; the slow encoder tells them apart from None.
            json.dumps(msgspec.to_builtins(value), allow_nan=False)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise InvalidInput(f"{what} is not JSON: {problem}") from problem
    if len(body) > limit_bytes:
        raise PayloadTooLarge(what, len(body), limit_bytes)
    if body.count(b"[") + body.count(b"{") > DEEPEST and _is_too_deep(body):
        raise InvalidInput(
            f"{what} is not JSON that everybody can read: it is nested more than {DEEPEST} deep"
        )
    return body


def _is_too_deep(body: bytes) -> bool:
    """Level by level, so that finding out does not need the depth it looks for."""
    try:
        level = [decode(body)]
    except RecursionError:
        return True
    for _ in range(DEEPEST + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return bool(level)
