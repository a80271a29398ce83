"""PgQueuer on PostgreSQL, as a contender: durable tables, its autovacuum settings, and its pool driver, which
its documentation recommends for throughput and which was the faster one here."""

import asyncio
import importlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any

import asyncpg

from bench.contenders import database
from bench.contenders.apart import BEGUN, ENDED, Apart, apart, tell
from bench.contenders.place import Place
from bench.contenders.protocol import Answer, Stopwatch, blocking, sampled, serve

# Installed only in this contender's environment.
db: Any = importlib.import_module("pgqueuer.db")
models: Any = importlib.import_module("pgqueuer.models")
qm: Any = importlib.import_module("pgqueuer.core.qm")
queries: Any = importlib.import_module("pgqueuer.queries")
uvloop: Any = importlib.import_module("uvloop")

PAYLOAD = b'{"n":1}'
TEMPLATE = "pgqueuer"
CANCEL_CHUNK = 1000  # ids are sent in one NOTIFY, which holds 8,000 bytes
POOL_SIZE = 10


@contextmanager
def _store(place: Place) -> Iterator[str]:
    database.once(place.postgres, TEMPLATE, _install)
    with database.copy(place.postgres, TEMPLATE) as url:
        yield url


def _install(url: str) -> None:
    builder = importlib.import_module("pgqueuer.adapters.persistence.qb").QueryBuilderEnvironment()
    database.run(url, builder.build_install_query(), builder.build_optimize_autovacuum_query())


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=POOL_SIZE, max_size=POOL_SIZE) as pool:
        yield queries.Queries(db.AsyncpgPoolDriver(pool))


async def _fill(queue: Any, count: int) -> list[int]:
    ids: list[int] = await queue.enqueue(["noop"] * count, [PAYLOAD] * count, [0] * count)
    return ids


