"""Writes the pages that come from the code: `lifecycle.md` and `reference.md`. `make docs` runs it."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import typer
from prometheus_client.metrics import MetricWrapperBase

import rescind
from rescind import errors, queue, spec, telemetry
from rescind.cli.app import app
from rescind.lifecycle import TABLE, Situation
from rescind.settings import Settings

HERE = Path(__file__).parent


def main() -> None:
    for name, render in PAGES.items():
        (HERE / name).write_text(render())


def lifecycle() -> str:
    return "\n".join(
        [
            "# Lifecycle",
            "",
            "*Rendered from `rescind.lifecycle` by `make docs`.*",
            "",
            _prose(STATES),
            "",
            "## Moves",
            "",
            "What each verb does in each situation: what it may lead to, or the error that refuses it.",
            "`CANCELLING` is `ACTIVE` with a request to stop on record. Every engine is held to every cell.",
            "",
            *_table(["verb", *(f"`{each}`" for each in Situation)], _rows()),
            "",
            _prose(BY_TIME),
            "",
        ]
    )


STATES = """
A job stores facts: when it becomes available, what it waits for, who holds it until when, whether somebody
wants it stopped, how it ended. Its state follows from these and the clock, so time passing needs no write.
The first that holds:

| condition | state | status |
|---|---|---|
| an outcome is recorded | `COMPLETED`, `FAILED` or `CANCELLED` | completed, failed, cancelled |
| its lease is live | `ACTIVE` (`cancelling` when a stop was requested) | running |
| a stop was requested | `CANCELLED` | cancelled |
| `available_at` is in the future | `AWAITING_FUTURE` | pending |
| `wait_for` is not empty | `PENDING_JOBS` | pending |
| its lease ran out, and it was the last attempt | `FAILED` | failed |
| otherwise | `READY` | pending |

A finished job past its retention keeps its state and has the status archived.
"""

BY_TIME = """
## What time decides

- A lease that runs out puts the job back to `READY`, with a failure counted; it is `CANCELLED` when a stop
  was requested, and `FAILED` when that was its last attempt.
- A pending job that was never claimed within its need's activation timeout is `FAILED`.
- A cancelled job is archived by the next sweep, which releases or cancels its dependents.
- A finished job past its retention loses its input and output.
"""


def _rows() -> Iterator[list[str]]:
    for verb, row in TABLE.items():
        cells = [_cell(row[each]) for each in Situation]
        yield [f"**{verb.replace('_', ' ')}**", *cells]


def _cell(cell: Any) -> str:
    if isinstance(cell, frozenset):
        return "<br>".join(f"`{each}`" for each in Situation if each in cell)
    return f"*{cell.__name__}*"


def reference() -> str:
    parts = ["# Reference", "", "*Rendered from the code by `make docs`.*", ""]
    for section in (_python, _command_line, _settings, _metrics, _errors):
        parts += [*section(), ""]
    return "\n".join(parts)


def _python() -> Iterator[str]:
    yield "## Python"
    yield from ("", "`rescind.sync.connect()` gives the same `Queue` for code without an event loop.")
    for owner in (rescind.connect, rescind.Queue, rescind.Worker, rescind.Context):
        yield from ("", f"### `{owner.__name__}`", "", _prose(owner.__doc__ or ""), "")
        yield from _methods(owner)
    for title, options, takes in OPTIONS:
        yield from ("", f"### {title}", "", _prose(options.__doc__ or ""), "")
        yield from _options(options, takes)


OPTIONS: list[tuple[str, type, Callable[..., Any]]] = [
    ("Submit options", spec.SubmitOptions, spec.spec),
    ("Bulk options", queue.BulkOptions, rescind.Queue._cancel_kind),
]


def _methods(owner: type) -> Iterator[str]:
    for name, member in vars(owner).items():
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        signature = str(inspect.signature(member)).replace("(self, ", "(").replace("(self)", "()")
        yield from (f"- `{name}{_shorten(signature)}`  ", f"  {' '.join((member.__doc__ or '').split())}")


def _shorten(signature: str) -> str:
    """Names without their modules; Python versions differ in how they show `Unpack`."""
    plain = re.sub(r"\b(rescind\.(worker\.)?\w+|collections\.abc|typing|datetime)\.|'|~", "", signature)
    return re.sub(r"\*<class (\w+)>|Unpack\[(\w+)\]", r"\1\2", plain)


def _options(options: type, takes: Callable[..., Any]) -> Iterator[str]:
    defaults = inspect.signature(takes).parameters
    for name, hint in get_type_hints(options, include_extras=True).items():
        default = defaults[name].default
        shown = "" if default in (inspect.Parameter.empty, None) else f" (default `{default!r}`)"
        yield f"- `{name}`: {hint.__metadata__[0]}{shown}"


def _command_line() -> Iterator[str]:
    yield from ("## Command line", "", "Exit codes: 0 ok, 1 refused, 2 usage, 3 unavailable.")
    group: Any = typer.main.get_command(app)
    yield from ("", "Options before the command:", "")
    yield from _parameters(group)
    for name, command in sorted(group.commands.items()):
        yield from ("", f"### `rescind {name}`", "", _prose(command.help or ""), "")
        yield from _parameters(command)


def _parameters(command: Any) -> Iterator[str]:
    for parameter in command.params:
        names = parameter.opts + parameter.secondary_opts
        shown = parameter.name.upper() if parameter.param_type_name == "argument" else ", ".join(names)
        yield f"- `{shown}`: {' '.join((getattr(parameter, 'help', '') or '').split())}"


def _settings() -> Iterator[str]:
    yield from ("## Settings", "", "In `rescind.toml`, or as `RESCIND_` variables, which outrank it.", "")
    rows = []
    for field in msgspec.structs.fields(Settings):
        (meta,) = field.type.__metadata__
        names = (f"`{field.name}`", f"`RESCIND_{field.name.upper()}`")
        rows.append([*names, f"`{field.default}`", meta.description])
    yield from _table(["name", "variable", "default", "meaning"], rows)


def _metrics() -> Iterator[str]:
    yield from ("## Metrics", "")
    rows = []
    for metric in vars(telemetry).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            suffix = "_total" if family.type == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            rows.append([f"`{family.name}{suffix}`", family.type, labels, family.documentation])
    yield from _table(["name", "type", "labels", "meaning"], rows)


def _errors() -> Iterator[str]:
    yield from ("## Errors", "", "```text", textwrap.dedent((errors.__doc__ or "").split("\n\n")[1]), "```")


def _table(head: list[str], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _prose(text: str) -> str:
    return inspect.cleandoc(text)


PAGES: dict[str, Callable[[], str]] = {"lifecycle.md": lifecycle, "reference.md": reference}

if __name__ == "__main__":
    main()
