"""Looking without touching: lists, counts, histories, and whether there is anything to do."""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from rescind.engine import Document, Filter, Page, WorkerInfo, page_place
from rescind.engines.sqlite.rows import (
    EVENT_SELECTED,
    SELECTED,
    STATE_SQL,
    event_from_row,
    job_from_row,
    moment,
    state_in,
)
from rescind.job import Event, Job
from rescind.state import State


def get(connection: sqlite3.Connection, ids: Sequence[str], now: datetime) -> list[Job | None]:
    return [_get(connection, job_id, now) for job_id in ids]


def _get(connection: sqlite3.Connection, job_id: str, now: datetime) -> Job | None:
    row = connection.execute(f"SELECT {SELECTED} FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return job_from_row(row, now) if row else None


def jobs_page(
    connection: sqlite3.Connection, filter: Filter, limit: int, after: str | None, now: datetime
) -> Page:
    """Newest first. The page after this one begins beyond the last job's place in the order of submits."""
    where, parameters = _where(filter, now)
    if after is not None:
        where += " AND seq < :after"
        parameters["after"] = page_place(after)
    rows = connection.execute(
        f"SELECT seq, {SELECTED} FROM jobs WHERE {where} ORDER BY seq DESC LIMIT :limit",
        {**parameters, "limit": limit + 1},
    ).fetchall()
    jobs = [job_from_row(row[1:], now) for row in rows[:limit]]
    return Page(jobs, str(rows[limit - 1][0]) if len(rows) > limit else None)


def count(connection: sqlite3.Connection, filter: Filter, now: datetime) -> dict[str, dict[State, int]]:
    where, parameters = _where(filter, now)
    rows = connection.execute(
        f"SELECT need, {STATE_SQL} AS state, count(*) FROM jobs WHERE {where} GROUP BY 1, 2", parameters
    )
    counts: dict[str, dict[State, int]] = defaultdict(dict)
    for need, state, number in rows:
        counts[need][State(state)] = number
    return dict(counts)


def _where(filter: Filter, now: datetime) -> tuple[str, dict[str, Any]]:
    where, parameters = ["1"], {"now": moment(now)}
    if filter.need is not None:
        where.append("need = :need")
        parameters["need"] = filter.need
    if filter.owner is not None:
        where.append("owner = :owner")
        parameters["owner"] = filter.owner
    if filter.states:
        where.append(state_in(filter.states))
    if filter.purged is not None:
        where.append("purged_at IS NOT NULL" if filter.purged else "purged_at IS NULL")
    return " AND ".join(where), parameters


def history(connection: sqlite3.Connection, job_id: str) -> list[Event]:
    query = (
        f"SELECT {EVENT_SELECTED} FROM events e JOIN jobs j ON j.seq = e.job WHERE j.id = ? ORDER BY e.seq"
    )
    return [event_from_row(row) for row in connection.execute(query, (job_id,))]


def changes(connection: sqlite3.Connection, after: int, limit: int) -> list[Event]:
    query = (
        f"SELECT {EVENT_SELECTED} FROM events e CROSS JOIN jobs j ON j.seq = e.job "
        "WHERE e.seq > ? ORDER BY e.seq LIMIT ?"
    )
    return [event_from_row(row) for row in connection.execute(query, (after, limit))]


def workers(connection: sqlite3.Connection) -> list[WorkerInfo]:
    query = "SELECT id, needs, slots, host, pid, started_at, seen_at FROM workers ORDER BY id"
    return [
        WorkerInfo(
            id=row[0],
            needs=tuple(msgspec.json.decode(row[1])),
            slots=row[2],
            host=row[3],
            pid=row[4],
            started_at=datetime.fromisoformat(row[5]),
            seen_at=datetime.fromisoformat(row[6]),
        )
        for row in connection.execute(query)
    ]


def document(connection: sqlite3.Connection, name: str) -> Document:
    row = connection.execute("SELECT revision, body FROM documents WHERE name = ?", (name,)).fetchone()
    return Document(name, row[0], msgspec.json.decode(row[1])) if row else Document(name, 0)
