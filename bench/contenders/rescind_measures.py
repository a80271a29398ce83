"""What is measured of rescind on any engine: submits, drains, cancels and latencies, by its public API."""

import asyncio
import hashlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

import rescind
from bench.contenders.apart import BEGUN, ENDED, Apart, apart
from bench.contenders.place import Place
from bench.contenders.protocol import Answer, Measure, Stopwatch, blocking, sampled
from bench.contenders.rescind_worker import worker
from rescind import Queue, Settings, State, Worker, connect, sync
from rescind.state import FINAL_STATES

PAYLOAD = {"n": 1}
Store = Callable[..., AbstractContextManager[str]]


class Measures:
    """`store` makes an empty store in a place, gives its URL, and removes it in the end. What a measure is
    told about its store (`trace`, on PostgreSQL), it hands on. `settle` is done to one that was filled."""

    def __init__(self, store: Store, settle: Callable[[str], None] = lambda _: None) -> None:
        self._store = store
        self._settle = settle

    def named(self) -> Mapping[str, Measure]:
        asynchronous = (
            self.submit,
            self.submit_many,
            self.drain,
            self.cancel_by_type,
            self.cancel_many,
            self.latency,
            self.stop,
        )
        measures = {each.__name__: blocking(each) for each in asynchronous}
        return {**measures, "submit_threads": self.submit_threads}

    @asynccontextmanager
    async def _queue(self, place: Place, store: dict[str, Any], filled: int = 0) -> AsyncIterator[Queue]:
        async with self._opened(place, store, filled) as (queue, _):
            yield queue

    @asynccontextmanager
    async def _opened(
        self, place: Place, store: dict[str, Any], filled: int = 0
    ) -> AsyncIterator[tuple[Queue, str]]:
        with self._store(place, **store) as url:
            async with connect(url, settings=Settings()) as queue:
                if filled:
                    await queue.submit_many(jobs(filled))
                    self._settle(url)
                yield queue, url

    def submit_threads(self, place: Place, *, count: int, threads: int, **store: Any) -> Answer:
        with self._store(place, **store) as url, sync.connect(url, settings=Settings()) as queue:

            def caller(share: int) -> int:
                for _ in range(share):
                    queue.submit("noop", PAYLOAD)
                return share

            with ThreadPoolExecutor(threads) as pool:
                watch = Stopwatch(place)
                return watch.answer(sum(pool.map(caller, [count // threads] * threads)))

    async def submit(self, place: Place, *, count: int, callers: int, **store: Any) -> Answer:
        async with self._queue(place, store) as queue:

            async def caller(share: int) -> None:
                for _ in range(share):
                    await queue.submit("noop", PAYLOAD)

            watch = Stopwatch(place)
            await asyncio.gather(*(caller(count // callers) for _ in range(callers)))
            return watch.answer(count // callers * callers)

    async def submit_many(self, place: Place, *, count: int, **store: Any) -> Answer:
        batch = jobs(count)
        async with self._queue(place, store) as queue:
            watch = Stopwatch(place)
            return watch.answer(len(await queue.submit_many(batch)))

    async def drain(
        self, place: Place, *, count: int, concurrency: int, threads: bool = False, **store: Any
    ) -> Answer:
        async with self._queue(place, store, filled=count) as queue:
            crew = Worker(queue, concurrency=concurrency)
            crew.task("noop")(_noop_in_thread if threads else _noop)
            watch = Stopwatch(place)
            await crew.run(until_empty=True)
            found = watch.answer(count)
            done = await queue.count(status="completed")
            if done != count:
                raise RuntimeError(f"only {done} of {count} jobs were completed")
            return found

    async def cancel_by_type(self, place: Place, *, count: int, **store: Any) -> Answer:
        async with self._queue(place, store, filled=count) as queue:
            watch = Stopwatch(place)
            return watch.answer(await queue.cancel_by_type("noop", reason="benchmark"))

    async def cancel_many(self, place: Place, *, count: int, **store: Any) -> Answer:
        async with self._opened(place, store) as (queue, url):
            ids = [job.id for job in await queue.submit_many(jobs(count))]
            self._settle(url)
            watch = Stopwatch(place)
            answers = await queue.cancel_many(ids, reason="benchmark")
            return watch.answer(sum(each.changed for each in answers.values()))

    async def latency(
        self,
        place: Place,
        *,
        count: int,
        pause_seconds: float,
        look_seconds: float,
        until: str = "seen",
        **store: Any,
    ) -> Answer:
        """From the call that submits to the moment its caller, who looks every so often, sees the job done;
        or, `until="begun"`, to the handler's first line."""
        samples = []
        async with self._opened(place, store) as (queue, url), _worker_apart(url) as crew:
            for _ in range(count + 1):
                await asyncio.sleep(pause_seconds)
                begun = time.monotonic()
                job = await queue.submit("noop", PAYLOAD)
                if until == "begun":
                    samples.append(await crew.when(BEGUN) - begun)
                else:
                    await _until(queue, job.id, look_seconds, FINAL_STATES)
                    samples.append(time.monotonic() - begun)
        return sampled(samples[1:])  # the first one found the worker starting

    async def stop(
        self,
        place: Place,
        *,
        count: int,
        look_seconds: float,
        apart: bool = True,
        until: str = "seen",
        **store: Any,
    ) -> Answer:
        """From the call that cancels a running job to the moment its caller sees it stopped; or,
        `until="ended"`, to the handler's last line. `apart`: its worker is another process."""
        samples = []
        async with self._opened(place, store) as (queue, url), _worker(queue, url, apart) as crew:
            for _ in range(count + 1):
                job = await queue.submit("endless")
                await _until(queue, job.id, look_seconds, frozenset({State.ACTIVE}))
                await asyncio.sleep(0.05)  # the handler is waiting by now
                begun = time.monotonic()
                await queue.cancel(job.id, reason="benchmark")
                ended = await crew.when(ENDED) if crew and until == "ended" else None
                await _until(queue, job.id, look_seconds, FINAL_STATES)
                samples.append((ended or time.monotonic()) - begun)
                if (await queue.get(job.id)).state is not State.CANCELLED:
                    raise RuntimeError(f"job {job.id} was not cancelled")
        return sampled(samples[1:])


def jobs(count: int) -> list[dict[str, Any]]:
    return [{"need": "noop", "input": PAYLOAD} for _ in range(count)]


async def _noop(_: Any) -> None:
    return None


def _noop_in_thread(_: Any) -> None:
    return None


async def _until(queue: Queue, job_id: str, look_seconds: float, states: frozenset[State]) -> None:
    async with asyncio.timeout(60):
        while (await queue.get(job_id)).state not in states:
            await asyncio.sleep(look_seconds)


def _worker(queue: Queue, url: str, apart: bool) -> AbstractAsyncContextManager[Apart | None]:
    return _worker_apart(url) if apart else _worker_here(queue)


def _worker_apart(url: str) -> AbstractAsyncContextManager[Apart]:
    return apart("bench.contenders.rescind_worker", url)


@asynccontextmanager
async def _worker_here(queue: Queue) -> AsyncIterator[None]:
    crew = worker(queue, lambda _: None)
    running = asyncio.create_task(crew.run(handle_signals=False))
    try:
        yield
    finally:
        crew.stop()
        await running


def versions() -> dict[str, str]:
    return {
        "rescind": _version(),
        "source": _source(),
        "msgspec": msgspec.__version__,
        "python": sys.version.split()[0],
    }


def _version() -> str:
    try:
        return version("rescind")
    except PackageNotFoundError:
        return "from the source tree"


def _source() -> str:
    """A hash of the code that runs: a version number does not tell two working trees apart."""
    home = Path(rescind.__file__).parent
    files = sorted([*home.rglob("*.py"), *home.rglob("*.sql")])
    return "sha256 " + hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
