"""Doing the work: `rescind worker` and `rescind sweep`."""

import asyncio
import logging
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from rescind import sync
from rescind.cli import log
from rescind.cli.locate import locate
from rescind.cli.options import Json, Url
from rescind.cli.render import emit, plural, say
from rescind.connection import connect
from rescind.engine import Swept
from rescind.worker import Worker

_log = logging.getLogger("rescind.cli")


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:WORKER", help="Where the Worker is, as in app:worker.")
    ],
    need: Annotated[
        list[str] | None, typer.Option("--need", metavar="NEED", help="Serve only this need; repeatable.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="Jobs at a time; otherwise as the worker or settings say."),
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Leave when there is nothing left to do.")
    ] = False,
    log_level: Annotated[Level, typer.Option("--log-level", help="How much to log on stderr.")] = Level.INFO,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run a worker until Ctrl-C or SIGTERM: it lets its jobs end; a second one does not wait for them."""
    log.start(log_level, as_json=as_json)
    found = locate(target)
    _log.info("%s starts as %s; Ctrl-C stops it", target, found.name)
    asyncio.run(_work(found, url, need or None, concurrency, until_empty))
    _log.info("%s stopped", found.name)


async def _work(
    worker: Worker, url: str | None, needs: list[str] | None, concurrency: int | None, until_empty: bool
) -> None:
    if worker.queue is not None and url is None:
        await worker.run(needs=needs, concurrency=concurrency, until_empty=until_empty)
    else:
        async with connect(url) as queue:
            await worker.run(queue, needs=needs, concurrency=concurrency, until_empty=until_empty)


def sweep(url: Url = None, as_json: Json = False) -> None:
    """Do at once what workers do on a schedule: end lapsed leases, archive, purge what is past its time."""
    with sync.connect(url, create=False) as queue:
        swept = queue.sweep()
    if as_json:
        facts = msgspec.to_builtins(swept)
        del facts["more"]  # a whole sweep never leaves any
        emit(facts)
    else:
        say(_words(swept))


def _words(swept: Swept) -> str:
    counts = (
        (swept.lapsed, "lease", "ended"),
        (swept.timed_out, "job", "timed out"),
        (swept.archived, "job", "archived"),
        (swept.purged, "job", "purged"),
    )
    done = [f"{plural(number, noun)} {verb}" for number, noun, verb in counts if number]
    return ", ".join(done) or "nothing to do"
