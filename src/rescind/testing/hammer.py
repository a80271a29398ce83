"""Several processes on one store at full speed, and the proof afterwards that nothing went wrong.

    python -m rescind.testing.hammer --seconds 20

One process submits, two work, one cancels. Each writes down what it was told and what it did, with the time,
outside the store. Then that is held against the store's own history: nothing lost, nothing run twice,
nothing started after its cancel was acknowledged, and every invariant.

With `faults` somebody else kills and pauses processes, or the store itself, meanwhile: what cannot be done
for a moment is left, and what a dead process began somebody else finishes.
"""

import argparse
import asyncio
import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from rescind import Context, Queue, Retry, Worker, connect
from rescind.errors import Unavailable
from rescind.job import Job
from rescind.lease import Rung
from rescind.testing.invariants import check_all
from rescind.testing.record import run_of

NEEDS = ("quick", "slow", "shaky", "single")
ROLES = ("submit", "work-1", "work-2", "cancel")
ENOUGH: Final = "enough"  # the file that tells those who submit and cancel to stop before their time
OVER: Final = "over"  # the file that tells workers that nothing more will come
SHORT_LEASES: Final = {
    "RESCIND_LEASE_SECONDS": "1.5",
    "RESCIND_HEARTBEAT_SECONDS": "0.3",
    "RESCIND_GRACE_SECONDS": "0.2",
    "RESCIND_KILL_AFTER_SECONDS": "0.2",
}
"""Settings, as the environment of a process, with which what a dead one leaves comes back soon."""


Going = Callable[[], bool]


class Note(msgspec.Struct, frozen=True):
    """What a process was told or did. `at` is system-wide monotonic time, comparable between processes."""

    kind: str  # tried (to submit), submitted, started, cancelled (before it ever began), stopped (later)
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

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def _whatever_happens(faults: bool) -> Iterator[None]:
    """With faults, a store that is away is no reason to end."""
    try:
        yield
    except Unavailable:
        if not faults:
            raise


# The roles


async def submit(queue: Queue, note: Journal, going: Going, *, faults: bool = False) -> None:
    """Singles and batches, some urgent, some that wait for another, some sharing a key."""
    previous: str | None = None
    while going():
        jobs = [queue.spec(**_random_job(previous)) for _ in range(random.choice((1, 1, 1, 20)))]
        note("tried", *(job.id for job in jobs))
        with _whatever_happens(faults):
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


async def work(queue: Queue, note: Journal, going: Going, name: str, *, faults: bool = False) -> None:
    """Several of these, each on its own. When the others are done, they stay until nothing is left."""
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
    while going() or not await _is_nothing_left(queue, faults):
        await asyncio.sleep(0.05)
    worker.stop()
    await running


async def _is_nothing_left(queue: Queue, faults: bool) -> bool:
    with _whatever_happens(faults):
        return not (await queue.count(status="pending") or await queue.count(status="running"))
    return False


async def cancel(queue: Queue, note: Journal, going: Going, *, faults: bool = False) -> None:
    """One by one, by list and now and then by force: whatever is waiting or running just then."""
    while going():
        with _whatever_happens(faults):
            for status in ("pending", "running"):
                for job in await queue.list(status=status, limit=5):
                    if random.random() < 0.5:
                        await _cancel_one(queue, note, job, faults)
        await asyncio.sleep(random.uniform(0, 0.01))


async def _cancel_one(queue: Queue, note: Journal, job: Job, faults: bool) -> None:
    answers = await queue.cancel_many([job.id], reason="hammered", force=random.random() < 0.1)
    seen = answers[job.id].job
    if answers[job.id].error is None and seen is not None:
        # A worker that was paused after an earlier claim may still begin, and find out that it is too late.
        unbegun = seen.rung is Rung.PENDING and not (faults and seen.attempt)
        note("cancelled" if unbegun else "stopped", job.id)


# Holding it together


async def play(role: str, url: str, directory: Path, seconds: float, *, faults: bool = False) -> None:
    note = Journal(directory / f"{role}.jsonl")
    async with connect(url, by=role) as queue:
        until = time.monotonic() + seconds
        if role.startswith("submit"):
            await submit(queue, note, going_until(until, directory / ENOUGH), faults=faults)
        elif role.startswith("cancel"):
            await cancel(queue, note, going_until(until, directory / ENOUGH), faults=faults)
        else:
            await work(queue, note, going_until(math.inf, directory / OVER), role, faults=faults)


def going_until(end: float, file: Path) -> Going:
    """True until this time, or until somebody makes this file."""
    return lambda: time.monotonic() < end and not file.exists()


def spawn(
    role: str, url: str, directory: Path, seconds: float, *, faults: bool = False
) -> "subprocess.Popen[bytes]":
    """A process that plays this role; its name begins with what it does: submit, work or cancel."""
    command = [sys.executable, "-m", "rescind.testing.hammer", "--url", url, "--directory", str(directory)]
    command += ["--role", role, "--seconds", str(seconds), *(["--faults"] if faults else [])]
    return subprocess.Popen(command, env={**os.environ, **(SHORT_LEASES if faults else {})})


def hammer(url: str, directory: Path, seconds: float) -> list[Note]:
    """Run the four processes and collect their notes; a process that fails fails all."""
    asyncio.run(create(url))
    processes = {role: spawn(role, url, directory, seconds) for role in ROLES}
    failed = [role for role in ("submit", "cancel") if processes[role].wait(seconds + 90)]
    (directory / OVER).touch()
    failed += [role for role in ("work-1", "work-2") if processes[role].wait(90)]
    if failed:
        raise RuntimeError(f"these processes failed: {', '.join(failed)}")
    return notes_in(directory)


def notes_in(directory: Path) -> list[Note]:
    """What all processes wrote down, in order. The last line of one that was killed may be half a line."""
    lines = [line for path in directory.glob("*.jsonl") for line in path.read_bytes().splitlines(True)]
    whole = (msgspec.json.decode(line, type=Note) for line in lines if line.endswith(b"\n"))
    return sorted(whole, key=lambda note: note.at)


async def create(url: str) -> None:
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
    for check in (_lost, _unfinished, _uncancelled, _started_too_often, _started_after_cancel):
        problems += check(notes, jobs)
    return problems, Counter(job.state.value for job in run.jobs)


def _lost(notes: Sequence[Note], jobs: dict[str, Job]) -> list[str]:
    known = {note.job_id for note in notes if note.kind == "submitted"}
    tried = {note.job_id for note in notes if note.kind == "tried"}  # the answer may have been lost
    lost = [f"job {job_id} was acknowledged and is gone" for job_id in known - jobs.keys()]
    return lost + [f"job {job_id} exists, but nobody submitted it" for job_id in jobs.keys() - tried]


def _unfinished(_: Sequence[Note], jobs: dict[str, Job]) -> list[str]:
    return [f"job {job.id} never ended: it is {job.state}" for job in jobs.values() if job.outcome is None]


def _uncancelled(notes: Sequence[Note], jobs: dict[str, Job]) -> list[str]:
    cancelled = {note.job_id for note in notes if note.kind in ("cancelled", "stopped")}
    return [
        f"the cancel of job {job_id} was acknowledged and is not on record"
        for job_id in cancelled & jobs.keys()
        if jobs[job_id].cancel_requested_at is None
    ]


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
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--faults", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.role:
        asyncio.run(
            play(options.role, options.url, options.directory, options.seconds, faults=options.faults)
        )
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
