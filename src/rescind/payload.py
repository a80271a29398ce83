"""JSON in and out: what may be a job's input or output, and how big. Nothing else is ever stored."""

import json
from typing import Any

import msgspec

from rescind.errors import InvalidInput, PayloadTooLarge

DEFAULT_LIMIT_BYTES = 256 * 1024

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
    return body
