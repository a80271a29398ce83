"""What a measurement is: contestants, ratios between them, aims, and how much of it one run does."""

from dataclasses import dataclass, field
from typing import Any

LOOK_SECONDS = 0.001  # how often a caller looks whether its job has ended


@dataclass(frozen=True)
class Size:
    """How much of everything one run does."""

    rounds: int
    submits: int
    bulk: int
    drained: int
    cancelled: int
    crowd: int  # jobs in a store that a claim must not notice
    claims: int
    samples: int  # of each latency, per round
    silent_samples: int


SIZES = {
    "full": Size(7, 3000, 10_000, 3000, 10_000, 1_000_000, 60, 12, 2),
    "quick": Size(3, 1500, 10_000, 1500, 5_000, 100_000, 30, 8, 1),
    "tiny": Size(2, 20, 50, 20, 20, 2_000, 2, 1, 1),
}


@dataclass(frozen=True)
class Variant:
    """One contestant in a measurement."""

    label: str
    contender: str
    measure: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Ratio:
    """The best of `above` over the best of `below`, in each round."""

    label: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    of: str = "value"  # or something else that `harness.Column` keeps: "cpu", "server_cpu", "buffers"
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Measurement:
    """`unit` is what a value means: "per second" (more is better), or a time (less is better)."""

    name: str
    title: str
    unit: str
    variants: tuple[Variant, ...]
    ratios: tuple[Ratio, ...] = ()
    prepare: tuple[Variant, ...] = ()  # asked once, before the first round
    remarks: tuple[str, ...] = field(default=())

    @property
    def is_rate(self) -> bool:
        return self.unit == "per second"
