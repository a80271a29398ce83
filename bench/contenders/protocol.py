"""The contender's end of the line: one JSON request per line in, one JSON answer per line out.

Runs inside every contender's own environment, so it uses the standard library only.
"""

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bench.contenders.place import Place

Answer = dict[str, Any]
Measure = Callable[..., Answer]


class Stopwatch:
    """Runs from its making: wall time, the processor time of this process, and that of the server if any."""

    def __init__(self, place: Place) -> None:
        self._server = place.server
        self._server_cpu = self._server.cpu_seconds() if self._server else None
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def answer(self, count: int) -> Answer:
        seconds, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        server = self._server.cpu_seconds() if self._server else None
        if server is None or self._server_cpu is None:
            return answer(seconds, count, cpu_seconds=cpu)
        return answer(seconds, count, cpu_seconds=cpu, server_cpu_seconds=server - self._server_cpu)


def answer(seconds: float, count: int, **more: Any) -> Answer:
    """`more` may hold `samples` in seconds, where each thing was timed by itself; `cpu_seconds` and
    `server_cpu_seconds` of all of them; and `buffers`, the pages that one of them looked at."""
    return {"seconds": seconds, "count": count, **more}


def sampled(samples: list[float], **more: Any) -> Answer:
    return answer(sum(samples), len(samples), samples=samples, **more)


def blocking(measure: Callable[..., Awaitable[Answer]]) -> Measure:
    """An asynchronous measure, each time in an event loop of its own."""

    async def ask(place: Place, parameters: dict[str, Any]) -> Answer:
        return await measure(place, **parameters)

    return lambda place, **parameters: asyncio.run(ask(place, parameters))


def serve(about: Mapping[str, Any], measures: Mapping[str, Measure]) -> None:
    """Introduce the contender, then measure what is asked for until the line is closed."""
    line = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not get between our lines
    line.write(json.dumps({"about": about}) + "\n")
    for request in sys.stdin:
        line.write(json.dumps(_handle(json.loads(request), measures)) + "\n")


def _handle(request: dict[str, Any], measures: Mapping[str, Measure]) -> Answer:
    try:
        return measures[request["measure"]](Place.from_json(request["place"]), **request["parameters"])
    except Exception as problem:
        return {"error": f"{type(problem).__name__}: {problem}", "trace": traceback.format_exc()}
