"""`rescind cancel`: these jobs, or all of a kind. Bulk cancels ask first on a terminal, show how far they
are, and can be interrupted between two steps: what is done is done, the rest stays untouched."""

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from rescind import sync
from rescind.cli.failure import ExitCode, complain, report
from rescind.cli.options import Json, Url
from rescind.cli.render import emit, err, plain, plural, say
from rescind.engine import Selector
from rescind.errors import InvalidInput
from rescind.job import CancelOutcome, CancelResult
from rescind.spec import check_need, check_text
from rescind.state import State


class Order(msgspec.Struct, frozen=True):
    """What was asked for: which jobs, and what to say about it."""

    selector: Selector
    reason: str | None
    by: str | None
    force: bool
    dry_run: bool
    yes: bool
    as_json: bool

    @property
    def is_bulk(self) -> bool:
        return self.selector.ids is None

    def steps(self, queue: sync.Queue, *, dry_run: bool) -> Iterator[Sequence[CancelResult]]:
        return queue.cancel_matching(
            self.selector, self.reason, by=self.by, force=self.force, dry_run=dry_run
        )


def cancel(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The jobs to take back.")] = None,
    need: Annotated[
        str | None,
        typer.Option("--type", "--task-type", "--need", metavar="NEED", help="All waiting jobs of a need."),
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="All waiting jobs of an owner.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept with the job.")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", "--cancelled-by", metavar="WHO", help="In whose name; otherwise user:YOUR-LOGIN."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="End running jobs here and now instead of asking them to stop.")
    ] = False,
    running: Annotated[
        bool, typer.Option("--running", help="With --type or --owner: those that run, too.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen and touch nothing.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Do not ask before a bulk cancel; without a terminal nobody is asked."
        ),
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Take jobs back: waiting ones are cancelled at once, running ones are asked to stop."""
    order = Order(_selector(ids or [], need, owner, running), reason, by, force, dry_run, yes, as_json)
    with sync.connect(url, create=False) as queue:
        if not order.is_bulk:
            return _cancel_ids(queue, order)
        return _preview(queue, order) if dry_run else _cancel_bulk(queue, order)


def _selector(ids: list[str], need: str | None, owner: str | None, running: bool) -> Selector:
    bulk = need is not None or owner is not None
    if ids and (bulk or running):
        raise InvalidInput("give ids, or --type and --owner (with --running), not both")
    if not ids and not bulk:
        raise InvalidInput("say which jobs: ids, --type NEED or --owner OWNER")
    return Selector(
        ids=tuple(dict.fromkeys(ids)) or None,
        need=None if need is None else check_need(need),
        owner=None if owner is None else check_text(owner, "owner"),
        running=running,
    )


# These ids


def _cancel_ids(queue: sync.Queue, order: Order) -> int:
    refused = False
    for group in order.steps(queue, dry_run=order.dry_run):
        for result in group:
            _show(result, order)
            refused |= result.error is not None
    return ExitCode.REFUSED if refused else ExitCode.OK


def _show(result: CancelResult, order: Order) -> None:
    if order.as_json:
        emit({**result.as_dict(), "dry_run": order.dry_run})
    elif result.error is not None:
        report(result.error, as_json=False)
    else:
        say(f"{plain(result.id)}  {_words(result, order.dry_run)}")


def _words(result: CancelResult, dry_run: bool) -> str:
    job = result.job
    assert job is not None
    if result.outcome is CancelOutcome.ALREADY_CANCELLED:
        said = f": {plain(job.cancel_reason)}" if job.cancel_reason else ""
        state = "already being stopped" if job.cancelling else "already cancelled"
        return f"{state}, asked by {plain(job.cancel_requested_by or '')}{said}"
    would = "would be " if dry_run else ""
    if job.cancelling:
        return f"{would}asked to stop; it is running (`rescind status` shows when it has stopped)"
    return f"{would}cancelled"


# All of a kind


class Tally:
    """What a bulk cancel has done so far."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, group: Sequence[CancelResult]) -> None:
        self._counts.update(_fate(result) for result in group)

    def words(self, would: str = "") -> str:
        parts = [f"{plural(number, 'job')} {would}{fate}" for fate, number in self._counts.items()]
        return ", ".join(parts) or "no job matches"


def _fate(result: CancelResult) -> str:
    if result.error is not None or result.job is None:
        return "refused"
    return "cancelled" if result.job.state is State.CANCELLED else "asked to stop"


def _preview(queue: sync.Queue, order: Order) -> int:
    tally = Tally()
    for group in order.steps(queue, dry_run=True):
        tally.add(group)
        for result in group:
            _show(result, order)
    if not order.as_json:
        say(f"{tally.words('would be ')}; nothing was touched")
    return ExitCode.OK


def _cancel_bulk(queue: sync.Queue, order: Order) -> int:
    asks = sys.stdin.isatty() and not order.yes  # a script means what it says
    total = _count(queue, order) if asks or err().is_terminal else None
    if total == 0:
        return _finish(Tally(), order, interrupted=False)
    if asks and not typer.confirm(f"Cancel {plural(total or 0, 'job')}?", err=True):
        complain("nothing was cancelled", as_json=order.as_json, kind="declined")
        return ExitCode.REFUSED
    tally = Tally()
    with _interruptible() as interrupted, _bar(total, order.as_json) as advance:
        for group in order.steps(queue, dry_run=False):
            tally.add(group)
            advance(len(group))
            if order.as_json:
                for result in group:
                    _show(result, order)
            if interrupted():
                break
    return _finish(tally, order, interrupted=interrupted())


def _count(queue: sync.Queue, order: Order) -> int:
    return sum(len(group) for group in order.steps(queue, dry_run=True))


def _finish(tally: Tally, order: Order, *, interrupted: bool) -> int:
    if interrupted:
        message = f"interrupted: {tally.words()}; the others are untouched. Run it again to go on"
        complain(message, as_json=order.as_json, kind="interrupted")
        return ExitCode.INTERRUPTED
    if not order.as_json:
        say(tally.words())
    return ExitCode.OK


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C lets the step in hand finish, so that the answer is exact; a second one does not wait."""
    asked = False

    def ask(*_: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bar(total: int | None, as_json: bool) -> Iterator[Callable[[int], None]]:
    if as_json or not err().is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("cancelling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err(), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda number: progress.advance(task, number)
