"""Submitting although connections break: a lost answer is asked for again, and no job is made twice."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg

from rescind import moves, payload
from rescind.engines.postgres.refusal import AWAY
from rescind.engines.postgres.rows import job_from_row, specs_to_json
from rescind.engines.postgres.server import Server
from rescind.job import Job
from rescind.spec import JobSpec

SUBMIT: Final = "SELECT * FROM pgwf.submit_jobs($1::json)"
_BRIEF: Final = "SELECT created_at FROM pgwf.submit_jobs($1::json, p_brief => true)"
GET: Final = "SELECT * FROM pgwf.get_jobs($1)"
_NOW: Final = "SELECT pgwf._now() AS now"
_PAUSES: Final = (0.02, 0.2)  # before the second and the third try
_MARGIN: Final = timedelta(seconds=1)


async def submit(server: Server, specs: Sequence[JobSpec]) -> list[Job]:
    """All or none. Whether a try whose answer was lost has come in, the next one finds out."""
    with server.translated():
        if not all(_is_plain(spec) for spec in specs):
            return [job_from_row(row) for row in await _submit(server, specs, SUBMIT)]
        rows = await _submit(server, specs, _BRIEF)
    if rows[0].get("job_id") is not None:  # found to have come in before
        return [job_from_row(row) for row in rows]
    return [moves.submit(spec, rows[0]["created_at"]).job for spec in specs]


def _is_plain(spec: JobSpec) -> bool:
    """A job that is certain to be what was asked for, so that only the time is left to be told."""
    return spec.idempotency_key is None and not spec.wait_for and not spec.delay_seconds


async def _submit(server: Server, specs: Sequence[JobSpec], sql: str) -> Sequence[Any]:
    body, began = specs_to_json(specs), server.clock.monotonic()
    try:
        return await server.attempt(sql, body)
    except TimeoutError:
        raise  # it would time out again
    except AWAY as problem:
        lost: Exception = problem
    for pause in _PAUSES:
        await server.clock.sleep(pause)
        try:
            return await server.attempt(sql, body)
        except AWAY as problem:
            lost = problem
        except asyncpg.PostgresError:  # as a duplicate, perhaps of itself
            if (rows := await _came_in(server, specs, began)) is not None:
                return rows
            raise
    raise lost


async def _came_in(server: Server, specs: Sequence[JobSpec], began: float) -> Sequence[Any] | None:
    """The jobs of a batch whose answer was lost; None when it had not come in. A batch comes in as a whole,
    so its specs without an idempotency key tell; those with one may have got another job that has the key,
    and are told which when they are submitted again."""
    named = [spec for spec in specs if spec.idempotency_key is None]
    since = await _server_time(server) - timedelta(seconds=server.clock.monotonic() - began) - _MARGIN
    stored = {row["job_id"]: row for row in await server.attempt(GET, [spec.id for spec in named])}
    if not named or not all(_is_ours(spec, stored.get(spec.id), since) for spec in named):
        return None
    keyed = [spec for spec in specs if spec.idempotency_key is not None]
    rows = iter(await server.attempt(SUBMIT, specs_to_json(keyed)) if keyed else ())
    return [stored[spec.id] if spec.idempotency_key is None else next(rows) for spec in specs]


async def _server_time(server: Server) -> datetime:
    now: datetime = (await server.attempt(_NOW))[0]["now"]
    return now


def _is_ours(spec: JobSpec, row: Any | None, since: datetime) -> bool:
    """Said by the same actor in the same words, after we began. (Its need may have changed already.)"""
    return (
        row is not None
        and row["created_at"] >= since
        and row["submitted_by"] == spec.by
        and payload.decode(row["payload"]) == payload.decode(spec.body)
    )
