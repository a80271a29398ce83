"""The contender's end of the line: one JSON request per line in, one JSON answer per line out.

Runs inside every contender's own environment, so it uses the standard library only.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
Measure = Callable[..., Answer]


def timed(work: Callable[[], int]) -> Answer:
    """Run `work`, which says how many things it did."""
    cpu, wall = time.process_time(), time.perf_counter()
    count = work()
    return answer(time.perf_counter() - wall, count, cpu_seconds=time.process_time() - cpu)


def answer(
    seconds: float, count: int, *, cpu_seconds: float | None = None, samples: list[float] | None = None
) -> Answer:
    """`samples`, in seconds, where each thing was timed by itself."""
    found: Answer = {"seconds": seconds, "count": count}
    if cpu_seconds is not None:
        found["cpu_seconds"] = cpu_seconds
    if samples is not None:
        found["samples"] = samples
    return found


def serve(about: Mapping[str, Any], measures: Mapping[str, Measure]) -> None:
    """Introduce the contender, then measure what is asked for until the line is closed."""
    line = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not get between our lines
    line.write(json.dumps({"about": about}) + "\n")
    for request in sys.stdin:
        line.write(json.dumps(_handle(json.loads(request), measures)) + "\n")


def _handle(request: dict[str, Any], measures: Mapping[str, Measure]) -> Answer:
    try:
        return measures[request["measure"]](Path(request["directory"]), **request["parameters"])
    except Exception as problem:
        return {"error": f"{type(problem).__name__}: {problem}", "trace": traceback.format_exc()}
