"""The command line without a process: what it refuses, its help, what people type and what they see."""

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from rescind import InvalidInput, sync
from rescind.cli import parse, render
from rescind.cli.app import app, run
from rescind.cli.locate import locate

Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must fail: its exit code and what it said, which was on stderr alone."""
    for name in [name for name in os.environ if name.startswith("RESCIND_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RESCIND_URL", f"sqlite://{tmp_path}/jobs.db")
    monkeypatch.chdir(tmp_path)
    sync.connect().close()

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            run(arguments)
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1, printed
        assert isinstance(left.value.code, int)
        return left.value.code, printed.err

    return call


BAD = [
    (("submit",), "say what the job needs"),
    (("submit", "resize", "hello"), "needs its own quotes"),
    (("submit", "resize", "@nowhere.json"), "cannot read nowhere.json: No such file"),
    (("submit", "resize", "--delay", "soon"), "not a duration"),
    (("submit", "resize", "--at", "tomorrow"), "not a time"),
    (("submit", "resize", "--priority", "high"), "'--priority'"),
    (("submit", "resize", "--max-attempts", "-1"), "max_attempts"),
    (("submit", "resize", "--on-dependency-failed", "panic"), "on_dependency_failed"),
    (("submit", "resize", "--wait-for", "nope"), "unknown jobs: nope"),
    (("submit", "resize", "--id", "a b"), "not usable"),
    (("submit", "n" * 54), "longer than 53 bytes"),
    (("submit", "--batch", "nowhere.jsonl"), "cannot read nowhere.jsonl"),
    (("submit", "resize", "--batch", "jobs.jsonl"), "NEED cannot be given with --batch"),
    (("cancel",), "say which jobs"),
    (("cancel", "a", "--type", "resize"), "not both"),
    (("cancel", "a", "--running"), "not both"),
    (("list", "--status", "lost"), "'lost' is not one of 'pending'"),
    (("list", "--limit", "0"), "limit must be a whole number from 1 to 1000"),
    (("list", "--after", "elsewhere"), "no page begins after 'elsewhere'"),
    (("list", "--url", "jobs.db"), "no engine for 'jobs.db'"),
    (("history",), "Missing argument 'ID'"),
    (("worker", "json"), "write MODULE:WORKER"),
    (("worker", "app:worker", "--concurrency", "0"), "'--concurrency'"),
    (("demo", "--interactive"), "needs a terminal"),
    (("frobnicate",), "No such command"),
    (("cancel", "a\udcff"), r"argument a\udcff is not UTF-8 text"),
    (("submit", "add", '"a\udcff"'), r'argument "a\udcff" is not UTF-8 text'),
    (("list", "--url", "sqlite:\udcff.db"), r"argument sqlite:\udcff.db is not UTF-8 text"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_a_mistake_is_named_in_one_line(refused: Refused, arguments: tuple[str, ...], words: str) -> None:
    code, said = refused(*arguments)
    assert code == 2 and said.startswith("rescind: ") and words in said


def test_errors_are_json_when_asked_for(refused: Refused) -> None:
    assert json.loads(refused("status", "nope", "--json")[1])["error"] == "job_not_found"
    assert json.loads(refused("--json", "history", "nope")[1])["error"] == "job_not_found"
    assert json.loads(refused("list", "--bogus", "--json")[1])["error"] == "usage"
    assert json.loads(refused("cancel", "a\udcff", "--json")[1])["error"] == "invalid_input"
    code, said = refused("submit", "resize", "nonsense", "--json")
    assert (code, json.loads(said)["error"]) == (2, "invalid_input")


def test_refused_bad_settings_and_unavailable_have_their_codes(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused("history", "nope")[0] == 1
    assert refused("submit", "x", "--url", "sqlite:/proc/nowhere/jobs.db")[0] == 3
    code, said = refused("list", "--url", "sqlite:typo.db")
    assert code == 3 and "there is no queue at typo.db yet" in said and not Path("typo.db").exists()
    monkeypatch.setenv("RESCIND_LEASE_SECONDS", "long")
    code, said = refused("list")
    assert code == 2 and "lease_seconds" in said


def test_a_bad_line_of_a_batch_is_named_and_nothing_is_submitted(refused: Refused, tmp_path: Path) -> None:
    batch = tmp_path / "jobs.jsonl"
    for line, words in [
        ("{", "line 2 is not JSON"),
        ('{"input": 1}', "line 2: expected an object with a need"),
        ('{"need": "a", "colour": 1}', "colour"),
        ('{"need": "a", "available_at": "soon"}', "line 2: available_at 'soon' is not a time"),
    ]:
        batch.write_text(f'{{"need": "a"}}\n{line}\n')
        code, said = refused("submit", "--batch", str(batch))
        assert code == 2 and words in said
    batch.write_text("\n")
    assert "holds no jobs" in refused("submit", "--batch", str(batch))[1]
    with sync.connect(f"sqlite://{tmp_path}/jobs.db") as queue:
        assert queue.count() == 0


def test_a_bug_of_ours_does_not_look_like_a_refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("rescind.sync.connect", explode)
    with pytest.raises(SystemExit) as left:
        run(["list"])
    assert left.value.code == 70 and "this is a bug in rescind" in capsys.readouterr().err


# MODULE:WORKER

WORKERS = [
    ("app", "write MODULE:WORKER"),
    (":worker", "write MODULE:WORKER"),
    ("not_a_module:worker", "no module not_a_module here"),
    ("cli_app.deeper:worker", "no module cli_app.deeper here"),
    ("cli_app:nothing", "its workers are cli_app:a, cli_app:b"),
    ("cli_app:number", "is a int, not a Worker: its workers are cli_app:a"),
    ("json:loads", "it has no Worker at all"),
    (
        "cli_app_torn:worker",
        "importing cli_app_torn failed: ModuleNotFoundError: No module named 'not_a_module'",
    ),
    ("cli_app_typo:worker", "importing cli_app_typo failed: SyntaxError"),
]


@pytest.mark.parametrize(("target", "words"), WORKERS, ids=[target for target, _ in WORKERS])
def test_a_worker_that_cannot_be_found_is_explained(
    target: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cli_app.py").write_text(
        "from rescind import Worker\na = Worker()\nb = Worker()\nnumber = 3\n"
    )
    (tmp_path / "cli_app_torn.py").write_text("import not_a_module\n")
    (tmp_path / "cli_app_typo.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match=re.escape(words)):
        locate(target)


# Help


def _commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(app)
    return {"rescind": root, **root.commands}


@pytest.mark.parametrize("name", _commands())
def test_every_command_and_option_has_help(name: str) -> None:
    command = _commands()[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("name", _commands())
def test_a_flag_looks_like_a_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([name, "--help"] if name != "rescind" else ["--help"])
    shown = capsys.readouterr().out
    assert "--help" in shown and "bool" not in shown


def test_every_command_speaks_json_and_knows_where_the_queue_is() -> None:
    for name, command in _commands().items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--json" in options, name
        assert "--url" in options or name == "demo", name


# What people type, and what they see


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("5m", 300), ("2h", 7200), ("1d", 86_400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse.seconds(text, "--delay") == seconds


def test_a_time_without_a_zone_is_the_readers_own() -> None:
    assert parse.moment("2030-01-31T09:00", "--at") == datetime(2030, 1, 31, 9).astimezone()
    assert parse.moment("2030-01-31T09:00Z", "--at") == datetime(2030, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-0.5, "now"), (5, "5 s ago"), (-90.5, "in 2 min"), (7300, "2 h ago"), (200_000, "2 d ago")],
)
def test_relative_times(seconds: float, words: str) -> None:
    assert render.relative(datetime.now(UTC) - timedelta(seconds=seconds)) == words


def test_plain_text_keeps_words_and_disarms_the_rest() -> None:
    assert render.plain("naïve\tline\nnext") == "naïve line next"
    assert render.plain("\x1b[31m\x9b\u202e") == r"\x1b[31m\x9b\u202e"
