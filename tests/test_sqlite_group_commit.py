"""How the SQLite engine writes and searches: callers share commits, refusals undo only themselves, and no
query walks through the jobs."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from rescind.engine import Document, Selector
from rescind.engines.sqlite.committer import Committer
from rescind.engines.sqlite.engine import SQLiteEngine
from rescind.engines.sqlite.transaction import Transaction
from rescind.errors import DuplicateJob
from rescind.job import Job
from rescind.lifecycle import Verb
from rescind.testing import Harness
from rescind.testing.engines import SQLiteFile
from rescind.testing.situation import WAYS


@asynccontextmanager
async def on_a_file(directory: Path) -> AsyncIterator[Harness]:
    harness = Harness(SQLiteFile(directory))
    await harness.open()
    try:
        yield harness
    finally:
        await harness.close()


def _committer(harness: Harness) -> Committer:
    assert isinstance(harness.engine, SQLiteEngine) and harness.engine._committer is not None
    return harness.engine._committer


@contextmanager
def traced(harness: Harness) -> Iterator[list[str]]:
    """Every statement the writer runs meanwhile, with its values in place."""
    statements: list[str] = []
    connection = _committer(harness)._connection
    connection.set_trace_callback(statements.append)
    try:
        yield statements
    finally:
        connection.set_trace_callback(None)


@asynccontextmanager
async def held_up(harness: Harness) -> AsyncIterator[None]:
    """The writer is busy with somebody until the block ends: all who call inside it must queue."""
    begun, go_on = threading.Event(), threading.Event()

    def busy(_: Transaction) -> None:
        begun.set()
        assert go_on.wait(30)

    somebody = asyncio.ensure_future(_committer(harness).run(busy))
    await asyncio.to_thread(begun.wait, 30)
    try:
        yield
    finally:
        go_on.set()
        await somebody


async def _queued(*calls: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    """Start them, and return once each has handed its request over."""
    futures: list[asyncio.Future[Any]] = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    return futures


def _commits(statements: list[str]) -> int:
    return sum(statement == "COMMIT" for statement in statements)


async def test_callers_that_come_while_the_writer_is_busy_share_one_commit(tmp_path: Path) -> None:
    async with on_a_file(tmp_path) as harness:
        with traced(harness) as statements:
            # Given a busy writer
            async with held_up(harness):
                # When fifty callers arrive
                waiting = await _queued(*(harness.submit() for _ in range(50)))
            jobs: list[Job] = await asyncio.gather(*waiting)
        # Then one commit serves them all
        assert _commits(statements) == 1
        assert len({job.id for job in jobs}) == len(await harness.jobs()) == 50


async def test_a_caller_alone_waits_for_nobody(tmp_path: Path) -> None:
    async with on_a_file(tmp_path) as harness:
        with traced(harness) as statements:
            for _ in range(3):
                await harness.submit()
        assert _commits(statements) == 3


async def test_one_commit_serves_a_bounded_number_so_that_other_processes_get_their_turn(
    tmp_path: Path,
) -> None:
    async with on_a_file(tmp_path) as harness:
        with traced(harness) as statements:
            async with held_up(harness):
                waiting = await _queued(*(harness.submit() for _ in range(600)))
            await asyncio.gather(*waiting)
        assert 3 <= _commits(statements) <= 5


async def test_a_refused_caller_in_a_shared_transaction_undoes_only_itself(tmp_path: Path) -> None:
    async with on_a_file(tmp_path) as harness:
        await harness.submit(id="taken")
        async with held_up(harness):
            batch = [harness.spec(id="half-done"), harness.spec(id="taken")]
            waiting = await _queued(
                harness.submit(id="before"), harness.engine.submit(batch), harness.submit(id="after")
            )
        before, refused, after = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(before, Job) and isinstance(refused, DuplicateJob) and isinstance(after, Job)
        assert {job.id for job in await harness.jobs()} == {"taken", "before", "after"}
        assert await harness.violations() == []


async def test_a_caller_whose_work_breaks_undoes_only_itself(tmp_path: Path) -> None:
    def breaks(tx: Transaction) -> None:
        tx.execute("DELETE FROM jobs")
        raise ZeroDivisionError

    async with on_a_file(tmp_path) as harness:
        await harness.submit(id="there")
        async with held_up(harness):
            waiting = await _queued(
                harness.submit(id="before"), _committer(harness).run(breaks), harness.submit(id="after")
            )
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(results[1], ZeroDivisionError)
        assert {job.id for job in await harness.jobs()} == {"there", "before", "after"}


async def test_later_callers_of_a_shared_transaction_see_what_earlier_ones_did(tmp_path: Path) -> None:
    async with on_a_file(tmp_path) as harness:
        job = await harness.submit()
        async with held_up(harness):
            waiting = await _queued(*(harness.cancel(job.id, by=name) for name in ("ann", "bob")))
        first, second = await asyncio.gather(*waiting)
        assert (first.changed, second.changed) == (True, False)
        assert second.job.cancelled_by == "ann"


async def test_a_caller_that_goes_away_disturbs_nobody(tmp_path: Path) -> None:
    async with on_a_file(tmp_path) as harness:
        async with held_up(harness):
            gone, stays = await _queued(harness.submit(id="gone"), harness.submit(id="stays"))
            gone.cancel()
        assert (await stays).id == "stays"
        assert {job.id for job in await harness.jobs()} == {"gone", "stays"}


async def test_closing_serves_whoever_asked_before(tmp_path: Path) -> None:
    async with on_a_file(tmp_path) as harness:
        async with held_up(harness):
            waiting = await _queued(*(harness.submit() for _ in range(5)))
            closing = asyncio.ensure_future(harness.engine.close())
            await asyncio.sleep(0)
        await asyncio.gather(*waiting, closing)
        again = await harness.peer()
        assert len(await again.jobs()) == 5


# Plans

_WALK: Final = re.compile(r"SCAN (jobs|j|events|e|ledger|waiters)\b(?!.* USING )")
_READS: Final = ("SELECT", "UPDATE", "DELETE", "INSERT")


def _plans(harness: Harness, statements: list[str]) -> dict[str, str]:
    """How SQLite goes about each statement that reads."""
    connection = _committer(harness)._connection
    plans = {}
    for statement in {each.strip() for each in statements}:
        if statement.startswith(_READS):
            rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
            plans[statement] = "\n".join(row[3] for row in rows)
    return plans


async def _everything(harness: Harness) -> None:
    """Each verb by each road, so that every statement of the engine has run."""
    for roads in WAYS.values():
        for road in roads.values():
            await road(harness)
            for job in await harness.claim():
                await harness.complete(job)
    await harness.credit("ann", 100)
    held = await harness.running(owner="ann", estimate=10, singleton_key="printer", idempotency_key="k")
    await harness.submit(singleton_key="printer", owner="ann")
    await harness.reschedule_unheld((await harness.submit()).id)
    await harness.cancel(held.id, force=True)
    await harness.cancel_many(Selector(need="work"))
    await harness.cancel_many(Selector(owner="ann", running=True), after=held.id)
    await harness.sweep()
    await harness.advance(31 * 86_400)
    await harness.sweep()


async def test_no_statement_of_the_writer_walks_through_a_whole_table(tmp_path: Path) -> None:
    async with on_a_file(tmp_path) as harness:
        with traced(harness) as statements:
            await _everything(harness)
        verbs = {event.verb for event in await harness.events()}
        assert verbs == set(Verb), "some verb was not tried"
        walks = {sql: plan for sql, plan in _plans(harness, statements).items() if _WALK.search(plan)}
        assert walks == {}


@pytest.fixture
def plans(runner: asyncio.Runner, tmp_path: Path) -> dict[str, str]:
    """How SQLite goes about every statement of the writer."""

    async def collect() -> dict[str, str]:
        async with on_a_file(tmp_path) as harness:
            with traced(harness) as statements:
                await _everything(harness)
            return {" ".join(sql.split()): plan for sql, plan in _plans(harness, statements).items()}

    return runner.run(collect())


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (r"stage = 'ready' AND need = 'work'", "jobs_ready"),
        (r"stage = 'leased' AND lease_expires_at <=", "jobs_leased"),
        (r"stage = 'future' AND available_at <=", "jobs_future"),
        (r"SELECT .* stage = 'cancelled'", "jobs_cancelled"),
        (r"stage = 'done' AND purged_at IS NULL", "jobs_retained"),
        (r"WHERE singleton_key = .* stage = 'ready'", "jobs_singleton_front"),
        (r"WHERE singleton_key = .* stage = 'leased'", "jobs_singleton_leased"),
        (r"need > .* AND stage = 'parked' ORDER BY need", "jobs_singleton_parked"),
        (r"stage = 'parked' ORDER BY priority", "jobs_singleton_parked"),
        (r"cancel_requested_at IS NULL AND need = 'work'", "jobs_live"),
        (r"cancel_requested_at IS NULL AND owner = 'ann'", "jobs_by_owner"),
        (r"AND stage IN \('ready', 'parked'\) ORDER BY", "jobs_live"),
        (r"AND idempotency_key = 'k'", "jobs_idempotency"),
        (r"idempotency_key IS NOT NULL AND submitted_at <", "jobs_idempotency_age"),
        (r"DELETE FROM waiters WHERE dependency IN", "PRIMARY KEY"),
    ],
)
def test_each_search_goes_by_its_index(plans: dict[str, str], statement: str, index: str) -> None:
    meant = {sql: plan for sql, plan in plans.items() if re.search(statement, sql)}
    assert meant, "no such statement was run"
    for sql, plan in meant.items():
        assert f"INDEX {index}" in plan or f"USING {index}" in plan, f"{sql}\n{plan}"


@pytest.mark.parametrize(
    "statement",
    [
        r"stage = 'ready' AND need = 'work'",
        r"stage = 'parked' ORDER BY",
        r"stage = 'leased' AND",
        "stage = 'future'",
    ],
)
def test_the_order_comes_from_the_index_and_not_from_sorting(plans: dict[str, str], statement: str) -> None:
    for sql, plan in plans.items():
        if re.search(statement, sql):
            assert "TEMP B-TREE" not in plan, f"{sql}\n{plan}"


async def test_a_claim_that_finds_nothing_writes_nothing(tmp_path: Path) -> None:
    async with on_a_file(tmp_path) as harness:
        await harness.submit("elsewhere")
        await harness.engine.document("notes", Document("notes", 0, None))
        with traced(harness) as statements:
            for _ in range(5):
                assert await harness.claim() == []
        assert statements == []
