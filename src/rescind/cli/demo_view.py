"""What the demo looks like: live on a terminal, lines elsewhere, and the table at the end."""

from collections import deque
from typing import Any, Final

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rescind.cli.demo_stage import Role
from rescind.cli.render import gap_ms
from rescind.lease import Rung
from rescind.state import PENDING_STATES, State

HEADLINE: Final = "10 jobs, 6 at a time"
_LOG_LINES: Final = 6
_WAITING: Final = ("waiting", "cyan")
_HOW: Final = {
    Rung.PENDING: "never started",
    Rung.FLAG: "saw the flag",
    Rung.RAISED: "by exception",
    Rung.FORCED: "by force",
    Rung.ABANDONED: "abandoned",
    Rung.LAPSED: "lease ran out",
}


class Silent:
    """For --json: the table at the end says it all."""

    def show(self, roles: list[Role], seconds: float) -> None: ...

    def asked(self, role: Role, by: str, reason: str, seconds: float) -> None: ...


class Lines:
    """For pipes and terminals that cannot move the cursor: a line per event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, tuple[str, str]] = {}

    def show(self, roles: list[Role], seconds: float) -> None:
        if not self._seen:
            self.say(Text(HEADLINE), seconds)
            self._seen = {role.part.id: _WAITING for role in roles}
        for role in roles:
            state = _state(role)
            if self._seen[role.part.id] != state and role.job.state not in PENDING_STATES:
                self._seen[role.part.id] = state
                self.say(Text.assemble(_name(role), ": ", _told(role)), seconds)

    def asked(self, role: Role, by: str, reason: str, seconds: float) -> None:
        self.say(_asked(role, by, reason), seconds)

    def say(self, text: Text, seconds: float) -> None:
        self._console.print(Text.assemble((f"{seconds:5.1f} s  ", "dim"), text), soft_wrap=True)


class Screen:
    """A table that moves, and below it the last few things that happened."""

    def __init__(self, live: Live, hint: str = "") -> None:
        self._live = live
        self._hint = hint
        self._log: deque[Text] = deque(maxlen=_LOG_LINES)
        self._stopped: set[str] = set()

    def show(self, roles: list[Role], seconds: float) -> None:
        for role in roles:
            if role.stopped and role.part.id not in self._stopped:
                self._stopped.add(role.part.id)
                self._say(Text.assemble(_name(role), ": ", _told(role)), seconds)
        self._live.update(self._frame(roles, seconds), refresh=True)

    def asked(self, role: Role, by: str, reason: str, seconds: float) -> None:
        self._say(_asked(role, by, reason), seconds)

    def _say(self, text: Text, seconds: float) -> None:
        self._log.append(
            Text.assemble((f"{seconds:5.1f} s  ", "dim"), text, no_wrap=True, overflow="ellipsis")
        )

    def _frame(self, roles: list[Role], seconds: float) -> RenderableType:
        spent = sum(role.part.spent_dollars(role.ran_seconds) for role in roles)
        head = Text.assemble(("rescind", "bold"), f"  {HEADLINE}  {seconds:4.1f} s  ${spent:.2f} spent")
        blank = [Text()] * (_LOG_LINES - len(self._log))
        hint = [Text(self._hint, "bold")] if self._hint else []
        return Group(head, _jobs(roles), *self._log, *blank, *hint)


def _jobs(roles: list[Role]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1), pad_edge=False, show_header=False, show_edge=True)
    table.add_column(justify="right", style="dim", width=2)
    table.add_column(width=22, no_wrap=True)
    table.add_column(width=17, no_wrap=True)
    table.add_column(width=20)
    table.add_column(width=7, justify="right")
    for role in roles:
        words, colour = _state(role)
        money = f"${role.part.spent_dollars(role.ran_seconds):.2f}" if role.ran_seconds else ""
        table.add_row(str(role.number), role.part.title, Text(words, colour), _bar(role, colour), money)
    return table


def _bar(role: Role, colour: str) -> RenderableType:
    if not role.ran_seconds:
        return ""
    return ProgressBar(
        total=role.part.seconds,
        completed=role.ran_seconds,
        width=20,
        complete_style=colour,
        finished_style=colour,
    )


def _state(role: Role) -> tuple[str, str]:
    """The state in a word or two, and its colour."""
    job = role.job
    match job.state:
        case State.AWAITING_FUTURE:
            return "later", "cyan"
        case State.PENDING_JOBS:
            return f"after {job.wait_for[0]}", "cyan"
        case State.READY:
            return _WAITING
        case State.ACTIVE:
            return ("stopping", "magenta") if job.cancelling else ("running", "blue")
        case State.CANCELLED:
            return "taken back", "yellow"
        case State.COMPLETED:
            return "done", "green"
        case _:
            return job.status.value, "red"


def _name(role: Role) -> Text:
    return Text(f"{role.number} {role.part.title}", "bold")


def _told(role: Role) -> Text:
    words, colour = _state(role)
    if not role.stopped:
        return Text(words, colour)
    if _is_cascade(role):
        return Text(f"{words}, {_why(role)}", colour)
    return Text(f"{words} {_after(role, 'after ')}, {_how(role)}", colour)


def _is_cascade(role: Role) -> bool:
    return _cause(role).startswith("job:")


def _cause(role: Role) -> str:
    return role.job.cancel_requested_by or ""


def _why(role: Role) -> str:
    if _is_cascade(role):
        return f"it waited for {_cause(role).removeprefix('job:')}"
    return role.job.cancel_reason or ""


def _asked(role: Role, by: str, reason: str) -> Text:
    return Text.assemble((_person(by), "bold"), " cancelled ", _name(role), f": {reason}")


def _person(by: str) -> str:
    return by.removeprefix("user:").removeprefix("job:")


def _how(role: Role) -> str:
    return _HOW[role.job.rung] if role.job.rung else ""


def _stop_ms(role: Role) -> float | None:
    receipt = role.job.receipt
    if receipt is None or receipt.stopped_at is None:
        return None
    return gap_ms(receipt.requested_at, receipt.stopped_at)


def _after(role: Role, word: str = "") -> str:
    milliseconds = _stop_ms(role)
    if not milliseconds:
        return "" if milliseconds is None else "at once"
    return f"{word}{milliseconds:.0f} ms"


# The end


def summary(roles: list[Role]) -> Table:
    """Which were stopped, by whom, why, how, how fast, and what that saved."""
    stopped = [role for role in roles if role.stopped]
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, show_footer=True
    )
    total = sum(role.saved_dollars for role in stopped)
    table.add_column("taken back", footer=f"{len(stopped)} of {len(roles)}", no_wrap=True)
    table.add_column("by", no_wrap=True)
    table.add_column("it stopped", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True)
    table.add_column("saved", justify="right", footer=_seconds(stopped), no_wrap=True)
    table.add_column("", justify="right", footer=f"${total:.2f}", no_wrap=True)
    for role in stopped:
        table.add_row(*_summary_row(role))
    return table


def _seconds(stopped: list[Role]) -> str:
    return f"{sum(role.saved_seconds for role in stopped):.0f} s"


def _summary_row(role: Role) -> tuple[RenderableType, ...]:
    what = Text.assemble(_name(role), (f"\n  {_why(role)}", "dim"))
    saved = f"{role.saved_seconds:.0f} s", f"${role.saved_dollars:.2f}"
    return what, _person(role.job.cancelled_by or ""), _how(role), _after(role), *saved


def closing(roles: list[Role]) -> Text:
    """What it all meant, and two things to try next."""
    stopped = [role for role in roles if role.stopped]
    money = f"${sum(role.saved_dollars for role in stopped):.2f}"
    meant = f"{_seconds(stopped)} of work and {money} (pretend) not spent on what nobody wanted any more.\n\n"
    return Text.assemble(
        (meant if stopped else "", "green"),
        ("Your turn:  rescind demo --interactive", "bold"),
        "          choose what to take back\n",
        ("Your queue: rescind submit hello; rescind list", "bold"),
        "  a SQLite file, nothing to set up",
    )


def as_dict(roles: list[Role]) -> dict[str, Any]:
    stopped = [role for role in roles if role.stopped]
    return {
        "jobs": [_role_dict(role) for role in roles],
        "saved_seconds": round(sum(role.saved_seconds for role in stopped), 1),
        "saved_dollars": round(sum(role.saved_dollars for role in stopped), 2),
    }


def _role_dict(role: Role) -> dict[str, Any]:
    return {
        "number": role.number,
        "id": role.part.id,
        "title": role.part.title,
        "need": role.part.need,
        "status": role.job.status.value,
        "cancelled_by": role.job.cancelled_by,
        "reason": role.job.cancel_reason,
        "rung": role.job.rung,
        "stop_ms": _stop_ms(role),
        "saved_seconds": round(role.saved_seconds, 1) if role.stopped else 0,
        "saved_dollars": round(role.saved_dollars, 2) if role.stopped else 0,
        "receipt": msgspec.to_builtins(role.job.receipt),
    }
