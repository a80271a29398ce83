"""A run as people read it: conditions, tables, and each aim with whether it was met. Pure text."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any


def report(run: dict[str, Any]) -> str:
    parts = [_conditions(run), *(_measurement(each) for each in run["measurements"]), _aims(run)]
    if run["failures"]:
        parts.append("\n".join(["BROKEN", *(f"  {each}" for each in run["failures"])]))
    return "\n\n".join(parts)


def _conditions(run: dict[str, Any]) -> str:
    here = run["conditions"]
    lines = [
        f"{run['size']} run of {run['rounds']} interleaved rounds, {here['at']}, {run['seconds']:.0f} s",
        f"  {here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB, {here['system']}",
        f"  {here['python']}, SQLite {here['sqlite']}; load {here['load_average']} before,"
        f" {run['load_average_after']} after",
        f"  {here['directory']} on {here['file_system']} ({here['device']}); one fsync of 4 KiB takes"
        f" {here['fsync_us']:.0f} µs in place, {here['fsync_growing_us']:.0f} µs where the file grows",
    ]
    if server := run.get("server"):
        where = f"{server['file_system']} ({server['device']})"
        lines.append(f"  PostgreSQL {server['version']} on {where}: {_listed(server['settings'])}")
    for name, about in run["contenders"].items():
        lines.append(f"  {name}: {_listed({**about['versions'], **about['settings']})}")
    return "\n".join(lines)


def _listed(facts: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def _measurement(found: dict[str, Any]) -> str:
    lines = [f"{found['title']} ({found['unit']})"]
    rows = [_row(each, found["unit"]) for each in found["variants"]]
    lines += _table(rows)
    lines += _table([_ratio_row(each) for each in found["ratios"]])
    lines += [f"  Note: {each}" for each in found["remarks"]]
    return "\n".join(lines)


def _row(variant: dict[str, Any], unit: str) -> list[str]:
    shape = "{:,.0f}" if unit == "per second" else "{:,.2f}"
    low, high = shape.format(variant["low"]), shape.format(variant["high"])
    row = [variant["label"], shape.format(variant["median"]), f"({low}–{high})"]
    if unit == "ms" and "p99" in variant:
        row.append(f"p50 {variant['p50']:.2f}, p99 {variant['p99']:.2f} of {variant['samples']}")
    if "cpu_us_each" in variant:
        row.append(f"{variant['cpu_us_each']:,.0f} µs processor each")
    if "server_us_each" in variant:
        row.append(f"{variant['server_us_each']:,.0f} µs of the server's")
    if "buffers_each" in variant:
        row.append(f"{variant['buffers_each']:,.0f} pages")
    return row


def _ratio_row(ratio: dict[str, Any]) -> list[str]:
    return [f"ratio: {ratio['label']}", f"{ratio['median']:.2f}", f"({ratio['low']:.2f}–{ratio['high']:.2f})"]


def _aims(run: dict[str, Any]) -> str:
    rows = [_aim_row(aim) for aim in run["aims"]]
    return "\n".join(["Aims", *_table(rows)]) if rows else "Aims: none of them was measured"


def _aim_row(aim: dict[str, Any]) -> list[str]:
    at_least = aim["at_least"]
    wanted = f"at least {at_least:g}" if at_least is not None else f"at most {aim['at_most']:g}"
    met = "met" if aim["met"] else "NOT met"
    measured = f"measured {aim['measured']:.2f} ({aim['low']:.2f}–{aim['high']:.2f})"
    return [met, aim["aim"], f"aim {wanted}", measured, "" if aim["clear"] else "within the noise"]


def _table(rows: list[list[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
