"""A kept run as the Markdown tables of the README: `python -m bench.table bench/results/NAME.json`."""

import json
import sys
from pathlib import Path
from typing import Any

from bench.harness import is_clear


def tables(run: dict[str, Any]) -> str:
    return "\n\n".join([_conditions(run), *(_measurement(each) for each in run["measurements"]), _aims(run)])


def _conditions(run: dict[str, Any]) -> str:
    here = run["conditions"]
    software = [here["system"].split()[0], here["python"], f"SQLite {here['sqlite']}", *_peers(run)]
    if server := run.get("server"):
        facts = ", ".join(f"{key} {value}" for key, value in server["settings"].items())
        software.append(f"PostgreSQL {server['version']} ({facts})")
    return (
        f"{here['at'][:10]}, {run['rounds']} rounds in {run['seconds']:.0f} s: {here['cores']} cores of"
        f" {here['cpu']}, {', '.join(software)}, {here['file_system']}; one fsync"
        f" {here['fsync_us']:.0f} µs in place and {here['fsync_growing_us']:.0f} µs where the file grows;"
        f" load {here['load_average'][0]} before and {run['load_average_after'][0]} after."
    )


def _peers(run: dict[str, Any]) -> list[str]:
    names = [(name.split("-")[0], about["versions"]) for name, about in run["contenders"].items()]
    return [f"{name} {versions[name]}" for name, versions in names if name != "rescind"]


_OPTIONAL = {"server_us_each": "server µs", "buffers_each": "pages"}


def _measurement(found: dict[str, Any]) -> str:
    timed = found["unit"] != "per second"
    more = [key for key in _OPTIONAL if any(key in each for each in found["variants"])]
    heads = ["| | median | spread | | processor µs |", *(f" {_OPTIONAL[key]} |" for key in more)]
    lines = [f"**{found['title']}** ({found['unit']})", "", "".join(heads)]
    lines.append("|---|---:|---:|---|---:|" + "---:|" * len(more))
    for each in found["variants"]:
        shape = "{:,.2f}" if timed else "{:,.0f}"
        median, low, high = (shape.format(each[name]) for name in ("median", "low", "high"))
        tail = f"p99 {each['p99']:,.2f} of {each['samples']}" if timed else ""
        counts = [f"{each[key]:,.0f}" if key in each else "" for key in ("cpu_us_each", *more)]
        cells = [each["label"], median, f"{low}–{high}", tail, *counts]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _aims(run: dict[str, Any]) -> str:
    lines = ["**Ratios**, taken round by round", "", "| | median | spread | aim | |"]
    lines.append("|---|---:|---:|---:|---|")
    for ratio in (each for found in run["measurements"] for each in found["ratios"]):
        aim, verdict = "", ""
        if ratio["met"] is not None:
            aim = f"≥ {ratio['at_least']:g}" if ratio["at_least"] is not None else f"≤ {ratio['at_most']:g}"
            verdict = "met" if ratio["met"] else "**not met**"
            verdict += "" if is_clear(ratio) else ", within the noise"
        spread = f"{ratio['low']:.2f}–{ratio['high']:.2f}"
        lines.append(f"| {ratio['label']} | {ratio['median']:.2f} | {spread} | {aim} | {verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables(json.loads(Path(sys.argv[1]).read_text())))
