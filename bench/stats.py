"""The arithmetic of a run: medians, spreads, percentiles and ratios taken round by round. No I/O."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """A value per round, and what is said about them: the middle one and how far they were apart."""

    values: list[float]
    median: float
    low: float
    high: float


def summarise(values: Sequence[float]) -> Summary:
    if not values:
        raise ValueError("nothing was measured")
    return Summary(list(values), statistics.median(values), min(values), max(values))


def ratios(above: Sequence[float], below: Sequence[float]) -> Summary:
    """Round by round, then the median: what slowed a whole round down falls out of its ratio."""
    return summarise([one / other for one, other in zip(above, below, strict=True)])


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of them do not exceed."""
    if not samples:
        raise ValueError("nothing was measured")
    ordered = sorted(samples)
    rank = max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))
    return ordered[rank]


def best(columns: Sequence[Sequence[float]], *, lowest: bool = False) -> list[float]:
    """The best of several contestants in each round."""
    choose = min if lowest else max
    return [choose(row) for row in zip(*columns, strict=True)]
