"""How things look: consoles, times, amounts, and text made safe to print. JSON goes out here, too.

Whatever people or handlers wrote is shown as text: no markup of theirs is obeyed, no escape sequence passes.
"""

import sys
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rescind.clock import SYSTEM_CLOCK
from rescind.job import Job
from rescind.state import State, TaskStatus

if TYPE_CHECKING:  # rich takes a while to import, and JSON output does without it
    from rich.console import Console, RenderableType
    from rich.text import Text

_WIDE: Final = 1000  # columns when nobody looks: in a pipe nothing should be cut off
_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_COLOURS: Final = {
    TaskStatus.Pending: "cyan",
    TaskStatus.Running: "blue",
    TaskStatus.Completed: "green",
    TaskStatus.Failed: "red",
    TaskStatus.Cancelled: "yellow",
    TaskStatus.Archived: "bright_black",
}


@cache
def out() -> "Console":
    return _console(stderr=False)


@cache
def err() -> "Console":
    return _console(stderr=True)


def _console(*, stderr: bool) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


def show(what: "RenderableType") -> None:
    """Tables and the like on stdout; in a pipe without the blanks that fill their lines."""
    console = out()
    if console.is_terminal:
        console.print(what)
        return
    with console.capture() as captured:
        console.print(what)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def say(line: "str | Text") -> None:
    """A line on stdout; only a terminal's width may break it."""
    out().print(line, soft_wrap=not out().is_terminal)


def emit(value: Any) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def plain(value: str) -> str:
    """The text on one line, with everything that could steer a terminal spelt out."""
    if value.isprintable():
        return value
    return "".join(char if char.isprintable() else _spelt(char) for char in value)


def _spelt(char: str) -> str:
    return " " if char in "\n\t" else char.encode("unicode_escape").decode()


def json_text(value: Any) -> str:
    """A payload for people; escapes inside strings are JSON's own."""
    return plain(msgspec.json.encode(value).decode())


def status_text(job: Job) -> "Text":
    from rich.text import Text

    return Text(job.status.value, style=_COLOURS[job.status])


def status_colour(status: TaskStatus) -> str:
    return _COLOURS[status]


def duration(seconds: float) -> str:
    """The largest unit that fits: 340 ms, 12 s, 5 min, 3 h, 2 d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    name, size = next(unit for unit in _UNITS if seconds >= unit[1])
    return f"{seconds / size:.0f} {name}"


def relative(moment: datetime) -> str:
    seconds = (SYSTEM_CLOCK.now() - moment).total_seconds()
    if -1 < seconds < 1:
        return "now"
    return f"in {duration(-seconds)}" if seconds < 0 else f"{duration(seconds)} ago"


def absolute(moment: datetime) -> str:
    """In the reader's own time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def when(moment: datetime) -> str:
    return f"{relative(moment)} ({absolute(moment)})"


def gap_ms(start: datetime, end: datetime) -> float:
    return round((end - start).total_seconds() * 1000, 1)


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def note(job: Job) -> str:
    """What is worth knowing about a job besides its status, in a few words."""
    match job.state:
        case State.AWAITING_FUTURE:
            return f"{relative(job.available_at)}{_after_failure(job)}"
        case State.PENDING_JOBS:
            return f"waits for {plural(len(job.wait_for), 'job')}"
        case State.ACTIVE if job.cancelling:
            return f"stopping for {plain(job.cancel_requested_by or '')}{_because(job.cancel_reason)}"
        case State.ACTIVE:
            return _progress(job)
        case State.CANCELLED:
            return f"by {plain(job.cancelled_by or '')}{_because(job.cancel_reason)}"
        case _:
            return plain(job.last_error or "")


def _after_failure(job: Job) -> str:
    return f", after {plain(job.last_error)}" if job.last_error else ""


def _because(reason: str | None) -> str:
    return f": {plain(reason)}" if reason else ""


def _progress(job: Job) -> str:
    parts = [] if job.progress is None else [f"{job.progress:.0%}"]
    return " ".join([*parts, plain(job.progress_message or "")]).strip()
