"""The `rescind` command: which commands there are, what they share, and how they end."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from rescind.cli import db
from rescind.cli.cancel import cancel
from rescind.cli.demo import demo
from rescind.cli.failure import ExitCode, complain, report, report_usage
from rescind.cli.look import history, list_jobs, stats, status
from rescind.cli.options import DEFAULT_PLACE, Shared
from rescind.cli.submit import submit
from rescind.cli.work import sweep, worker
from rescind.errors import InvalidInput, RescindError


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _with_bare_flags(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _with_bare_flags(super().get_params(ctx))


def _with_bare_flags(parameters: list[Any]) -> list[Any]:
    """A flag takes no value, so its help should not look as if it did (typer says `<bool>`)."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


app = typer.Typer(
    name="rescind",
    cls=_Group,
    help="Durable jobs you can take back. New here? Try: rescind demo",
    epilog="Exit codes: 0 done, 1 refused, 2 wrong usage or settings, 3 store unavailable, 130 interrupted.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PANELS: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    "Start here": {"demo": demo},
    "Jobs": {"submit": submit, "status": status, "list": list_jobs, "history": history, "cancel": cancel},
    "The queue": {"worker": worker, "stats": stats, "sweep": sweep},
}
for _panel, _commands in _PANELS.items():
    for _name, _function in _commands.items():
        app.command(_name, cls=_Command, rich_help_panel=_panel)(_function)

_db = typer.Typer(cls=_Group, callback=db.db, invoke_without_command=True)
for _function in (db.install, db.upgrade, db.sql, db.check):
    _db.command(cls=_Command)(_function)
app.add_typer(_db, name="db", rich_help_panel="The queue")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help=f"Where the queue lives; otherwise {DEFAULT_PLACE}."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --json after the command.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    context.obj = Shared(url, as_json)
    if version:
        typer.echo(f"rescind {_version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character gets a "?"
            stream.reconfigure(errors="replace")
    sys.exit(_flushed(_run(given)))


def _run(arguments: list[str]) -> int:
    as_json = "--json" in arguments  # known even when the arguments cannot be parsed
    try:
        _check_text(arguments)
        return int(typer.main.get_command(app)(arguments, prog_name="rescind", standalone_mode=False) or 0)
    except RescindError as problem:
        return report(problem, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except Exception as problem:
        if hasattr(problem, "format_message"):  # what typer's own errors have in common
            return report_usage(problem, as_json=as_json)
        return _confess(problem, as_json)


def _check_text(arguments: list[str]) -> None:
    """Python lets stray bytes through as surrogates, which can be neither stored nor shown as JSON."""
    for each in arguments:
        shown = each.encode("utf-8", "backslashreplace").decode()
        if shown != each:
            raise InvalidInput(f"argument {shown} is not UTF-8 text")


def _confess(problem: Exception, as_json: bool) -> int:
    if not as_json:
        traceback.print_exception(problem)
    complain(f"this is a bug in rescind, please report it: {problem!r}", as_json=as_json, kind="bug")
    return ExitCode.BUG


def _flushed(code: int) -> int:
    """Whoever read our output may have left (`| head`); that is no error of ours."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _version() -> str:
    try:
        return metadata.version("rescind")
    except metadata.PackageNotFoundError:
        return "(not installed)"
