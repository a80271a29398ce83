"""Everything at once on the same few jobs: nobody ever waits in a circle, and nothing is left half done."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from rescind.engine import Claim, Filter, Selector
from rescind.errors import InvalidInput, Refused
from rescind.job import Job
from rescind.lease import Complete, Fail
from rescind.state import State
from rescind.testing import Harness
from rescind.testing.engines import Existing
from rescind.testing.postgres import Server
from tests.postgres.conftest import disagreements
from tests.postgres.database import backends, execute

pytestmark = pytest.mark.race

SECONDS: Final = 4.0
CONNECTIONS: Final = 24
OWNERS: Final = ("ann", "bob", "eve")
NEEDS: Final = ("work", "more", "next")

Play = Callable[["Table"], Awaitable[None]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Which finds a deadlock sooner than others do, and writes down who waited for whom."""
    settings = {"deadlock_timeout": "100ms", "log_lock_waits": "on"}
    with Server(settings=settings) as server:
        yield server


class Table:
    """What the players share: the store, and the jobs of which they know."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.ids: list[str] = []
        self.held: list[Job] = []

    def some(self, most: int) -> list[str]:
        """Of the latest, so that players meet, in any order."""
        latest = self.ids[-60:]
        return random.sample(latest, min(len(latest), random.randint(1, most)))

    def take(self, claimed: Sequence[Job]) -> None:
        assert len({job.id for job in claimed}) == len(claimed), f"one job twice in an answer: {claimed}"
        self.held += claimed

    def taken(self) -> list[Job]:
        """Some of the leases, which are nobody else's any more."""
        random.shuffle(self.held)
        mine, self.held = self.held[:3], self.held[3:]
        return mine

    @property
    def options(self) -> dict[str, Any]:
        return {
            "need": random.choice(NEEDS),
            "singleton_key": random.choice((None, None, "one", "two")),
            "on_dependency_cancelled": random.choice(("release", "cancel")),
            "on_dependency_failed": random.choice(("release", "cancel")),
            "max_attempts": 2,
        }


# The players


async def submit(table: Table) -> None:
    """A fan: one waits for many, many wait for one, and some cost their owner something."""
    harness, known = table.harness, table.some(6)
    first = harness.spec(wait_for=known, **table.options)
    rest = [harness.spec(wait_for=[first.id], **table.options) for _ in range(3)]
    costly = [
        harness.spec(wait_for=table.some(2), owner=owner, estimate=1, **table.options)
        for owner in random.sample(OWNERS, 2)
    ]
    specs = [first, *rest, *costly]
    await harness.engine.submit(specs)
    table.ids += [spec.id for spec in specs]


async def claim(table: Table) -> None:
    table.take(await table.harness.claim(*NEEDS, limit=random.randint(1, 8)))


async def end(table: Table) -> None:
    for job in table.taken():
        await random.choice(
            (
                table.harness.complete,
                table.harness.complete,
                table.harness.fail,
                table.harness.release,
                table.harness.extend,
            )
        )(job)


async def settle_many(table: Table) -> None:
    """In one batch, with new work."""
    done = [
        Complete(lease=job.lease, output=b"1", units=1500, work_started=True)
        if random.random() < 0.8
        else Fail(lease=job.lease, error="no", retry_seconds=None)
        for job in table.taken()
    ]
    more = Claim(worker="worker-1", needs=NEEDS, limit=4, lease_seconds=60)
    table.take((await table.harness.engine.settle(done, more)).claimed)


async def reschedule(table: Table) -> None:
    for job in table.taken():
        await table.harness.reschedule(job, random.choice(NEEDS), wait_for=table.some(3))


async def reschedule_unheld(table: Table) -> None:
    for id in table.some(2):
        await table.harness.reschedule_unheld(id, random.choice(NEEDS), wait_for=table.some(3))


async def complete_unheld(table: Table) -> None:
    for id in table.some(2):
        await table.harness.complete_unheld(id)


async def cancel(table: Table) -> None:
    await table.harness.cancel_many(Selector(ids=tuple(table.some(20))), force=random.random() < 0.3)


async def cancel_by_owner(table: Table) -> None:
    await table.harness.cancel_many(Selector(owner=random.choice(OWNERS), running=True), limit=5)


async def sweep(table: Table) -> None:
    await table.harness.sweep(limit=random.choice((1, 5, 50)))


