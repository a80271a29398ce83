"""Looking after the store itself: `rescind db install`, `upgrade`, `sql` and `check`."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import typer

from rescind.cli.failure import ExitCode
from rescind.cli.options import Json, Shared, Url
from rescind.cli.render import emit, plain, plural, say
from rescind.engine import Administration, open_administration
from rescind.settings import default_url, load

T = TypeVar("T")


def db(context: typer.Context, url: Url = None, as_json: Json = False) -> None:
    """The store itself: make it, bring it up to date, see that it is sound."""
    context.obj = Shared(url, as_json)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)


def install(url: Url = None, as_json: Json = False) -> None:
    """Make the store; over one that is there, make its schema anew. Nothing stored is lost.

    PostgreSQL: the schema pgwf, with notifications on. It waits for transactions that use the schema.
    """
    _change(url, as_json, lambda store: store.install(), _installed)


def _installed(before: int | None, after: int | None) -> str:
    if before is None:
        return f"version {after} installed"
    return f"version {after} is in place" if before == after else f"version {before} is now version {after}"


def upgrade(url: Url = None, as_json: Json = False) -> None:
    """Bring a store of an older version to this one; trace and notifications stay as they are."""
    _change(url, as_json, lambda store: store.upgrade(), _upgraded)


def _upgraded(before: int | None, after: int | None) -> str:
    if before == after:
        return f"is at version {after} already, nothing to do"
    return f"version {before or 0} is now version {after}"


def _change(
    url: str | None,
    as_json: bool,
    change: Callable[[Administration], Coroutine[Any, Any, list[str]]],
    words: Callable[[int | None, int | None], str],
) -> None:
    store = _open(url)

    async def carry_out() -> tuple[int | None, list[str], int | None]:
        return await store.version(), await change(store), await store.version()

    before, remarks, after = asyncio.run(carry_out())
    if as_json:
        emit({"place": store.place, "before": before, "version": after, "remarks": remarks})
        return
    say(f"{plain(store.place)}: {words(before, after)}")
    for remark in remarks:
        say(f"  {plain(remark)}")


def sql(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="For which store, as in sqlite: (usual: postgres:)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the schema as one script; no server is asked. PostgreSQL's may be run any number of times.

    As in: rescind db sql > pgwf.sql; psql -f pgwf.sql
    """
    script = open_administration(url or context.obj.url or "postgres:").script()
    emit({"sql": script}) if as_json else sys.stdout.write(script)


def check(url: Url = None, as_json: Json = False) -> int:
    """Say how the store is set up and what is wrong with it, if anything; then the exit code is 1."""
    store = _open(url)

    async def look() -> tuple[dict[str, Any], list[str]]:
        facts = await store.facts()
        return {"version": await store.version(), **facts}, await store.check()

    facts, problems = asyncio.run(look())
    if as_json:
        emit({"place": store.place, **facts, "problems": problems})
    else:
        _show(store.place, facts, problems)
    return ExitCode.REFUSED if problems else ExitCode.OK


def _show(place: str, facts: dict[str, Any], problems: list[str]) -> None:
    told = [f"{name} {_word(value)}" for name, value in facts.items()]
    say(f"{plain(place)}: {', '.join(told)}")
    for problem in problems:
        say(plain(problem))
    say(f"{plural(len(problems), 'problem')} found" if problems else "nothing wrong with it")


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else plain(str(value))


def _open(url: str | None) -> Administration:
    return open_administration(url or load().url or default_url())
