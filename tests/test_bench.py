"""The benchmark harness: its arithmetic, and a very small run of it for each engine, without any peer."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import stats
from bench.contenders.place import Server
from bench.environments import CONTENDERS, Contender
from bench.harness import Column, Harness, aims, is_clear, ratio_result
from bench.measurements import SIZES, Measurement, Ratio, Variant, measurements, postgres, sqlite
from bench.report import report
from bench.table import tables

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.timeout(300)  # whoever comes first makes a run, on disks that may be busy


def test_a_summary_is_the_middle_and_the_ends() -> None:
    assert stats.summarise([3, 1, 2]) == stats.Summary([3, 1, 2], 2, 1, 3)


def test_a_summary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        stats.summarise([])


def test_ratios_are_taken_round_by_round() -> None:
    """Every round favours the first by two; the ratio of the medians would say something else."""
    assert stats.ratios([2, 20, 200], [1, 10, 100]).values == [2, 2, 2]
    assert stats.ratios([10, 2, 9], [5, 4, 3]).median == 2


def test_ratios_need_as_many_rounds_of_each() -> None:
    with pytest.raises(ValueError, match="zip"):
        stats.ratios([1, 2], [1])


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_percentiles_are_samples_themselves(share: float, expected: int) -> None:
    assert stats.percentile(list(range(100, 0, -1)), share) == expected


def test_the_best_of_each_round() -> None:
    assert stats.best([[1, 9], [5, 2]]) == [5, 9]
    assert stats.best([[1, 9], [5, 2]], lowest=True) == [1, 2]


def _column(label: str, values: list[float]) -> Column:
    return Column(Variant(label, "rescind-sqlite", "submit", {}), values)


@pytest.mark.parametrize(("at_least", "met"), [(2.0, True), (2.1, False), (None, None)])
def test_an_aim_is_met_by_the_median_ratio(at_least: float | None, met: bool | None) -> None:
    columns = {"ours": _column("ours", [2, 2, 9]), "theirs": _column("theirs", [1, 1, 1])}
    found = ratio_result(Ratio("r", ("ours",), ("theirs",), at_least=at_least), columns, lowest=False)
    assert found["met"] is met
    assert len(aims([{"ratios": [found]}])) == (met is not None)


@pytest.mark.parametrize(
    ("low", "high", "clear"), [(1.2, 1.5, True), (0.5, 0.9, True), (0.9, 1.1, False), (1.0, 1.3, True)]
)
def test_a_verdict_that_some_rounds_contradict_is_not_clear(low: float, high: float, clear: bool) -> None:
    assert is_clear({"at_least": 1.0, "at_most": None, "low": low, "high": high}) is clear


def test_an_upper_bound_is_an_aim_too() -> None:
    columns = {"large": _column("large", [3]), "small": _column("small", [2])}
    found = ratio_result(Ratio("r", ("large",), ("small",), at_most=1.5), columns, lowest=True)
    assert found["met"] is True


def test_every_variant_has_a_contender_and_every_ratio_its_variants() -> None:
    for size in SIZES.values():
        for each in measurements(size):
            labels = [variant.label for variant in each.variants]
            assert len(labels) == len(set(labels))
            assert {variant.contender for variant in each.variants} <= CONTENDERS.keys()
            for ratio in each.ratios:
                assert {*ratio.above, *ratio.below} <= set(labels)


def test_peers_are_pinned() -> None:
    assert all("==" in each for contender in CONTENDERS.values() for each in contender.requirements)


def test_a_contender_that_breaks_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONTENDERS, "broken", Contender("broken", "bench.contenders.no_such_module"))
    measurement = Measurement(
        "mixed",
        "Some of it cannot be measured",
        "per second",
        (
            Variant("one", "broken", "submit", {}),
            Variant("another", "rescind-sqlite", "submit", {"count": 2, "callers": 1}),
            Variant("a third", "broken", "submit", {}),
        ),
        (Ratio("one to another", ("one",), ("another",)),),
    )
    with Harness(tmp_path, ["broken", "rescind-sqlite"], lambda _: None) as harness:
        found = harness.run(measurement, rounds=2)
    assert found is not None
    assert [each["label"] for each in found["variants"]] == ["another"]
    assert found["ratios"] == []
    assert len(harness.failures) == 1 and "broken ended" in harness.failures[0]


def test_the_processor_time_of_a_server_includes_its_children() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process:
        server = Server("postgres://nowhere", process.pid)
        deadline = time.monotonic() + 30
        while (server.cpu_seconds() or 0) < 0.3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (server.cpu_seconds() or 0) >= 0.3
        assert process.stdin is not None
        process.stdin.close()


OURS = {"rescind-sqlite": sqlite, "rescind-postgres": postgres}


@pytest.fixture(scope="module", params=list(OURS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every measurement once, of rescind alone, so that nothing is installed."""
    home = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "bench", "--size", "tiny", "--rounds", "1"]
    command += ["--contender", request.param, "--directory", str(home), "--json", str(home / "run.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in home.iterdir()] == ["run.json"], "a run leaves no stores behind"
    found: dict[str, Any] = json.loads((home / "run.json").read_text())
    return found


def test_a_run_measures_everything_it_was_asked_to(run: dict[str, Any]) -> None:
    assert run["failures"] == []
    (contender,) = run["contenders"]
    expected = [each.name for each in OURS[contender].measurements(SIZES["tiny"])]
    assert [each["name"] for each in run["measurements"]] == expected
    for each in run["measurements"]:
        assert each["variants"], each["name"]
        for variant in each["variants"]:
            assert len(variant["values"]) == run["rounds"] == 1
            assert 0 < variant["low"] <= variant["median"] <= variant["high"]


def test_a_run_states_its_conditions(run: dict[str, Any]) -> None:
    told = run["conditions"]
    assert {"at", "cpu", "cores", "python", "sqlite", "file_system", "device", "load_average"} <= told.keys()
    assert told["fsync_us"] > 0
    ((name, about),) = run["contenders"].items()
    assert {"rescind", "source"} <= about["versions"].keys()
    if CONTENDERS[name].needs_server:
        settings = run["server"]["settings"]
        assert settings["fsync"] == settings["synchronous_commit"] == "on"
        assert run["server"]["version"] in report(run)
    else:
        assert run["server"] is None


def test_a_run_judges_the_aims_it_could_measure(run: dict[str, Any]) -> None:
    assert run["aims"]
    assert not any("huey" in each["aim"] or "PgQueuer" in each["aim"] for each in run["aims"])
    assert all(isinstance(each["met"], bool) and each["measured"] > 0 for each in run["aims"])


def test_the_report_shows_each_figure_and_each_aim(run: dict[str, Any]) -> None:
    text = report(run)
    for each in run["measurements"]:
        assert all(variant["label"] in text for variant in each["variants"])
    assert all(each["aim"] in text for each in run["aims"])


@pytest.mark.parametrize(
    "kept", sorted((ROOT / "bench" / "results").glob("*.json")), ids=lambda path: path.stem
)
def test_the_readme_shows_the_kept_runs(kept: Path) -> None:
    """`python -m bench.table bench/results/NAME.json` writes what belongs there."""
    assert tables(json.loads(kept.read_text())) in (ROOT / "bench" / "README.md").read_text()
