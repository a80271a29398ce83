"""What a claim costs in SQLite files of different sizes and shapes, each built once and left as it was."""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.contenders.place import Place
from bench.contenders.protocol import Answer, Measure, answer, sampled
from rescind import Queue, Settings, connect
from rescind.engine import Claim
from rescind.lease import Release

NEED = "noop"
NEEDS = tuple(f"noop-{number}" for number in range(100))
FEW = 1_000  # jobs that may be claimed in every store, whatever else is in the way
_CHUNK = 10_000
_FAR = datetime(2100, 1, 1, tzinfo=UTC)
_YEARS = 9 * 365 * 86_400.0
_WARM_UP = 5  # claims that only fill the new connection's caches

Fields = dict[str, Any]


async def _ready(_: Queue, size: int) -> Iterator[Fields]:
    return ({"need": NEED} for _ in range(size - FEW))


async def _future(_: Queue, size: int) -> Iterator[Fields]:
    return ({"need": NEED, "priority": 9, "available_at": _FAR} for _ in range(size))


async def _parked(queue: Queue, size: int) -> Iterator[Fields]:
    """Behind a job that is held by a worker for years."""
    held: Fields = {"need": NEED, "priority": 9, "singleton_key": "busy"}
    await queue.submit_many([held])
    claimed = await queue.engine.claim(Claim(worker="holder", needs=(NEED,), limit=1, lease_seconds=_YEARS))
    assert claimed[0].singleton_key == "busy"
    return (held for _ in range(size))


async def _waiting(queue: Queue, size: int) -> Iterator[Fields]:
    """For one job, of a need that nobody serves."""
    first = await queue.submit("first")
    return ({"need": NEED, "priority": 9, "wait_for": [first.id]} for _ in range(size))


async def _other_need(_: Queue, size: int) -> Iterator[Fields]:
    return ({"need": "other", "priority": 9} for _ in range(size))


async def _hundred_needs(_: Queue, size: int) -> Iterator[Fields]:
    return ({"need": NEEDS[number % len(NEEDS)]} for number in range(size))


SHAPES = {
    "ready": _ready,
    "future": _future,
    "parked": _parked,
    "waiting": _waiting,
    "other_need": _other_need,
    "hundred_needs": _hundred_needs,
}


def build(place: Place, *, stores: list[tuple[str, int]]) -> Answer:
    """All the stores, two at a time: building them takes longer than measuring them."""
    begun = time.perf_counter()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for built in [pool.submit(_build, place.directory, shape, size) for shape, size in stores]:
            built.result()
    return answer(time.perf_counter() - begun, sum(size for _, size in stores))


def _build(directory: Path, shape: str, size: int) -> None:
    asyncio.run(_fill(directory, shape, size))


async def _fill(directory: Path, shape: str, size: int) -> None:
    async with connect(_url(directory, shape, size), settings=Settings()) as queue:
        # The crowd first: what is claimed must not owe its speed to having come earlier.
        jobs = await SHAPES[shape](queue, size)
        while chunk := [fields for fields, _ in zip(jobs, range(_CHUNK), strict=False)]:
            await queue.submit_many(chunk)
        if shape != "hundred_needs":
            await queue.submit_many({"need": NEED} for _ in range(FEW))


def claim(place: Place, *, shape: str, size: int, limit: int, times: int) -> Answer:
    return asyncio.run(_claim(place.directory, shape, size, limit, times))


async def _claim(directory: Path, shape: str, size: int, limit: int, times: int) -> Answer:
    needs = NEEDS if shape == "hundred_needs" else (NEED,)
    request = Claim(worker="bench", needs=needs, limit=limit, lease_seconds=60)
    samples, cpu = [], 0.0
    async with connect(_url(directory, shape, size), settings=Settings()) as queue:
        for turn in range(_WARM_UP + times):
            cpu_begun, begun = time.process_time(), time.perf_counter()
            jobs = await queue.engine.claim(request)
            took, cpu_took = time.perf_counter() - begun, time.process_time() - cpu_begun
            if len(jobs) != limit:
                raise RuntimeError(f"claimed {len(jobs)} jobs instead of {limit}")
            await queue.engine.settle([Release(lease=job.lease) for job in jobs])
            if turn >= _WARM_UP:
                samples.append(took)
                cpu += cpu_took
    return sampled(samples, cpu_seconds=cpu)


def _url(directory: Path, shape: str, size: int) -> str:
    return f"sqlite://{directory / f'{shape}-{size}.db'}"


MEASURES: dict[str, Measure] = {"build": build, "claim": claim}
