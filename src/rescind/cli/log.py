"""The log of a worker on stderr: lines for people, or JSON for machines."""

import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from rescind.cli.render import plain

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def start(level: str, *, as_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if as_json else _Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller added with `extra=`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone()
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        line = f"{at:%H:%M:%S} {record.levelname.lower():7} {plain(record.getMessage() + extra)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(facts, enc_hook=repr).decode()
