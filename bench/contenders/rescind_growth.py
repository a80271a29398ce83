"""What one call costs the server in PostgreSQL stores of different sizes and shapes: its time, and the pages
it looked at. Each store is built once; a call is rolled back, so that the next one finds the same store."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from bench.contenders import database
from bench.contenders.place import Place
from bench.contenders.protocol import Answer, Measure, answer, sampled

NEED = "noop"
NEEDS = [f"noop-{number}" for number in range(100)]
FEW = 1_000  # jobs that may be claimed in every store, whatever else is in the way
_CHUNK = 10_000
_WAITING_CHUNK = 1_000  # what a batch that waits for others costs grows faster than the batch
_WARM_UP = 8  # calls that fill the new connection's caches and settle its plans

Connection = psycopg.Connection[tuple[Any, ...]]


def _submit(
    connection: Connection, count: int, fields: str, *, id: str = "gen_random_uuid()", chunk: int = _CHUNK
) -> None:
    """The id and the other fields of one job, in SQL; `n` counts the jobs."""
    statement = f"""
        SELECT pgwf.submit_jobs(json_agg(json_build_object('id', {id}, {fields})), 'bench')
        FROM generate_series(%s::INTEGER, %s) n"""
    for start in range(0, count, chunk):
        connection.execute(statement, (start, min(start + chunk, count) - 1))


def _ready(connection: Connection, size: int) -> None:
    _submit(connection, size - FEW, f"'need', '{NEED}'")


def _future(connection: Connection, size: int) -> None:
    _submit(connection, size, f"'need', '{NEED}', 'priority', 9, 'available_at', '2100-01-01T00:00:00Z'")


def _parked(connection: Connection, size: int) -> None:
    """Behind a job that is held by a worker for years."""
    fields = f"'need', '{NEED}', 'priority', 9, 'singleton_key', 'busy'"
    _submit(connection, 1, fields)
    connection.execute("SELECT pgwf.get_work('holder', %s, 100000000, 1)", ([NEED],))
    _submit(connection, size, fields)
    while connection.execute("SELECT more FROM pgwf.sweep('bench')").fetchone() == (True,):
        pass  # each batch asked for somebody to look whether the key is free


def _waiting(connection: Connection, size: int) -> None:
    """For one job, of a need that nobody serves."""
    _submit(connection, 1, "'need', 'first'")
    row = connection.execute("SELECT job_id FROM pgwf.jobs WHERE next_need = 'first'").fetchone()
    assert row is not None
    fields = f"'need', '{NEED}', 'priority', 9, 'wait_for', ARRAY['{row[0]}']"
    _submit(connection, size, fields, chunk=_WAITING_CHUNK)


def _other_need(connection: Connection, size: int) -> None:
    _submit(connection, size, "'need', 'other', 'priority', 9")


def _hundred_needs(connection: Connection, size: int) -> None:
    _submit(connection, size, "'need', 'noop-' || n %% 100")


def _dependents(connection: Connection, size: int) -> None:
    """As many jobs that can be claimed, each awaited by one other."""
    _submit(connection, size, "'need', 'leader'", id="'leader-' || n")
    fields = f"'need', '{NEED}', 'wait_for', ARRAY['leader-' || n]"
    _submit(connection, size, fields, chunk=_WAITING_CHUNK)


def _cancelled(connection: Connection, size: int) -> None:
    _submit(connection, size, "'need', 'cancelled'")
    connection.execute(
        "SELECT count(pgwf.cancel_job(job_id, 'bench')) FROM pgwf.jobs WHERE next_need = 'cancelled'"
    )


SHAPES: dict[str, Callable[[Connection, int], None]] = {
    "ready": _ready,
    "future": _future,
    "parked": _parked,
    "waiting": _waiting,
    "other_need": _other_need,
    "hundred_needs": _hundred_needs,
    "dependents": _dependents,
    "cancelled": _cancelled,
}


def build(
    place: Place, install: Callable[[str], None], *, stores: list[tuple[str, int]], archived: int
) -> Answer:
    """All the stores, two at a time: building them takes longer than measuring them."""
    begun = time.perf_counter()
    server = place.postgres
    database.once(server, "growth", lambda url: _archive(url, install, archived))
    for shape, size in stores:
        database.clone(server, "growth", _name(shape, size), large=archived > 100_000)
    with ThreadPoolExecutor(2) as pool:
        urls = [(server.database(_name(shape, size)), shape, size) for shape, size in stores]
        for filled in [pool.submit(_fill, *each) for each in urls]:
            filled.result()
    database.run(server.database("postgres"), "CHECKPOINT")
    return answer(time.perf_counter() - begun, sum(size for _, size in stores))


def _archive(url: str, install: Callable[[str], None], count: int) -> None:
    """One job that came to its end, and so many like it."""
    install(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pgwf.set_trace(FALSE)")
        _submit(connection, 1, f"'need', '{NEED}', 'input', json_build_object('n', 1)")
        _complete(connection)
        connection.execute(
            """
            INSERT INTO pgwf.jobs_archive
            SELECT copied.* FROM (
                SELECT one, jsonb_build_object('job_id', gen_random_uuid(), 'seq', nextval('pgwf.jobs_seq'))
                FROM pgwf.jobs_archive one CROSS JOIN generate_series(2, %s)) pair (one, other)
            CROSS JOIN LATERAL jsonb_populate_record(one, other) copied""",
            (count,),
        )
    database.settle(url)


def _complete(connection: Connection) -> None:
    job_id, lease_id = _claimed(connection, NEED)
    connection.execute("SELECT pgwf.complete_job(%s, %s, 'bench')", (job_id, lease_id))


def _claimed(connection: Connection, need: str) -> tuple[str, str]:
    row = connection.execute("SELECT job_id, lease_id FROM pgwf.get_work('bench', %s, 60, 1)", ([need],))
    found = row.fetchone()
    if found is None:
        raise RuntimeError(f"no job of need {need} could be claimed")
    return found[0], found[1]


def _fill(url: str, shape: str, size: int) -> None:
    """The crowd first: what is claimed must not owe its speed to having come earlier."""
    with psycopg.connect(url, autocommit=True) as connection:
        SHAPES[shape](connection, size)
        if shape != "hundred_needs":
            _submit(connection, FEW, f"'need', '{NEED}'")
    database.settle(url)


def _claim(limit: int, needs: list[str]) -> Callable[[Connection, int], tuple[str, tuple[Any, ...], int]]:
    return lambda _connection, _turn: (
        "SELECT * FROM pgwf.get_work('bench', %s, 60, %s)",
        (needs, limit),
        limit,
    )


def _complete_one(connection: Connection, _turn: int) -> tuple[str, tuple[Any, ...], int]:
    return "SELECT * FROM pgwf.complete_job(%s, %s, 'bench')", _claimed(connection, "leader"), 1


def _cancel_one(connection: Connection, turn: int) -> tuple[str, tuple[Any, ...], int]:
    row = connection.execute("SELECT job_id FROM pgwf.jobs ORDER BY seq DESC LIMIT 1 OFFSET %s", (turn,))
    return "SELECT * FROM pgwf.cancel_job(%s, 'bench')", row.fetchone() or (), 1


def _archive_some(_connection: Connection, _turn: int) -> tuple[str, tuple[Any, ...], int]:
    return "SELECT * FROM pgwf.archive_cancelled_jobs('bench', 500)", (), 1


CALLS = {
    "get_work(1)": _claim(1, [NEED]),
    "get_work(100)": _claim(100, [NEED]),
    "get_work(1), 100 needs": _claim(1, NEEDS),
    "get_work(100), 100 needs": _claim(100, NEEDS),
    "complete_job": _complete_one,
    "cancel_job": _cancel_one,
    "archive_cancelled_jobs(500)": _archive_some,
}


def cost(place: Place, *, call: str, shape: str, size: int, times: int) -> Answer:
    samples, buffers = [], []
    url = place.postgres.database(_name(shape, size))
    # What is rolled back stays behind as dead rows. They weigh most in a small store, which is what the large
    # ones are compared to: left there, they would hide growth.
    database.run(url, "VACUUM pgwf.jobs, pgwf.jobs_archive")
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        for turn in range(_WARM_UP + times):
            with connection.transaction(force_rollback=True):
                seconds, pages = _explained(connection, *CALLS[call](connection, turn))
            samples.append(seconds)
            buffers.append(pages)
    return sampled(samples[_WARM_UP:], buffers=statistics.median(buffers[_WARM_UP:]))


def _explained(
    connection: Connection, statement: str, parameters: tuple[Any, ...], rows: int
) -> tuple[float, int]:
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
    row = connection.execute(explain, parameters).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]
    top = plan["Plan"]
    if top["Actual Rows"] != rows:
        raise RuntimeError(f"{statement} gave {top['Actual Rows']} rows instead of {rows}")
    return plan["Execution Time"] / 1000, top["Shared Hit Blocks"] + top["Shared Read Blocks"]


def _name(shape: str, size: int) -> str:
    return f"growth_{shape}_{size}"


def measures(install: Callable[[str], None]) -> dict[str, Measure]:
    return {"build": lambda place, **parameters: build(place, install, **parameters), "cost": cost}