async def credit(table: Table) -> None:
    for owner in random.sample(OWNERS, 2):
        await table.harness.credit(owner, 3)


PLAYERS: Final[list[Play]] = [
    *(submit, submit, submit, claim, claim, end, end, settle_many, settle_many, settle_many),
    *(reschedule, reschedule_unheld, complete_unheld, cancel, cancel, cancel_by_owner, sweep, sweep, credit),
]


@asynccontextmanager
async def table(url: str) -> AsyncIterator[Table]:
    harness = Harness(Existing(f"{url}?pool_size={CONNECTIONS}"))
    await harness.open()
    for owner in OWNERS:
        await harness.credit(owner, 100)
    try:
        yield Table(harness)
    finally:
        await harness.close()


async def play(table: Table, until: float) -> int:
    """Whatever comes to mind, until the time is up; how often something was refused, which is no harm."""
    clock, refused = asyncio.get_running_loop().time, 0
    while clock() < until:
        try:
            await random.choice(PLAYERS)(table)
        except (Refused, InvalidInput):
            refused += 1
    return refused


async def test_nobody_ever_waits_in_a_circle(server: Server) -> None:
    # Given a store with few jobs, and many connections that do everything there is to them, in any order
    url = server.create_database("circle")
    async with table(url) as shared:
        until = asyncio.get_running_loop().time() + SECONDS
        await asyncio.gather(*(play(shared, until) for _ in range(CONNECTIONS)))
        # Then everything happened that can happen
        events = await shared.harness.events()
        verbs = {event.verb for event in events}
        assert verbs >= {
            *("submit", "claim", "complete", "fail", "release", "extend", "reschedule", "unblock"),
            *("cancel", "force_cancel", "archive", "complete_unheld", "reschedule_unheld"),
        }
        assert len(shared.ids) > 200, "too few jobs to prove anything"
        # And the history is lawful and the schema agrees with itself
        violations = await shared.harness.violations(acknowledged=shared.ids)
        assert not violations, "\n".join(violations[:20])
        assert disagreements(url) == []
        # And when all that is left has been done, nothing is left
        await _finish(shared.harness, url)
        assert disagreements(url) == []
    # And no two ever waited for each other
    await _wait_until_counted(url)
    assert "deadlock detected" not in (server.directory / "log").read_text()


async def _finish(harness: Harness, url: str) -> None:
    execute(url, "UPDATE pgwf.settings SET clock_offset = '61 seconds'")  # the leases that are left run out
    while True:
        await harness.sweep()
        claimed = await harness.claim(*NEEDS)
        for job in claimed:
            await harness.complete(job)
        if not claimed and not (await harness.sweep()).archived:
            break
    left = [job for job in await harness.jobs() if job.outcome is None]
    assert left == [], left


async def _wait_until_counted(url: str) -> None:
    """A connection counts what befell it when it ends."""
    while backends(url):
        await asyncio.sleep(0.01)
    count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert execute(url, count) == [(0,)]


async def states(harness: Harness) -> dict[State, int]:
    return (await harness.engine.count(Filter()))["work"]


async def test_a_singleton_key_is_leased_once_however_many_claim(server: Server) -> None:
    # Given many jobs of few keys
    url = server.create_database("singleton")
    async with table(url) as shared:
        harness, leased = shared.harness, dict.fromkeys(("a", "b", "c"), 0)
        for key in leased:
            await harness.submit_many(100, singleton_key=key)

        async def work(name: str) -> None:
            while claimed := await harness.claim(limit=3, worker=name):
                keys = [str(job.singleton_key) for job in claimed]
                for key in keys:
                    leased[key] += 1
                    assert leased[key] == 1, f"key {key} is leased twice"
                await asyncio.sleep(0)
                for job, key in zip(claimed, keys, strict=True):
                    leased[key] -= 1
                    await random.choice((harness.complete, harness.release))(job)

        # When many connections claim at once, then never two of a key are leased
        async with asyncio.timeout(60):
            while set(await states(harness)) != {State.COMPLETED}:
                await asyncio.gather(*(work(f"worker-{n}") for n in range(CONNECTIONS)))
        assert await states(harness) == {State.COMPLETED: 300}
        assert await harness.violations() == []
        assert disagreements(url) == []
    await _wait_until_counted(url)
