"""The server is killed under load and started again on the same data, with fsync on: everybody comes back by
themselves, and nothing that was acknowledged is lost."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from rescind import connect
from rescind.errors import Refused, Unavailable
from rescind.job import Job, Outcome
from rescind.settings import load
from rescind.testing import Harness, hammer
from rescind.testing.engines import Existing
from rescind.testing.postgres import Server
from tests.postgres.conftest import disagreements

pytestmark = pytest.mark.soak

CRASHES: Final = 3
PATIENCE: Final = 60.0


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(fsync=True) as server:
        yield server


def crash(server: Server) -> None:
    server.kill()
    server.start()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_workers_come_back_by_themselves_and_nothing_is_lost(server: Server, tmp_path: Path) -> None:
    # Given submitters, a canceller and a worker in processes of their own, and a worker here
    url = server.create_database("crash")
    await hammer.create(url)
    roles = ("submit-1", "submit-2", "cancel", "work-there")
    processes = [hammer.spawn(role, url, tmp_path, PATIENCE, faults=True) for role in roles]
    journals = {role: tmp_path / f"{role}.jsonl" for role in (*roles, "work-here")}
    going = hammer.going_until(math.inf, tmp_path / hammer.OVER)
    note = hammer.Journal(journals["work-here"])
    async with connect(url, by="work-here", settings=load(hammer.SHORT_LEASES)) as queue:
        working = asyncio.create_task(hammer.work(queue, note, going, "work-here", faults=True))
        crashed = 0
        for _ in range(CRASHES):
            # When all of them are busy, and the server is killed and started again
            await until(lambda: all(_is_busy(path, since=crashed) for path in journals.values()))  # noqa: B023
            await asyncio.to_thread(crash, server)
            crashed = time.monotonic_ns()
        # Then all of them are busy again
        await until(lambda: all(_is_busy(path, since=crashed) for path in journals.values()))
        (tmp_path / hammer.ENOUGH).touch()
        assert [await asyncio.to_thread(process.wait, PATIENCE) for process in processes[:3]] == [0, 0, 0]
        (tmp_path / hammer.OVER).touch()
        assert await asyncio.to_thread(processes[3].wait, PATIENCE) == 0
        await asyncio.wait_for(working, PATIENCE)
        note.close()
    # And all that was acknowledged is there, has ended, and has a lawful history
    problems, ended = await hammer.judge(url, hammer.notes_in(tmp_path))
    assert not problems, "\n".join(problems[:20])
    assert disagreements(url) == []
    assert ended["COMPLETED"] > 50 and ended["CANCELLED"] > 0, "too little to prove anything"


def _is_busy(journal: Path, since: int) -> bool:
    """Has it written down something since then?"""
    if not journal.exists():
        return False
    last = journal.read_bytes().splitlines(keepends=True)[-1:]
    whole = [line for line in last if line.endswith(b"\n")]
    return any(msgspec.json.decode(line, type=hammer.Note).at > since for line in whole)


async def test_what_was_acknowledged_survives(server: Server) -> None:
    """Each verb of those who say that they did something is on record after each crash."""
    url = server.create_database("acknowledged")
    harness = Harness(Existing(url))
    await harness.open()
    submitted: set[str] = set()
    completed: set[str] = set()
    cancelled: set[str] = set()
    going = True

    async def live(name: str) -> None:
        while going:
            try:
                job = await harness.submit(need=name)
                submitted.add(job.id)
                (held,) = await harness.claim(name, worker=name)
                done = await harness.complete(held, name)
                completed.add(done.id)
                other = await harness.submit(need=f"{name}-never")
                submitted.add(other.id)
                await harness.cancel(other.id)
                cancelled.add(other.id)
            except (Unavailable, Refused, ValueError):  # or what a lost claim left is in the way: no harm
                await asyncio.sleep(0.01)

    callers = [asyncio.create_task(live(f"caller-{n}")) for n in range(8)]
    for number in range(CRASHES):
        # When the server crashes while many are in the middle of something
        await until(lambda: len(completed) > 40 * (number + 1))  # noqa: B023
        await asyncio.to_thread(crash, server)
        # Then all that they were told is true
        known = submitted.copy(), completed.copy(), cancelled.copy()
        jobs = {job.id: job for job in await _patiently(harness)}
        assert known[0] <= jobs.keys()
        assert {jobs[id].outcome for id in known[1]} == {Outcome.COMPLETED}
        assert {jobs[id].cancel_requested_by for id in known[2]} == {"operator"}
    going = False
    await asyncio.gather(*callers)
    violations = await harness.violations(acknowledged=submitted)
    assert not violations, "\n".join(violations[:20])
    await harness.close()
    assert disagreements(url) == []


async def _patiently(harness: Harness) -> list[Job]:
    while True:
        try:
            return await harness.jobs()
        except Unavailable:
            await asyncio.sleep(0.01)
