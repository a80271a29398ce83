"""`rescind submit`: one job from the command line, or many from a file."""

from typing import Annotated, Any

import typer

from rescind import sync
from rescind.cli import parse
from rescind.cli.follow import follow
from rescind.cli.options import By, Json, Url
from rescind.cli.render import emit, err, plural
from rescind.errors import InvalidInput
from rescind.job import Job

_DEPENDENCY = "When a job it waits for was {}: release (run anyway) or cancel."


def submit(
    need: Annotated[str | None, typer.Argument(metavar="NEED", help="The work the job needs done.")] = None,
    input: Annotated[
        str | None, typer.Argument(metavar="INPUT", help="Its input: JSON, @FILE, or - for stdin.")
    ] = None,
    id: Annotated[str | None, typer.Option("--id", help="The job's id; otherwise a new UUID.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="For whom it is run.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Higher runs first; 0 is usual.")] = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="SECONDS", help="Not before this long from now: 90, 5m, 2h."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Not before this ISO time (your zone unless it says another)."
        ),
    ] = None,
    wait_for: Annotated[
        list[str] | None,
        typer.Option("--wait-for", metavar="ID", help="A job that must end first; repeatable."),
    ] = None,
    on_dependency_cancelled: Annotated[
        str | None, typer.Option("--on-dependency-cancelled", help=_DEPENDENCY.format("cancelled"))
    ] = None,
    on_dependency_failed: Annotated[
        str | None, typer.Option("--on-dependency-failed", help=_DEPENDENCY.format("not done"))
    ] = None,
    singleton_key: Annotated[
        str | None,
        typer.Option("--singleton-key", metavar="KEY", help="One job with this key runs at a time."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", help="Failures until it is given up; 0: never. Usual: 3.")
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", metavar="KEY", help="The same key and input again: the same job."),
    ] = None,
    by: By = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="FILE",
            help="Submit all jobs of a file of JSON lines (- for stdin), or none; options are defaults.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and print the output.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Ask for work. Prints the job's id; when it returns the job is on disk."""
    options: dict[str, Any] = {
        "id": id,
        "by": by,
        "owner": owner,
        "priority": priority,
        "singleton_key": singleton_key,
        "wait_for": wait_for or None,
        "on_dependency_cancelled": on_dependency_cancelled,
        "on_dependency_failed": on_dependency_failed,
        "delay_seconds": None if delay is None else parse.seconds(delay, "--delay"),
        "available_at": None if at is None else parse.moment(at, "--at"),
        "idempotency_key": idempotency_key,
    }
    said = {name: value for name, value in options.items() if value is not None}
    if max_attempts is not None:
        said["max_attempts"] = max_attempts or None  # here 0 says what None says in Python
    if batch is None:
        return _submit_one(need, input, said, url, wait=wait, as_json=as_json)
    _refuse_in_batch({"NEED": need, "--id": id, "--idempotency-key": idempotency_key, "--wait": wait or None})
    return _submit_batch([{**said, **line} for line in parse.batch(batch)], url, as_json)


def _submit_one(
    need: str | None, text: str | None, options: dict[str, Any], url: str | None, *, wait: bool, as_json: bool
) -> int:
    if need is None:
        raise InvalidInput("say what the job needs, as in: rescind submit resize '{\"width\": 80}'")
    body = None if text is None else parse.payload(text)
    with sync.connect(url) as queue:
        job = queue.submit(need, body, **options)
        if wait:
            return follow(queue, job, as_json=as_json)
        _show(job, as_json)
    return 0


def _submit_batch(jobs: list[dict[str, Any]], url: str | None, as_json: bool) -> int:
    with sync.connect(url) as queue:
        submitted = queue.submit_many(jobs)
    for job in submitted:
        _show(job, as_json)
    if err().is_terminal and not as_json:
        err().print(f"{plural(len(submitted), 'job')} submitted", style="dim")
    return 0


def _refuse_in_batch(options: dict[str, object]) -> None:
    if given := [name for name, value in options.items() if value is not None]:
        raise InvalidInput(
            f"{', '.join(given)} cannot be given with --batch: each line speaks for its own job"
        )


def _show(job: Job, as_json: bool) -> None:
    """The bare id, so that `id=$(rescind submit ...)` just works."""
    emit(job.as_dict()) if as_json else typer.echo(job.id)
