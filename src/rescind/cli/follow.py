"""Watching one job to its end: progress on stderr while it lasts, its output on stdout."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import typer

from rescind import sync
from rescind.cli.failure import ExitCode, complain
from rescind.cli.render import emit, err, json_text, note, plain
from rescind.clock import SYSTEM_CLOCK, blocking_sleep
from rescind.job import Job
from rescind.state import FINAL_STATES, State

_LOOK_SECONDS: Final = 0.1

Show = Callable[[Job], None]


def follow(queue: sync.Queue, job: Job, *, as_json: bool) -> int:
    """Wait until the job has ended; only a completed one is a success."""
    try:
        with _shown(quiet=as_json) as show:
            _warn_if_unserved(queue, job, as_json)
            while (job := queue.get(job.id)).state not in FINAL_STATES:
                show(job)
                blocking_sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        message = f"stopped waiting; the job goes on. To take it back: rescind cancel {job.id}"
        complain(message, as_json=as_json, kind="interrupted")
        return ExitCode.INTERRUPTED
    return _end(job, as_json)


def _end(job: Job, as_json: bool) -> int:
    if as_json:
        emit(job.as_dict())
    elif job.state is State.COMPLETED:
        typer.echo(json_text(job.output))
    if job.state is State.COMPLETED:
        return ExitCode.OK
    complain(f"job {job.id} was {_fate(job)}", as_json=as_json, kind=f"job_{job.status.value}")
    return ExitCode.REFUSED


def _fate(job: Job) -> str:
    return f"{job.status.value}: {note(job)}" if note(job) else job.status.value


def _warn_if_unserved(queue: sync.Queue, job: Job, as_json: bool) -> None:
    """Waiting for a job that nobody serves looks like a hang; say so."""
    alive = SYSTEM_CLOCK.now() - timedelta(seconds=queue.asynchronous.settings.lease_seconds)
    workers = [w for w in queue.workers() if w.seen_at is not None and w.seen_at > alive]
    if not as_json and not any(job.need in worker.needs for worker in workers):
        err().print(f"no worker serves {plain(job.need)} at present; start one: rescind worker MODULE:WORKER")


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Show]:
    """A bar on a terminal, nothing elsewhere."""
    if quiet or not err().is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), text, BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err(), transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(job: Job) -> None:
            total = None if job.progress is None else 1.0
            words = f"{job.status.value} {note(job)}".strip()
            progress.update(task, description=words, total=total, completed=job.progress or 0)

        yield show
