"""Runs measurements in interleaved rounds and turns the answers into results."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import stats
from bench.contender import ANSWER_SECONDS, ContenderFailed, Process
from bench.contenders.place import Place
from bench.environments import CONTENDERS
from bench.measurements import Measurement, Ratio, Variant

PREPARE_SECONDS = 1800.0


@dataclass
class Column:
    """The answers one variant gave, round by round."""

    variant: Variant
    values: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # seconds of processor time per thing done
    server_cpu: list[float] = field(default_factory=list)  # the same, of the database server
    buffers: list[float] = field(default_factory=list)  # pages the server looked at per thing done
    samples: list[float] = field(default_factory=list)

    def add(self, answer: dict[str, Any], *, rate: bool) -> None:
        samples: list[float] = answer.get("samples", [])
        if rate:
            self.values.append(answer["count"] / answer["seconds"])
        else:
            self.values.append(stats.percentile(samples, 0.5) * 1000)
        if "cpu_seconds" in answer:
            self.cpu.append(answer["cpu_seconds"] / answer["count"])
        if "server_cpu_seconds" in answer:
            self.server_cpu.append(answer["server_cpu_seconds"] / answer["count"])
        if "buffers" in answer:
            self.buffers.append(answer["buffers"])
        self.samples += samples

    def of(self, what: str) -> list[float]:
        """What a ratio is taken of."""
        kept = {"value": self.values, "cpu": self.cpu, "server_cpu": self.server_cpu, "buffers": self.buffers}
        return kept[what]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = {**asdict(self.variant), **asdict(stats.summarise(self.values))}
        if self.cpu:
            found["cpu_us_each"] = stats.summarise(self.cpu).median * 1e6
        if self.server_cpu:
            found["server_us_each"] = stats.summarise(self.server_cpu).median * 1e6
        if self.buffers:
            found["buffers_each"] = stats.summarise(self.buffers).median
        if self.samples:
            found["p50"] = stats.percentile(self.samples, 0.5) * 1000
            found["p99"] = stats.percentile(self.samples, 0.99) * 1000
            found["samples"] = len(self.samples)
        return found


class Harness:
    def __init__(self, directory: Path, contenders: Sequence[str], say: Callable[[str], None]) -> None:
        self._place = Place(directory)
        self._contenders = contenders
        self._say = say
        self._processes: dict[str, Process] = {}
        self._open = ExitStack()
        self.about: dict[str, dict[str, Any]] = {}
        self.server: dict[str, Any] | None = None  # what is to be said about the one of this run, if any
        self.failures: list[str] = []

    def __enter__(self) -> "Harness":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, measurement: Measurement, rounds: int) -> dict[str, Any] | None:
        """The result of one measurement; None when nothing of it could be measured."""
        variants = [each for each in measurement.variants if each.contender in self._contenders]
        columns = {each.label: Column(each) for each in variants}
        for each in measurement.prepare:
            if _takes_part(each, columns):
                self._say(f"{measurement.name}: building {each.label}")
                self._try(measurement, each, columns, PREPARE_SECONDS)
        for number in range(1, rounds + 1):
            if columns:
                self._say(f"{measurement.name}: round {number} of {rounds}")
                self._round(measurement, columns)
        return result(measurement, columns) if columns else None

    def _round(self, measurement: Measurement, columns: dict[str, Column]) -> None:
        for column in list(columns.values()):
            if _takes_part(column.variant, columns):
                answer = self._try(measurement, column.variant, columns, ANSWER_SECONDS)
                if answer is not None:
                    column.add(answer, rate=measurement.is_rate)

    def _try(
        self, measurement: Measurement, variant: Variant, columns: dict[str, Column], seconds: float
    ) -> dict[str, Any] | None:
        """A contender that breaks takes no further part in this measurement; the others go on."""
        try:
            return self._ask(variant, seconds)
        except ContenderFailed as problem:
            self.failures.append(f"{measurement.name}: {problem}")
            self._say(self.failures[-1])
            for label in [each.label for each in measurement.variants if each.contender == variant.contender]:
                columns.pop(label, None)
            return None

    def _ask(self, variant: Variant, seconds: float) -> dict[str, Any]:
        process = self._process(variant.contender)
        try:
            return process.ask(variant.measure, self._place, variant.parameters, seconds)
        except ContenderFailed:
            self._processes.pop(variant.contender).close()  # the next measurement gets a fresh one
            raise

    def _process(self, name: str) -> Process:
        if name not in self._processes:
            if CONTENDERS[name].needs_server:
                self._start_server()
            self._say(f"starting {name}")
            process = self._processes[name] = self._open.enter_context(Process(CONTENDERS[name]))
            self.about[name] = process.about
        return self._processes[name]

    def _start_server(self) -> None:
        if self.server is None:
            from bench.server import started  # needs what only the engine for PostgreSQL needs

            self._say("starting PostgreSQL")
            try:
                server, self.server = self._open.enter_context(started())
            except (OSError, RuntimeError) as problem:
                raise ContenderFailed(f"PostgreSQL could not be started: {problem}") from problem
            self._place = replace(self._place, server=server)


def _takes_part(variant: Variant, columns: dict[str, Column]) -> bool:
    return variant.contender in {column.variant.contender for column in columns.values()}


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
    lowest = lowest or ratio.of != "value"

    def side(labels: tuple[str, ...]) -> list[float]:
        return stats.best([columns[label].of(ratio.of) for label in labels], lowest=lowest)

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
