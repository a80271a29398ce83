"""What is measured, of whom, how much of it, and what we aim for. The one list; it runs nothing."""

from bench.measurements import postgres, sqlite
from bench.measurements.value import SIZES, Measurement, Ratio, Size, Variant

__all__ = ["SIZES", "Measurement", "Ratio", "Size", "Variant", "measurements"]


def measurements(size: Size) -> list[Measurement]:
    return [*sqlite.measurements(size), *postgres.measurements(size)]
