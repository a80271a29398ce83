"""huey on SQLite with fsync, as a contender. Its consumer polls every 10 ms here; by default it would
wait from 100 ms up to 10 s, so these are the settings that favour it."""

import importlib
import itertools
import logging
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.contenders.place import Place
from bench.contenders.protocol import Answer, Stopwatch, sampled, serve

huey: Any = importlib.import_module("huey")  # untyped, and installed only in this contender's environment
consumer: Any = importlib.import_module("huey.consumer")

POLLING = {"initial_delay": 0.01, "max_delay": 0.01, "backoff": 1.0}
PAYLOAD = {"n": 1}


@contextmanager
def _queue(place: Place, *, fsync: bool = True) -> Iterator[tuple[Any, Path]]:
    home = Path(tempfile.mkdtemp(dir=place.directory))
    queue = _open(home, fsync=fsync)
    try:
        yield queue, home
    finally:
        queue.storage.close()
        shutil.rmtree(home)


def _open(home: Path, *, fsync: bool = True) -> Any:
    return huey.SqliteHuey("bench", filename=str(home / "huey.db"), fsync=fsync)


def _filled(home: Path, handler: Callable[[Any], Any], count: int) -> list[str]:
    """Tasks put there without fsync: this part is not measured."""
    queue = _open(home, fsync=False)
    noop = queue.task(name="noop")(handler)
    ids = [str(noop(PAYLOAD).id) for _ in range(count)]
    queue.storage.close()
    return ids


def submit(place: Place, *, count: int, threads: int) -> Answer:
    with _queue(place) as (queue, _):
        noop = queue.task(name="noop")(lambda _: None)

        def caller(share: int) -> int:
            for _ in range(share):
                noop(PAYLOAD)
            return share

        with ThreadPoolExecutor(threads) as pool:
            watch = Stopwatch(place)
            return watch.answer(sum(pool.map(caller, [count // threads] * threads)))


def drain(place: Place, *, count: int, threads: int, keep_results: bool) -> Answer:
    """`keep_results`: the handler returns something, so that huey writes down how each task ended."""
    done, seen = threading.Event(), itertools.count(1)

    def handler(_: Any) -> int | None:
        if next(seen) == count:
            done.set()
        return 1 if keep_results else None

    with _queue(place) as (queue, home):
        _filled(home, handler, count)
        queue.task(name="noop")(handler)
        crew = consumer.Consumer(queue, workers=threads, periodic=False, check_worker_health=False, **POLLING)
        watch = Stopwatch(place)
        crew.start()
        if not done.wait(120):
            raise TimeoutError(f"not drained: {len(queue)} tasks left")
        found = watch.answer(count)
        crew.stop(graceful=True)
        return found


def cancel(place: Place, *, count: int) -> Answer:
    """The nearest thing: note each id as revoked. The tasks stay queued until a consumer drops them."""
    with _queue(place) as (queue, home):
        ids = _filled(home, lambda _: None, count)
        watch = Stopwatch(place)
        for task_id in ids:
            queue.revoke_by_id(task_id)
        return watch.answer(len(ids))


def latency(place: Place, *, count: int, pause_seconds: float, look_seconds: float) -> Answer:
    """From the call that submits to the moment its caller, who looks every so often, sees the result."""
    with _queue(place) as (queue, home), _worker(home):
        noop = queue.task(name="noop")(lambda _: None)
        samples = [_round_trip(noop, pause_seconds, look_seconds) for _ in range(count + 1)][1:]
    return sampled(samples)


def _round_trip(noop: Any, pause_seconds: float, look_seconds: float) -> float:
    time.sleep(pause_seconds)
    begun = time.perf_counter()
    result = noop(uuid.uuid4().hex)
    while result.get() is None:
        if time.perf_counter() - begun > 30:
            raise TimeoutError("the consumer did not answer")
        time.sleep(look_seconds)
    return time.perf_counter() - begun


@contextmanager
def _worker(home: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", __spec__.name, "worker", str(home)])
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def run_worker(home: Path) -> None:
    queue = _open(home)
    queue.task(name="noop")(lambda _: 1)
    consumer.Consumer(queue, workers=4, periodic=False, check_worker_health=False, **POLLING).run()


ABOUT = {
    "versions": {
        "huey": huey.__version__,
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
    },
    "settings": {"fsync": True, "journal_mode": "wal", "consumer polls every": "10 ms", "payload": PAYLOAD},
}


def main() -> None:
    logging.getLogger("huey").setLevel(logging.ERROR)
    if sys.argv[1:2] == ["worker"]:
        run_worker(Path(sys.argv[2]))
    else:
        serve(ABOUT, {"submit": submit, "drain": drain, "cancel": cancel, "latency": latency})


if __name__ == "__main__":
    main()
