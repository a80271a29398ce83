"""Jobs as people see them: one in full, many in a table, all of them counted."""

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rescind.cli.render import duration, gap_ms, json_text, note, plain, relative, status_text, when
from rescind.job import Job, Receipt
from rescind.lease import Rung
from rescind.state import FINAL_STATES, State, TaskStatus

HOW = {
    Rung.PENDING: "it was not running",
    Rung.FLAG: "it saw the request and stopped by itself",
    Rung.RAISED: "an exception was raised inside it",
    Rung.FORCED: "it was declared cancelled",
    Rung.ABANDONED: "it would not stop and was given up",
    Rung.LAPSED: "its worker fell silent",
}
_PAYLOAD_WIDTH = 400


def job_card(job: Job) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _rows(job):
        grid.add_row(name, Text(value) if isinstance(value, str) else value)
    title = Text.assemble((plain(job.id), "bold"), "  ", plain(job.need), "  ", status_text(job))
    return Group(title, Padding(grid, (0, 0, 0, 2), expand=False))


def _rows(job: Job) -> Iterator[tuple[str, RenderableType]]:
    yield "state", _state(job)
    if job.owner:
        yield "owner", plain(job.owner)
    yield "submitted", f"{when(job.submitted_at)} by {plain(job.submitted_by)}"
    yield from _waiting(job)
    yield from _running(job)
    if job.finished_at:
        yield "finished", f"{when(job.finished_at)}{_took(job)}"
    if job.last_error and job.last_error != job.cancel_reason:
        yield "last error", plain(job.last_error)
    if job.receipt:
        yield from _receipt(job.receipt)
    yield from _bodies(job)


def _state(job: Job) -> str:
    return f"{job.state.value}, asked to stop" if job.cancelling else job.state.value


def _waiting(job: Job) -> Iterator[tuple[str, RenderableType]]:
    if job.state is State.AWAITING_FUTURE:
        yield "available", when(job.available_at)
    if job.wait_for and job.state not in FINAL_STATES:
        yield "waits for", ", ".join(job.wait_for)
        yield (
            "then",
            f"{job.on_dependency_cancelled} if one is cancelled, {job.on_dependency_failed} if one fails",
        )
    if job.singleton_key:
        yield "singleton", plain(job.singleton_key)
    if job.priority:
        yield "priority", str(job.priority)


def _running(job: Job) -> Iterator[tuple[str, RenderableType]]:
    if job.claimed_at:
        worker = f" on {plain(job.lease_worker)}" if job.lease_worker else ""
        yield "started", f"{when(job.claimed_at)}{worker}"
        limit = "no limit" if job.max_attempts is None else f"{job.max_attempts} allowed"
        yield "attempts", f"{job.attempt}, {job.failures} failed ({limit})"
    if job.progress is not None:
        yield "progress", _bar(job)
    if job.usage_units:
        yield "usage", f"{job.usage_units:,} units"
    if job.estimate is not None:
        yield "tokens", f"{job.estimate} reserved, {job.committed} spent ({job.billing.value})"


def _bar(job: Job) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    progress = job.progress or 0.0
    words = Text(f"{progress:.0%} {plain(job.progress_message or '')}".rstrip())
    grid.add_row(ProgressBar(total=1.0, completed=progress, width=20), words)
    return grid


def _took(job: Job) -> str:
    if job.claimed_at is None or job.finished_at is None:
        return ""
    return f", {duration(max(0.0, (job.finished_at - job.claimed_at).total_seconds()))} after it started"


def _receipt(receipt: Receipt) -> Iterator[tuple[str, RenderableType]]:
    yield "cancel", f"asked {when(receipt.requested_at)} by {plain(receipt.by)}"
    if receipt.reason:
        yield "reason", plain(receipt.reason)
    stages = {stage: getattr(receipt, f"{stage}_at") for stage in ("delivered", "acknowledged", "stopped")}
    gaps = [f"{stage} +{gap_ms(receipt.requested_at, at):g} ms" for stage, at in stages.items() if at]
    if gaps:
        yield "receipt", ", ".join(gaps)
    if receipt.rung:
        yield "stopped", f"{receipt.rung.value}: {HOW[receipt.rung]}"


def _bodies(job: Job) -> Iterator[tuple[str, RenderableType]]:
    if job.status is TaskStatus.Archived:
        yield "input", "gone: past its retention"
        return
    if job.input is not None:
        yield "input", _shortened(json_text(job.input))
    if job.state is State.COMPLETED:
        yield "output", _shortened(json_text(job.output))


def _shortened(text: str) -> str:
    return text if len(text) <= _PAYLOAD_WIDTH else f"{text[:_PAYLOAD_WIDTH]}… (all of it: --json)"


def jobs_table(jobs: Sequence[Job]) -> Table:
    """Ids are never cut, as people copy them; needs, owners and notes give way when it gets narrow."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("need")
    table.add_column("status", no_wrap=True)
    with_owner = any(job.owner for job in jobs)
    if with_owner:
        table.add_column("owner")
    table.add_column("submitted", no_wrap=True)
    table.add_column("", style="dim")
    for job in jobs:
        owner = [_cut(job.owner or "")] if with_owner else []
        table.add_row(
            job.id, _cut(job.need), status_text(job), *owner, relative(job.submitted_at), _cut(note(job))
        )
    return table


def _cut(text: str) -> Text:
    """One line, shortened to its column. `no_wrap` on the column would keep that from shrinking."""
    return Text(plain(text), no_wrap=True, overflow="ellipsis")


def stats_table(counts: Mapping[str, Mapping[State, int]]) -> Table:
    states = [state for state in State if any(state in each for each in counts.values())]
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        show_edge=False,
        show_footer=len(counts) > 1,
    )
    table.add_column("need", footer="all")
    for state in states:
        total = sum(each.get(state, 0) for each in counts.values())
        table.add_column(state.value.lower().replace("_", " "), justify="right", footer=f"{total:,}")
    for need in sorted(counts):
        table.add_row(Text(plain(need)), *(f"{counts[need].get(state, 0):,}" for state in states))
    return table
