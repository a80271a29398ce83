"""Looking at jobs: `status`, `list`, `history` and `stats`. Nothing here changes anything.

The views are imported where they are used: rich takes longer to load than most commands to run.
"""

from typing import Annotated

import typer

from rescind import sync
from rescind.cli.failure import ExitCode, report
from rescind.cli.options import Ids, Json, Url
from rescind.cli.render import emit, err, plural, say, show
from rescind.errors import JobNotFoundError
from rescind.job import Event
from rescind.lifecycle import Verb
from rescind.state import TaskStatus


def status(ids: Ids, url: Url = None, as_json: Json = False) -> int:
    """Everything about some jobs: where they stand, what happened, what stopped them."""
    from rescind.cli.job_view import job_card

    code = ExitCode.OK
    with sync.connect(url, create=False) as queue:
        for job_id in dict.fromkeys(ids):
            try:
                job = queue.get(job_id)
            except JobNotFoundError as problem:
                code = report(problem, as_json=as_json)
            else:
                emit(job.as_dict()) if as_json else show(job_card(job))
    return code


def list_jobs(
    status: Annotated[TaskStatus | None, typer.Option("--status", help="Only jobs with this status.")] = None,
    need: Annotated[
        str | None,
        typer.Option("--need", "--type", "--task-type", metavar="NEED", help="Only jobs of this need."),
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only jobs of this owner.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many, up to 1000.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Go on where the page before ended.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from rescind.cli.job_view import jobs_table

    with sync.connect(url, create=False) as queue:
        page = queue.list(status=status, need=need, owner=owner, limit=limit, after=after)
    if as_json:
        emit({"jobs": [job.as_dict() for job in page], "next": page.next})
        return
    if page.jobs:
        show(jobs_table(page.jobs))
    else:
        err().print(
            "no such jobs" if after or status or need or owner else "no jobs yet: rescind submit NEED"
        )
    if page.next:
        err().print(f"there are more: --after {page.next}", style="dim")


def history(
    id: Annotated[str, typer.Argument(metavar="ID", help="A job id.")],
    all: Annotated[bool, typer.Option("--all", help="Show heartbeats, too.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Every move of a job: what, when, who and why."""
    from rescind.cli.history_view import event_dict, lines

    with sync.connect(url, create=False) as queue:
        events = queue.history(id)
    shown = [
        (version, event) for version, event in enumerate(events, start=1) if all or not _is_routine(event)
    ]
    if as_json:
        for version, event in shown:
            emit(event_dict(version, event))
        return
    for line in lines(shown):
        say(line)
    if hidden := len(events) - len(shown):
        err().print(f"{plural(hidden, 'heartbeat')} not shown: --all", style="dim")
    if any(event.partial for event in events):
        err().print("partial: tracing was off, this is what the job itself still tells", style="dim")


def _is_routine(event: Event) -> bool:
    """A heartbeat, unless it is the one that brought the cancel request to the worker."""
    return event.verb == Verb.EXTEND and "delivered_at" not in event.changes


def stats(url: Url = None, as_json: Json = False) -> None:
    """How many jobs each need has in each state."""
    from rescind.cli.job_view import stats_table

    with sync.connect(url, create=False) as queue:
        counts = queue.stats()
    if as_json:
        emit(counts)
    elif counts:
        show(stats_table(counts))
    else:
        err().print("no jobs yet: rescind submit NEED")
