"""What people type, turned into values: JSON from an argument, a file or stdin, durations, moments."""

import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from rescind.errors import InvalidInput

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def payload(text: str) -> Any:
    """JSON as it stands, `@file`, or `-` for stdin."""
    if text == "-":
        return _decode(_stdin(), "the input on stdin", "")
    if text.startswith("@"):
        return _decode(_file(text[1:]), f"the input in {text[1:]}", "")
    return _decode(text.encode(), "INPUT", """; a plain text needs its own quotes: '"like this"'""")


def batch(source: str) -> list[dict[str, Any]]:
    """One job per line: the arguments of a submit as a JSON object."""
    body = _stdin() if source == "-" else _file(source)
    lines = enumerate(body.splitlines(), start=1)
    jobs = [_job(line, f"{source} line {number}") for number, line in lines if line.strip()]
    if not jobs:
        raise InvalidInput(f"{source} holds no jobs: one JSON object per line, with at least a need")
    return jobs


def _job(line: bytes, where: str) -> dict[str, Any]:
    fields = _decode(line, where, "")
    if not isinstance(fields, dict) or "need" not in fields:
        raise InvalidInput(f'{where}: expected an object with a need, as in {{"need": "resize", "input": 1}}')
    if isinstance(fields.get("available_at"), str):
        fields["available_at"] = moment(fields["available_at"], f"{where}: available_at")
    return fields


def seconds(text: str, what: str) -> float:
    """90, 90s, 5m, 2h or 1d."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{what} {text!r} is not a duration: use seconds, or 90s, 5m, 2h, 1d")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def moment(text: str, what: str) -> datetime:
    """An ISO time; without a zone it is meant where the person sits."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(f"{what} {text!r} is not a time: use ISO form, as in 2030-01-31T09:00") from None


def _decode(body: bytes, what: str, hint: str) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InvalidInput(f"{what} is not JSON ({problem}){hint}") from problem


def _stdin() -> bytes:
    return sys.stdin.buffer.read()


def _file(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as problem:
        raise InvalidInput(f"cannot read {name or 'a file without a name'}: {problem.strerror}") from problem
