"""Writes the pages that come from the code: `lifecycle.md`, `reference.md`, and in `postgres.md` what an
installed schema says of itself. `make docs` runs it."""

import inspect
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import psycopg
import typer
from prometheus_client.metrics import MetricWrapperBase
from psycopg.rows import namedtuple_row

import rescind
from rescind import errors, queue, spec, telemetry
from rescind.cli.app import app
from rescind.engines.postgres import trace
from rescind.engines.postgres.script import script
from rescind.lifecycle import TABLE, Situation
from rescind.settings import Settings
from rescind.testing.postgres import Server

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
    for name, command in _commands(group):
        yield from ("", f"### `{name}`", "", _prose(command.help or ""), "")
        yield from _parameters(command)


def _commands(group: Any, path: str = "rescind") -> Iterator[tuple[str, Any]]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


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


# The page about PostgreSQL: written by hand but for its regions, which hold what an installed schema says.

REGION = re.compile(r"(<!-- rendered: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PUBLIC = r"p.pronamespace = 'pgwf'::regnamespace AND p.proname !~ '^_'"
WIDTH = 112
GLUE = "\N{NO-BREAK SPACE}"
ROLES = ("pgwf_producer", "pgwf_worker", "pgwf_operator", "pgwf_observer")


def postgres() -> str:
    with (
        Server() as server,
        psycopg.connect(server.create_database("docs"), row_factory=namedtuple_row) as db,
    ):
        db.execute(script())
        schema = Schema(db, tomllib.loads((HERE / "postgres.toml").read_text()))
        page = REGION.sub(
            lambda found: found[1] + "\n".join(["", *schema.region(found[2]), "", found[3]]),
            (HERE / "postgres.md").read_text(),
        )
    schema.check_words()
    return page


class Schema:
    """What the catalog names, joined with the words for it."""

    def __init__(self, db: Any, words: dict[str, Any]) -> None:
        self.db = db
        self.words = words
        self.used: set[str] = set()  # of the words about columns, which several tables share

    def region(self, name: str) -> Iterator[str]:
        kind, _, what = name.partition(" ")
        return getattr(self, kind)(*what.split())

    def check_words(self) -> None:
        unused = set(self.words["columns"]) - self.used
        assert not unused, f"postgres.toml describes columns that are not there: {sorted(unused)}"

    def columns(self, *tables: str) -> Iterator[str]:
        """Of one table, or of several that share theirs."""
        found: dict[str, dict[str, Any]] = {}
        for table in tables:
            for column in self.db.execute(COLUMNS, [f"pgwf.{table}"]):
                found.setdefault(column.name, {})[table] = column
        rows = []
        for name, places in found.items():
            column = next(iter(places.values()))
            only = "" if len(places) == len(tables) else f" (only in `{next(iter(places))}`)"
            default = f"`{_short(column.default)}`" if column.default else ""
            meaning = self._meaning(next(iter(places)), name) + only
            rows.append([f"`{name}`", _short(column.type), default, meaning])
        return _table(["column", "type", "default", "meaning"], rows)

    def _meaning(self, table: str, column: str) -> str:
        words = self.words["columns"]
        key = f"{table}.{column}" if f"{table}.{column}" in words else column
        self.used.add(key)
        return str(words[key])

    def functions(self) -> Iterator[str]:
        there = {each.name: each for each in self.db.execute(FUNCTIONS)}
        described = {
            name: words for group in self.words["functions"].values() for name, words in group.items()
        }
        _same(there, described, "functions")
        for group, functions in self.words["functions"].items():
            yield from (f"### {group}", "")
            for name, (words, codes) in functions.items():
                told = f"{words} Errors: {codes}." if codes else words
                yield from ("```text", *_signature(there[name]), "```", "", *_wrapped(told), "")

    def types(self) -> Iterator[str]:
        for name, words in self.words["types"].items():
            attributes = self.db.execute(COLUMNS, [f"pgwf.{name}"])
            listed = ", ".join(f"`{each.name}` {_short(each.type)}" for each in attributes)
            yield from (f"- **`{name}`**. {words}  ", f"  {listed}")

    def sqlstates(self) -> Iterator[str]:
        raised = set(re.findall(r"'(PW\d{3})'", script())) - {"PW000"}  # that one never leaves cancel_jobs
        words = self.words["sqlstates"]
        _same(raised, [code for code in words if code.startswith("PW")], "SQLSTATEs")
        return _table(["SQLSTATE", "meaning", "in Python"], _named(words))

    def events(self) -> Iterator[str]:
        words = self.words["events"]
        _same({*trace._VERBS, "job_cancel_archived_run"}, words, "events")
        return _table(["`event_type`", "when", "`output_data`"], _named(words))

    def roles(self) -> Iterator[str]:
        may = {each.name: each.may for each in self.db.execute(ALLOWED, [list(ROLES)])}
        yield from _wrapped(
            f"All four: {', '.join(f'`{name}`' for name, roles in may.items() if all(roles))}."
        )
        yield ""
        rows = {name: _ticks(roles) for name, roles in may.items() if not all(roles)}
        yield from _table(["", *(f"`{role}`" for role in ROLES)], _named(rows))

    def storage(self) -> Iterator[str]:
        for each in self.db.execute(STORAGE):
            yield f"- `pgwf.{each.name}`: " + ", ".join(f"`{option}`" for option in each.options)


def _same(there: Any, described: Any, what: str) -> None:
    different = set(there) ^ set(described)
    assert not different, f"postgres.toml and the schema differ in {what}: {sorted(different)}"


def _named(rows: dict[str, list[str]]) -> list[list[str]]:
    return [[f"`{name}`", *row] for name, row in rows.items()]


def _ticks(may: list[bool]) -> list[str]:
    return ["✓" if each else "" for each in may]


def _signature(function: Any) -> list[str]:
    """On one line where it fits, else the parameters in between; no parameter is broken."""
    head, tail = f"pgwf.{function.name}(", f") → {_result(function)}"
    body = _unbroken(function.parameters)
    if len(head + body + tail) <= WIDTH:
        return [(head + body + tail).replace(GLUE, " ")]
    lines = [head, *_wrapped(body, first="    ", others="    "), *_wrapped(tail, others="    ")]
    return [line.replace(GLUE, " ") for line in lines]


def _wrapped(text: str, *, first: str = "", others: str = "") -> list[str]:
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=others, **options)


