"""Several processes on one store at full speed, and the proof afterwards that nothing went wrong.

    python -m rescind.testing.hammer --seconds 20

One process submits, two work, one cancels. Each writes down what it was told and what it did, with the time,
outside the store. Then that is held against the store's own history: nothing lost, nothing run twice,
nothing started after its cancel was acknowledged, and every invariant.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from rescind import Context, Queue, Retry, Worker, connect
from rescind.job import Job
from rescind.lease import Rung
from rescind.testing.invariants import check_all
from rescind.testing.record import run_of

NEEDS = ("quick", "slow", "shaky", "single")
ROLES = ("submit", "work-1", "work-2", "cancel")


class Note(msgspec.Struct, frozen=True):
    """What a process was told or did. `at` is system-wide monotonic time, comparable between processes."""

    kind: str  # submitted, started, cancelled (while it waited), stopped (while it ran: asked to, or forced)
    job_id: str
    at: int


class Journal:
    """A process's notes, on disk line by line."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def __call__(self, kind: str, *job_ids: str) -> None:
        at = time.monotonic_ns()
        lines = [msgspec.json.encode(Note(kind, job_id, at)) + b"\n" for job_id in job_ids]
        self._file.write(b"".join(lines))


# The four roles


async def submit(queue: Queue, note: Journal, until: float) -> None:
    """Singles and batches, some urgent, some that wait for another, some sharing a key."""
    previous: str | None = None
    while time.monotonic() < until:
        jobs = [_random_job(previous) for _ in range(random.choice((1, 1, 1, 20)))]
        made = await queue.submit_many(jobs)
        note("submitted", *(job.id for job in made))
        previous = made[-1].id
        await asyncio.sleep(random.uniform(0, 0.004))


def _random_job(previous: str | None) -> dict[str, Any]:
    need = random.choices(NEEDS, (6, 2, 1, 1))[0]
    job: dict[str, Any] = {"need": need, "priority": random.randrange(3), "max_attempts": 5}
    if need == "single":
        job["singleton_key"] = f"key-{random.randrange(3)}"
    if previous and random.random() < 0.1:
        job["wait_for"] = [previous]
        job["on_dependency_cancelled"] = random.choice(("release", "cancel"))
    return job


async def work(queue: Queue, note: Journal, until: float, name: str) -> None:
    """Two workers in two processes; after the time is up they stay until nothing is left."""
    worker = Worker(queue, name=name, concurrency=16)

    @worker.task("quick")
    async def quick(_: object, context: Context) -> None:
        note("started", context.job.id)

    @worker.task("single")
    @worker.task("slow")
    async def slow(_: object, context: Context) -> None:
        note("started", context.job.id)
        for _step in range(20):
            if await context.is_cancellation_requested():
                return
            await asyncio.sleep(0.002)

    @worker.task("shaky", retry=Retry(first_seconds=0.01))
    async def shaky(_: object, context: Context) -> None:
        note("started", context.job.id)
        if random.random() < 0.3:
            raise RuntimeError("as it happens")

    running = asyncio.create_task(worker.run(handle_signals=False))
    await asyncio.sleep(until - time.monotonic())
    await _until_nothing_is_left(queue)
    worker.stop()
    await running


async def _until_nothing_is_left(queue: Queue) -> None:
    while await queue.count(status="pending") or await queue.count(status="running"):
        await asyncio.sleep(0.05)


async def cancel(queue: Queue, note: Journal, until: float) -> None:
    """One by one, by list and now and then by force: whatever is waiting or running just then."""
    while time.monotonic() < until:
        for status in ("pending", "running"):
            for job in await queue.list(status=status, limit=5):
                if random.random() < 0.5:
                    await _cancel_one(queue, note, job)
        await asyncio.sleep(random.uniform(0, 0.01))


async def _cancel_one(queue: Queue, note: Journal, job: Job) -> None:
    answers = await queue.cancel_many([job.id], reason="hammered", force=random.random() < 0.1)
    seen = answers[job.id].job
    if answers[job.id].error is None and seen is not None:
        note("cancelled" if seen.rung is Rung.PENDING else "stopped", job.id)


