"""procrastinate on PostgreSQL, as a contender: its schema, connector and worker as they come, with finished
jobs kept, and a pool that does not make its jobs wait for each other."""

import asyncio
import importlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any

from bench.contenders import database
from bench.contenders.apart import BEGUN, ENDED, Apart, apart, tell
from bench.contenders.place import Place
from bench.contenders.protocol import Answer, Stopwatch, blocking, sampled, serve

procrastinate: Any = importlib.import_module("procrastinate")  # only in this contender's environment
schema: Any = importlib.import_module("procrastinate.schema")

PAYLOAD = {"n": 1}
TEMPLATE = "procrastinate"
POOL_SIZE = 10


@contextmanager
def _store(place: Place) -> Iterator[str]:
    database.once(place.postgres, TEMPLATE, _install)
    with database.copy(place.postgres, TEMPLATE) as url:
        yield url


def _install(url: str) -> None:
    database.run(url, schema.SchemaManager.get_schema())


@asynccontextmanager
async def _app(url: str) -> AsyncIterator[Any]:
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=POOL_SIZE, max_size=POOL_SIZE)
    app = procrastinate.App(connector=connector)
    async with app.open_async():
        yield app


async def _noop(**_: Any) -> None:
    return None


def _deferrer(app: Any) -> Any:
    return app.configure_task("noop")


async def _fill(app: Any, count: int) -> list[int]:
    ids: list[int] = await _deferrer(app).batch_defer_async(*([PAYLOAD] * count))
    return ids


async def submit(place: Place, *, count: int, callers: int) -> Answer:
    with _store(place) as url:
        async with _app(url) as app:
            noop = _deferrer(app)

            async def caller(share: int) -> None:
                for _ in range(share):
                    await noop.defer_async(**PAYLOAD)

            watch = Stopwatch(place)
            await asyncio.gather(*(caller(count // callers) for _ in range(callers)))
            return watch.answer(count // callers * callers)


async def submit_many(place: Place, *, count: int) -> Answer:
    with _store(place) as url:
        async with _app(url) as app:
            watch = Stopwatch(place)
            return watch.answer(len(await _fill(app, count)))


async def drain(place: Place, *, count: int, concurrency: int) -> Answer:
    with _store(place) as url:
        async with _app(url) as app:
            await _fill(app, count)
            database.settle(url)
            app.task(name="noop")(_noop)
            watch = Stopwatch(place)
            await app.run_worker_async(wait=False, concurrency=concurrency, install_signal_handlers=False)
            found = watch.answer(count)
            done = list(await app.job_manager.list_jobs_async(status="succeeded"))
            if len(done) != count:
                raise RuntimeError(f"only {len(done)} of {count} jobs succeeded")
            return found


async def build_crowd(place: Place, *, size: int) -> Answer:
    watch = Stopwatch(place)
    url = database.once(place.postgres, _crowd(size), _install)
    async with _app(url) as app:
        for _ in range(0, size, 10_000):
            await _fill(app, min(size, 10_000))
    database.settle(url)
    return watch.answer(size)


async def drain_crowd(place: Place, *, size: int, count: int, concurrency: int) -> Answer:
    """Until so many were run and written down; they are put back afterwards."""
    ran = 0
    async with _app(place.postgres.database(_crowd(size))) as app:

        async def noop(**_: Any) -> None:
            nonlocal ran
            ran += 1
            if ran == count:
                working.cancel()  # which is how its worker is asked to stop

        app.task(name="noop")(noop)
        watch = Stopwatch(place)
        working = asyncio.create_task(
            app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)
        )
        await asyncio.wait([working])
        found = watch.answer(ran)
        await _fill(app, ran)
        return found


def _crowd(size: int) -> str:
    return f"{TEMPLATE}_crowd_{size}"


async def cancel(place: Place, *, count: int, callers: int) -> Answer:
    """One by one, since there is no other way, but several at a time."""
    with _store(place) as url:
        async with _app(url) as app:
            ids = iter(await _fill(app, count))
            database.settle(url)

            async def caller() -> int:
                return sum([await app.job_manager.cancel_job_by_id_async(each) for each in ids])

            watch = Stopwatch(place)
            done = sum(await asyncio.gather(*(caller() for _ in range(callers))))
            if done != count:
                raise RuntimeError(f"only {done} of {count} jobs were cancelled")
            return watch.answer(done)


async def latency(
    place: Place, *, count: int, pause_seconds: float, look_seconds: float, until: str
) -> Answer:
    """From the call that submits to the moment its caller, who looks every so often, sees the job done;
    or, `until="begun"`, to the handler's first line."""
    samples = []
    with _store(place) as url:
        async with _app(url) as app, _worker_apart(url) as crew:
            noop = _deferrer(app)
            for _ in range(count + 1):
                await asyncio.sleep(pause_seconds)
                begun = time.monotonic()
                job_id = await noop.defer_async(**PAYLOAD)
                if until == "begun":
                    samples.append(await crew.when(BEGUN) - begun)
                else:
                    await _until_done(app, job_id, look_seconds)
                    samples.append(time.monotonic() - begun)
    return sampled(samples[1:])


async def _until_done(app: Any, job_id: int, look_seconds: float) -> None:
    async with asyncio.timeout(60):
        while (await app.job_manager.get_job_status_async(job_id)).value != "succeeded":
            await asyncio.sleep(look_seconds)


async def stop(place: Place, *, count: int) -> Answer:
    """From the call that aborts a running job to the handler's last line."""
    samples = []
    with _store(place) as url:
        async with _app(url) as app, _worker_apart(url) as crew:
            for _ in range(count + 1):
                job_id = await app.configure_task("endless").defer_async()
                await crew.when(BEGUN)
                await asyncio.sleep(0.05)
                begun = time.monotonic()
                await app.job_manager.cancel_job_by_id_async(job_id, abort=True)
                samples.append(await crew.when(ENDED) - begun)
    return sampled(samples[1:])


@asynccontextmanager
async def _worker_apart(url: str) -> AsyncIterator[Apart]:
    async with apart(__spec__.name, "worker", url) as crew:
        yield crew


async def run_worker(url: str) -> None:
    async with _app(url) as app:

        async def noop(**_: Any) -> None:
            tell(BEGUN)

        async def endless() -> None:
            tell(BEGUN)
            try:
                await asyncio.sleep(3600)
            finally:
                tell(ENDED)

        app.task(name="noop")(noop)
        app.task(name="endless")(endless)
        await app.run_worker_async(concurrency=10)


ABOUT = {
    "versions": {
        "procrastinate": version("procrastinate"),
        "psycopg": version("psycopg") + " (binary)",
        "python": sys.version.split()[0],
    },
    "settings": {
        "pool": f"{POOL_SIZE} connections",
        "finished jobs": "kept",
        "payload": PAYLOAD,
        "cancel": "cancel_job_by_id_async, 10 at a time",
    },
}


def main() -> None:
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(run_worker(sys.argv[2]))
    else:
        asynchronous = (submit, submit_many, drain, build_crowd, drain_crowd, cancel, latency, stop)
        serve(ABOUT, {each.__name__: blocking(each) for each in asynchronous})


if __name__ == "__main__":
    main()
