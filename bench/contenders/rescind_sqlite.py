"""rescind on SQLite, as a contender: submits, drains, cancels and latencies with the default settings."""

import asyncio
import hashlib
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

import rescind
from bench.contenders import rescind_claims
from bench.contenders.protocol import Answer, answer, serve, timed
from bench.contenders.rescind_worker import worker
from rescind import Queue, Settings, State, Worker, connect, sync
from rescind.state import FINAL_STATES

PAYLOAD = {"n": 1}


@contextmanager
def _store(directory: Path) -> Iterator[str]:
    home = Path(tempfile.mkdtemp(dir=directory))
    try:
        yield f"sqlite://{home / 'rescind.db'}"
    finally:
        shutil.rmtree(home)


@asynccontextmanager
async def _queue(directory: Path, filled: int = 0) -> AsyncIterator[Queue]:
    with _store(directory) as url:
        async with connect(url, settings=Settings()) as queue:
            if filled:
                await queue.submit_many(_jobs(filled))
            yield queue


def _jobs(count: int) -> list[dict[str, Any]]:
    return [{"need": "noop", "input": PAYLOAD} for _ in range(count)]


async def _timed(work: Callable[[], Awaitable[int]]) -> Answer:
    cpu, wall = time.process_time(), time.perf_counter()
    count = await work()
    return answer(time.perf_counter() - wall, count, cpu_seconds=time.process_time() - cpu)


def submit_threads(directory: Path, *, count: int, threads: int) -> Answer:
    with _store(directory) as url, sync.connect(url, settings=Settings()) as queue:

        def caller(share: int) -> int:
            for _ in range(share):
                queue.submit("noop", PAYLOAD)
            return share

        with ThreadPoolExecutor(threads) as pool:
            return timed(lambda: sum(pool.map(caller, [count // threads] * threads)))


async def submit(directory: Path, *, count: int, callers: int) -> Answer:
    async with _queue(directory) as queue:

        async def caller(share: int) -> None:
            for _ in range(share):
                await queue.submit("noop", PAYLOAD)

        async def work() -> int:
            await asyncio.gather(*(caller(count // callers) for _ in range(callers)))
            return count // callers * callers

        return await _timed(work)


async def submit_many(directory: Path, *, count: int) -> Answer:
    jobs = _jobs(count)
    async with _queue(directory) as queue:

        async def work() -> int:
            return len(await queue.submit_many(jobs))

        return await _timed(work)


async def drain(directory: Path, *, count: int, concurrency: int, threads: bool) -> Answer:
    async with _queue(directory, filled=count) as queue:
        crew = Worker(queue, concurrency=concurrency)
        crew.task("noop")(_noop_in_thread if threads else _noop)

        async def work() -> int:
            await crew.run(until_empty=True)
            return count

        found = await _timed(work)
        done = await queue.count(status="completed")
        if done != count:
            raise RuntimeError(f"only {done} of {count} jobs were completed")
        return found


async def _noop(_: Any) -> None:
    return None


def _noop_in_thread(_: Any) -> None:
    return None


async def cancel_by_type(directory: Path, *, count: int) -> Answer:
    async with _queue(directory, filled=count) as queue:
        return await _timed(lambda: queue.cancel_by_type("noop", reason="benchmark"))


async def cancel_many(directory: Path, *, count: int) -> Answer:
    async with _queue(directory) as queue:
        ids = [job.id for job in await queue.submit_many(_jobs(count))]

        async def work() -> int:
            answers = await queue.cancel_many(ids, reason="benchmark")
            return sum(each.changed for each in answers.values())

        return await _timed(work)


async def latency(directory: Path, *, count: int, pause_seconds: float, look_seconds: float) -> Answer:
    """From the call that submits to the moment its caller, who looks every so often, sees the job done."""
    samples = []
    async with _queue(directory) as queue, _worker_apart(queue):
        for _ in range(count + 1):
            await asyncio.sleep(pause_seconds)
            begun = time.perf_counter()
            job = await queue.submit("noop", PAYLOAD)
            await _until(queue, job.id, look_seconds, FINAL_STATES)
            samples.append(time.perf_counter() - begun)
    return answer(sum(samples[1:]), count, samples=samples[1:])  # the first one found the worker starting


async def stop(directory: Path, *, count: int, look_seconds: float, apart: bool) -> Answer:
    """From the call that cancels a running job to the moment its caller sees it stopped; `apart`: its
    worker is another process."""
    samples = []
    async with _queue(directory) as queue, (_worker_apart if apart else _worker_here)(queue):
        for _ in range(count + 1):
            job = await queue.submit("endless")
            await _until(queue, job.id, look_seconds, frozenset({State.ACTIVE}))
            await asyncio.sleep(0.05)  # the handler is waiting by now
            begun = time.perf_counter()
            await queue.cancel(job.id, reason="benchmark")
            await _until(queue, job.id, look_seconds, FINAL_STATES)
            samples.append(time.perf_counter() - begun)
            if (await queue.get(job.id)).state is not State.CANCELLED:
                raise RuntimeError(f"job {job.id} was not cancelled")
    return answer(sum(samples[1:]), count, samples=samples[1:])


async def _until(queue: Queue, job_id: str, look_seconds: float, states: frozenset[State]) -> None:
    async with asyncio.timeout(60):
        while (await queue.get(job_id)).state not in states:
            await asyncio.sleep(look_seconds)


@asynccontextmanager
async def _worker_apart(queue: Queue) -> AsyncIterator[None]:
    url = f"sqlite://{getattr(queue.engine, 'path')}"  # noqa: B009 - the protocol does not promise a path
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.contenders.rescind_worker", url
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _worker_here(queue: Queue) -> AsyncIterator[None]:
    crew = worker(queue)
    running = asyncio.create_task(crew.run(handle_signals=False))
    try:
        yield
    finally:
        crew.stop()
        await running


def _blocking(measure: Callable[..., Awaitable[Answer]]) -> Callable[..., Answer]:
    async def ask(directory: Path, parameters: dict[str, Any]) -> Answer:
        return await measure(directory, **parameters)

    return lambda directory, **parameters: asyncio.run(ask(directory, parameters))


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


def _about() -> dict[str, Any]:
    return {
        "versions": {
            "rescind": _version(),
            "source": _source(),
            "msgspec": msgspec.__version__,
            "python": sys.version.split()[0],
            "sqlite": sqlite3.sqlite_version,
        },
        "settings": {
            "synchronous": "FULL",
            "journal_mode": "wal",
            "payload": PAYLOAD,
            "lease_seconds": Settings().lease_seconds,
            "history": "every move is recorded",
        },
    }


def main() -> None:
    asynchronous = (submit, submit_many, drain, cancel_by_type, cancel_many, latency, stop)
    measures = {each.__name__: _blocking(each) for each in asynchronous}
    serve(_about(), {**measures, "submit_threads": submit_threads, **rescind_claims.MEASURES})


if __name__ == "__main__":
    main()