# Holding it together


async def play(role: str, url: str, directory: Path, until: float) -> None:
    note = Journal(directory / f"{role}.jsonl")
    async with connect(url, by=role) as queue:
        if role == "submit":
            await submit(queue, note, until)
        elif role == "cancel":
            await cancel(queue, note, until)
        else:
            await work(queue, note, until, role)


def hammer(url: str, directory: Path, seconds: float) -> list[Note]:
    """Run the four processes and collect their notes; a process that fails fails all."""
    asyncio.run(_create(url))
    until = time.monotonic() + seconds
    command = [sys.executable, "-m", "rescind.testing.hammer", "--url", url, "--directory", str(directory)]
    processes = [subprocess.Popen([*command, "--role", role, "--until", str(until)]) for role in ROLES]
    failed = [role for role, process in zip(ROLES, processes, strict=True) if process.wait(seconds + 90)]
    if failed:
        raise RuntimeError(f"these processes failed: {', '.join(failed)}")
    lines = [line for role in ROLES for line in (directory / f"{role}.jsonl").read_bytes().splitlines()]
    return sorted((msgspec.json.decode(line, type=Note) for line in lines), key=lambda note: note.at)


async def _create(url: str) -> None:
    async with connect(url):
        pass


async def judge(url: str, notes: Sequence[Note]) -> tuple[list[str], Counter[str]]:
    """What was wrong, and how many jobs ended in which state."""
    acknowledged = {note.job_id for note in notes if note.kind == "submitted"}
    async with connect(url) as queue:
        await queue.sweep()
        run = await run_of(queue.engine, acknowledged=acknowledged)
    problems = check_all(run)
    jobs = {job.id: job for job in run.jobs}
    for check in (_lost, _unfinished, _started_too_often, _started_after_cancel):
        problems += check(notes, jobs)
    return problems, Counter(job.state.value for job in run.jobs)


def _lost(notes: Sequence[Note], jobs: dict[str, Job]) -> list[str]:
    known = {note.job_id for note in notes if note.kind == "submitted"}
    lost = [f"job {job_id} was acknowledged and is gone" for job_id in known - jobs.keys()]
    return lost + [f"job {job_id} exists, but nobody submitted it" for job_id in jobs.keys() - known]


def _unfinished(_: Sequence[Note], jobs: dict[str, Job]) -> list[str]:
    return [f"job {job.id} never ended: it is {job.state}" for job in jobs.values() if job.outcome is None]


def _started_too_often(notes: Sequence[Note], jobs: dict[str, Job]) -> list[str]:
    starts = Counter(note.job_id for note in notes if note.kind == "started")
    return [
        f"job {job_id} was started {number} times in {jobs[job_id].attempt} attempts"
        for job_id, number in starts.items()
        if number > jobs[job_id].attempt
    ]


def _started_after_cancel(notes: Sequence[Note], _: dict[str, Job]) -> list[str]:
    """A job cancelled while it waited must not start. (One that had been claimed may: its claim came first,
    and that no other claim follows is checked from the history.)"""
    cancelled: set[str] = set()
    problems = []
    for note in notes:
        if note.kind == "cancelled":
            cancelled.add(note.job_id)
        elif note.kind == "started" and note.job_id in cancelled:
            problems.append(f"job {note.job_id} was started after its cancel was acknowledged")
    return problems


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--url", help="the store to hammer; by default a new SQLite file")
    parser.add_argument("--directory", type=Path, help="where the notes go; by default a temporary directory")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.role:
        asyncio.run(play(options.role, options.url, options.directory, options.until))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        url = options.url or f"sqlite://{directory}/hammer.db"
        notes = hammer(url, directory, options.seconds)
        problems, ended = asyncio.run(judge(url, notes))
    kinds = Counter(note.kind for note in notes)
    say(
        f"{kinds['submitted']} submitted, {kinds['started']} starts, {kinds['cancelled']} cancelled while "
        f"waiting, {kinds['stopped']} while running; ended: {dict(ended)}"
    )
    for problem in problems:
        say(f"WRONG: {problem}")
    say("all invariants hold" if not problems else f"{len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
