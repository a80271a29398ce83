"""From an error to what a person or a script gets: one line on stderr and an exit code."""

import re
import sys
from enum import IntEnum
from typing import Any

import msgspec

from rescind.cli.render import plain
from rescind.errors import InvalidInput, InvalidSettings, JobNotFoundError, RescindError, Unavailable


class ExitCode(IntEnum):
    OK = 0
    REFUSED = 1
    USAGE = 2
    UNAVAILABLE = 3
    BUG = 70  # sysexits' EX_SOFTWARE: must not look like a refusal
    INTERRUPTED = 130  # as shells report a Ctrl-C


def exit_code(problem: RescindError) -> ExitCode:
    if isinstance(problem, InvalidInput):
        return ExitCode.USAGE
    return ExitCode.UNAVAILABLE if isinstance(problem, Unavailable) else ExitCode.REFUSED


def complain(message: str, *, as_json: bool, kind: str = "usage") -> None:
    """One line on stderr; nothing in it can steer the terminal."""
    if as_json:
        line = msgspec.json.encode({"error": kind, "message": message}).decode()
    else:
        line = f"rescind: {plain(message)}"
    print(line, file=sys.stderr, flush=True)


def report(problem: RescindError, *, as_json: bool) -> ExitCode:
    message = str(problem) if as_json else f"{problem}{_hint(problem)}"
    complain(message, as_json=as_json, kind=kind_of(problem))
    return exit_code(problem)


def report_usage(problem: Any, *, as_json: bool) -> ExitCode:
    """typer's own errors: what is wrong, and where the help is."""
    message = (
        problem.format_message().replace("Value error, ", "").rstrip(".")
    )  # pydantic's words, inside typer
    context = getattr(problem, "ctx", None)
    command = context.command_path if context else "rescind"
    complain(message if as_json else f"{message}. Try: {command} --help", as_json=as_json)
    return ExitCode.USAGE


def kind_of(problem: RescindError) -> str:
    """JobNotFoundError → job_not_found."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(problem).__name__.removesuffix("Error")).lower()


def _hint(problem: RescindError) -> str:
    if isinstance(problem, JobNotFoundError):
        return "; `rescind list` shows those that do"
    if isinstance(problem, InvalidSettings):
        return " (look at rescind.toml and the RESCIND_* variables)"
    return ""