def _unbroken(parts: list[str]) -> str:
    return ", ".join(_short(part).replace(" ", GLUE) for part in parts)


def _result(function: Any) -> str:
    if function.columns:
        return f"TABLE ({_unbroken(function.columns)})"
    return f"({_unbroken(function.outs)})" if function.outs else _short(function.result)


def _short(text: str) -> str:
    """As people write it: without casts that add nothing, and with the short names of types."""
    plain = re.sub(r"::[a-z]+( with time zone| precision)?(\[\])?", "", text)
    return plain.replace("timestamp with time zone", "timestamptz").replace("double precision", "float8")


COLUMNS = """
    SELECT attname AS name, format_type(atttypid, atttypmod) AS type, pg_get_expr(adbin, adrelid) AS default
    FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
FUNCTIONS = rf"""
    SELECT p.proname AS name, pg_get_function_result(p.oid) AS result,
           coalesce(array_agg(a.shown ORDER BY a.place) FILTER (WHERE a.mode = 'i'), '{{}}') AS parameters,
           array_agg(a.shown ORDER BY a.place) FILTER (WHERE a.mode = 'o') AS outs,
           array_agg(a.shown ORDER BY a.place) FILTER (WHERE a.mode = 't') AS columns
    FROM pg_proc p CROSS JOIN LATERAL (
        SELECT n.place, coalesce(p.proargmodes[n.place], 'i') AS mode,
               concat(p.proargnames[n.place], ' ', format_type(n.type, NULL),
                      ' = ' || pg_get_function_arg_default(p.oid, n.place::int)) AS shown
        FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY AS n (type, place)
        UNION ALL SELECT 0, '', ''  -- so that one without parameters is found, too
    ) a
    WHERE {PUBLIC} GROUP BY p.oid"""
ALLOWED = rf"""
    SELECT p.proname AS name,
           array_agg(has_function_privilege(r.role, p.oid, 'EXECUTE') ORDER BY r.place) AS may
    FROM pg_proc p CROSS JOIN unnest(%s::text[]) WITH ORDINALITY AS r (role, place)
    WHERE {PUBLIC} GROUP BY p.proname ORDER BY p.proname"""
STORAGE = """
    SELECT relname AS name, reloptions AS options FROM pg_class
    WHERE relnamespace = 'pgwf'::regnamespace AND relkind = 'r' AND reloptions IS NOT NULL ORDER BY relname"""

PAGES: dict[str, Callable[[], str]] = {
    "lifecycle.md": lifecycle,
    "reference.md": reference,
    "postgres.md": postgres,
}

if __name__ == "__main__":
    main()
