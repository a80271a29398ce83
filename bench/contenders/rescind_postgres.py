"""rescind on PostgreSQL, as a contender: the default settings, each store in a database of its own."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from bench.contenders import database, rescind_growth
from bench.contenders.place import Place
from bench.contenders.protocol import Answer, Stopwatch, blocking, serve
from bench.contenders.rescind_measures import PAYLOAD, Measures, jobs, versions
from rescind import Settings, Worker, connect

_CHUNK = 10_000


@contextmanager
def _store(place: Place, *, trace: bool) -> Iterator[str]:
    template = f"rescind_{'traced' if trace else 'untraced'}"
    database.once(place.postgres, template, lambda url: _install(url, trace))
    with database.copy(place.postgres, template) as url:
        yield url


def _install(url: str, trace: bool) -> None:
    with ThreadPoolExecutor(1) as pool:  # for whoever asks may be in an event loop already
        pool.submit(asyncio.run, _open_once(url)).result()
    _set_trace(url, trace)


async def _open_once(url: str) -> None:
    async with connect(url, settings=Settings()):
        pass


def _set_trace(url: str, trace: bool) -> None:
    database.run(url, f"SELECT pgwf.set_trace({trace})")


async def build_crowd(place: Place, *, size: int) -> Answer:
    watch = Stopwatch(place)
    url = database.once(place.postgres, _crowd(size), lambda url: _install(url, trace=False))
    async with connect(url, settings=Settings()) as queue:
        for start in range(0, size, _CHUNK):
            await queue.submit_many(jobs(min(_CHUNK, size - start)))
    database.settle(url)
    return watch.answer(size)


async def drain_crowd(place: Place, *, size: int, count: int, concurrency: int, trace: bool) -> Answer:
    """Until so many were run and written down; what was in flight by then is counted too, and as many are
    put back afterwards."""
    ran = 0
    url = place.postgres.database(_crowd(size))
    _set_trace(url, trace)
    async with connect(url, settings=Settings()) as queue:
        crew = Worker(queue, concurrency=concurrency)

        @crew.task("noop")
        async def noop(_: Any) -> None:
            nonlocal ran
            ran += 1
            if ran == count:
                crew.stop()

        watch = Stopwatch(place)
        await crew.run()
        found = watch.answer(ran)
        await queue.submit_many(jobs(ran))
        return found


def _crowd(size: int) -> str:
    return f"rescind_crowd_{size}"


def _about() -> dict[str, Any]:
    return {
        "versions": {**versions(), "asyncpg": version("asyncpg")},
        "settings": {
            "payload": PAYLOAD,
            "lease_seconds": Settings().lease_seconds,
            "history": "every move is recorded where trace is on",
        },
    }


def main() -> None:
    crowd = {each.__name__: blocking(each) for each in (build_crowd, drain_crowd)}
    growth = rescind_growth.measures(lambda url: _install(url, trace=False))
    serve(_about(), {**Measures(_store, database.settle).named(), **crowd, **growth})


if __name__ == "__main__":
    main()