async def submit(place: Place, *, count: int, callers: int) -> Answer:
    with _store(place) as url:
        async with _connected(url) as queue:

            async def caller(share: int) -> None:
                for _ in range(share):
                    await queue.enqueue("noop", PAYLOAD)

            watch = Stopwatch(place)
            await asyncio.gather(*(caller(count // callers) for _ in range(callers)))
            return watch.answer(count // callers * callers)


async def submit_many(place: Place, *, count: int) -> Answer:
    with _store(place) as url:
        async with _connected(url) as queue:
            watch = Stopwatch(place)
            return watch.answer(len(await _fill(queue, count)))


async def drain(place: Place, *, count: int, batch_size: int) -> Answer:
    with _store(place) as url:
        async with _connected(url) as queue:
            await _fill(queue, count)
            database.settle(url)
            found = await _drain(place, queue, count, batch_size)
            if left := await queue.queued_work(["noop"]):
                raise RuntimeError(f"{left} of {count} jobs are left")
            return found


async def _drain(place: Place, queue: Any, count: int, batch_size: int) -> Answer:
    """Until so many were run and written down; what was in flight by then is counted too."""
    manager, ran = qm.QueueManager(queue), 0

    @manager.entrypoint("noop")  # type: ignore[untyped-decorator] # untyped, as it is not installed here
    async def noop(_: Any) -> None:
        nonlocal ran
        ran += 1
        if ran == count:
            manager.shutdown.set()

    watch = Stopwatch(place)
    await manager.run(batch_size=batch_size)
    return watch.answer(ran)


async def build_crowd(place: Place, *, size: int) -> Answer:
    watch = Stopwatch(place)
    url = database.once(place.postgres, _crowd(size), _install)
    async with _connected(url) as queue:
        for _ in range(0, size, 50_000):
            await _fill(queue, min(size, 50_000))
    database.settle(url)
    return watch.answer(size)


async def drain_crowd(place: Place, *, size: int, count: int, batch_size: int) -> Answer:
    """What was drained is put back afterwards."""
    async with _connected(place.postgres.database(_crowd(size))) as queue:
        found = await _drain(place, queue, count, batch_size)
        await _fill(queue, found["count"])
        return found


def _crowd(size: int) -> str:
    return f"{TEMPLATE}_crowd_{size}"


async def cancel(place: Place, *, count: int) -> Answer:
    with _store(place) as url:
        async with _connected(url) as queue:
            ids = await _fill(queue, count)
            database.settle(url)
            watch = Stopwatch(place)
            for start in range(0, count, CANCEL_CHUNK):
                await queue.mark_job_as_cancelled(ids[start : start + CANCEL_CHUNK])
            found = watch.answer(count)
            if left := await queue.queued_work(["noop"]):
                raise RuntimeError(f"{left} of {count} jobs are left")
            return found


async def latency(
    place: Place, *, count: int, pause_seconds: float, look_seconds: float, until: str
) -> Answer:
    """From the call that submits to the moment its caller, who looks every so often, sees the job done;
    or, `until="begun"`, to the handler's first line."""
    samples = []
    with _store(place) as url:
        async with _connected(url) as queue, _worker_apart(url) as crew:
            for _ in range(count + 1):
                await asyncio.sleep(pause_seconds)
                begun = time.monotonic()
                ids = await queue.enqueue("noop", PAYLOAD)
                if until == "begun":
                    samples.append(await crew.when(BEGUN) - begun)
                else:
                    await _until_done(queue, ids, look_seconds)
                    samples.append(time.monotonic() - begun)
    return sampled(samples[1:])


async def _until_done(queue: Any, ids: list[int], look_seconds: float) -> None:
    async with asyncio.timeout(60):
        while [status for _, status in await queue.job_status(ids)] != ["successful"]:
            await asyncio.sleep(look_seconds)


async def stop(place: Place, *, count: int) -> Answer:
    """From the call that cancels a running job to the handler's last line; what the store says is no sign
    of it, since it says "canceled" from the start."""
    samples = []
    with _store(place) as url:
        async with _connected(url) as queue, _worker_apart(url) as crew:
            for _ in range(count + 1):
                ids = await queue.enqueue("endless", PAYLOAD)
                await crew.when(BEGUN)
                await asyncio.sleep(0.05)
                begun = time.monotonic()
                await queue.mark_job_as_cancelled(ids)
                samples.append(await crew.when(ENDED) - begun)
    return sampled(samples[1:])


@asynccontextmanager
async def _worker_apart(url: str) -> AsyncIterator[Apart]:
    async with apart(__spec__.name, "worker", url) as crew:
        yield crew


async def run_worker(url: str) -> None:
    async with _connected(url) as queue:
        manager = qm.QueueManager(queue)

        async def noop(_: Any) -> None:
            tell(BEGUN)

        async def endless(_: Any, context: Any) -> None:
            tell(BEGUN)
            with context.cancellation:
                await asyncio.sleep(3600)
            tell(ENDED)

        manager.entrypoint("noop")(noop)
        manager.entrypoint("endless", accepts_context=True)(endless)
        await manager.run()


def drain_on_uvloop(place: Place, **parameters: Any) -> Answer:
    found: Answer = uvloop.run(drain(place, **parameters))
    return found


ABOUT = {
    "versions": {
        "pgqueuer": version("pgqueuer"),
        "asyncpg": version("asyncpg"),
        "python": sys.version.split()[0],
    },
    "settings": {
        "durability": "durable",
        "autovacuum": "as `pgq autovac` sets it",
        "driver": f"AsyncpgPoolDriver, {POOL_SIZE} connections",
        "event loop": "asyncio's, but where uvloop is named",
        "payload": PAYLOAD.decode(),
        "cancel": f"mark_job_as_cancelled, {CANCEL_CHUNK} ids at a time",
    },
}


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(run_worker(sys.argv[2]))
    else:
        asynchronous = (submit, submit_many, drain, build_crowd, drain_crowd, cancel, latency, stop)
        measures = {each.__name__: blocking(each) for each in asynchronous}
        serve(ABOUT, {**measures, "drain_on_uvloop": drain_on_uvloop})


if __name__ == "__main__":
    main()
