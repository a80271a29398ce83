"""Runs measurements in interleaved rounds and turns the answers into results."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import stats
from bench.contender import ContenderFailed, Process
from bench.environments import CONTENDERS
from bench.measurements import Measurement, Ratio, Variant

PREPARE_SECONDS = 1800.0


@dataclass
class Column:
    """The answers one variant gave, round by round."""

    variant: Variant
    values: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # seconds of processor time per thing done
    samples: list[float] = field(default_factory=list)

    def add(self, answer: dict[str, Any], *, rate: bool) -> None:
        samples: list[float] = answer.get("samples", [])
        if rate:
            self.values.append(answer["count"] / answer["seconds"])
        else:
            self.values.append(stats.percentile(samples, 0.5) * 1000)
        if "cpu_seconds" in answer:
            self.cpu.append(answer["cpu_seconds"] / answer["count"])
        self.samples += samples

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = {**asdict(self.variant), **asdict(stats.summarise(self.values))}
        if self.cpu:
            found["cpu_us_each"] = stats.summarise(self.cpu).median * 1e6
        if self.samples:
            found["p50"] = stats.percentile(self.samples, 0.5) * 1000
            found["p99"] = stats.percentile(self.samples, 0.99) * 1000
            found["samples"] = len(self.samples)
        return found


class Harness:
    def __init__(self, directory: Path, contenders: Sequence[str], say: Callable[[str], None]) -> None:
        self._directory = directory
        self._contenders = contenders
        self._say = say
        self._processes: dict[str, Process] = {}
        self._open = ExitStack()
        self.about: dict[str, dict[str, Any]] = {}
        self.failures: list[str] = []

    def __enter__(self) -> "Harness":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, measurement: Measurement, rounds: int) -> dict[str, Any] | None:
        """The result of one measurement; None when nothing of it could be measured."""
        variants = [each for each in measurement.variants if each.contender in self._contenders]
        columns = {each.label: Column(each) for each in variants}
        try:
            if columns and measurement.prepare:
                self._say(f"{measurement.name}: building {measurement.prepare.label}")
                self._ask(measurement.prepare, PREPARE_SECONDS)
            for number in range(1, rounds + 1):
                self._say(f"{measurement.name}: round {number} of {rounds}")
                self._round(measurement, columns)
        except ContenderFailed as problem:
            self.failures.append(f"{measurement.name}: {problem}")
            self._say(self.failures[-1])
            return None
        return result(measurement, columns) if columns else None

    def _round(self, measurement: Measurement, columns: dict[str, Column]) -> None:
        for column in columns.values():
            column.add(self._ask(column.variant), rate=measurement.is_rate)

    def _ask(self, variant: Variant, seconds: float | None = None) -> dict[str, Any]:
        process = self._process(variant.contender)
        try:
            if seconds is None:
                return process.ask(variant.measure, self._directory, variant.parameters)
            return process.ask(variant.measure, self._directory, variant.parameters, seconds)
        except ContenderFailed:
            self._processes.pop(variant.contender).close()  # the next measurement gets a fresh one
            raise

    def _process(self, name: str) -> Process:
        if name not in self._processes:
            self._say(f"starting {name}")
            process = self._processes[name] = self._open.enter_context(Process(CONTENDERS[name]))
            self.about[name] = process.about
        return self._processes[name]


def result(measurement: Measurement, columns: dict[str, Column]) -> dict[str, Any]:
    return {
        "name": measurement.name,
        "title": measurement.title,
        "unit": measurement.unit,
        "remarks": list(measurement.remarks),
        "variants": [column.result() for column in columns.values()],
        "ratios": [
            ratio_result(ratio, columns, lowest=not measurement.is_rate)
            for ratio in measurement.ratios
            if columns.keys() >= {*ratio.above, *ratio.below}
        ],
    }


def ratio_result(ratio: Ratio, columns: dict[str, Column], *, lowest: bool) -> dict[str, Any]:
    def side(labels: tuple[str, ...]) -> list[float]:
        taken = [columns[label].cpu if ratio.of == "cpu" else columns[label].values for label in labels]
        return stats.best(taken, lowest=lowest or ratio.of == "cpu")

    summary = stats.ratios(side(ratio.above), side(ratio.below))
    found = {**asdict(ratio), **asdict(summary), "met": None}
    if ratio.at_least is not None:
        found["met"] = summary.median >= ratio.at_least
    elif ratio.at_most is not None:
        found["met"] = summary.median <= ratio.at_most
    return found


def is_clear(ratio: dict[str, Any]) -> bool:
    """Did every round say the same? Otherwise the verdict is within the noise."""
    aim = ratio["at_least"] if ratio["at_least"] is not None else ratio["at_most"]
    return bool(ratio["low"] >= aim or ratio["high"] <= aim)


def aims(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every ratio that has an aim, with what was measured and whether that is enough."""
    return [
        {
            "aim": ratio["label"],
            "at_least": ratio["at_least"],
            "at_most": ratio["at_most"],
            "measured": ratio["median"],
            "low": ratio["low"],
            "high": ratio["high"],
            "met": ratio["met"],
            "clear": is_clear(ratio),
        }
        for each in results
        for ratio in each["ratios"]
        if ratio["met"] is not None
    ]


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
