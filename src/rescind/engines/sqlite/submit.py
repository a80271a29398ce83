"""Submitting: all of a batch or none of it."""

import sqlite3
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

from rescind import moves
from rescind.engines.sqlite import dependency, ledger, singleton
from rescind.engines.sqlite.rows import moment, to_json
from rescind.engines.sqlite.transaction import Transaction, stage_of
from rescind.errors import DependencyCycle, DuplicateJob, IdempotencyConflict
from rescind.job import Job
from rescind.moves import Move
from rescind.spec import JobSpec

_INSERT: Final = """
    INSERT INTO jobs (seq, id, need, input, owner, priority, singleton_key, wait_for, on_dependency_cancelled,
        on_dependency_failed, max_attempts, idempotency_key, body_hash, submitted_at, submitted_by,
        available_at, estimate, billing, stage)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def submit(tx: Transaction, specs: Sequence[JobSpec]) -> list[Job]:
    fresh, answers = _split(tx, specs)
    _refuse_cycles(fresh)
    made_by = {spec.id: moves.submit(spec, tx.now) for spec in fresh}
    _insert(tx, fresh, list(made_by.values()))
    made = {job_id: _settle_in(tx, move.job) for job_id, move in made_by.items()}
    return [made.get(job_id) or tx.get(job_id) for job_id in answers]


def _split(tx: Transaction, specs: Sequence[JobSpec]) -> tuple[list[JobSpec], list[str]]:
    """The specs that make new jobs, and for each spec the id of the job that answers it."""
    fresh: list[JobSpec] = []
    answers: list[str] = []
    seen: dict[tuple[str | None, str], tuple[str, str | None]] = {}
    ids: set[str] = set()
    for spec in specs:
        if spec.idempotency_key is not None:
            known = seen.get((spec.owner, spec.idempotency_key)) or _known(tx, spec)
            if known is not None:
                if known[1] != spec.body_hash:
                    raise IdempotencyConflict(spec.idempotency_key, known[0])
                answers.append(known[0])
                continue
            seen[spec.owner, spec.idempotency_key] = (spec.id, spec.body_hash)
        if spec.id in ids:
            raise DuplicateJob(spec.id)
        ids.add(spec.id)
        fresh.append(spec)
        answers.append(spec.id)
    return fresh, answers


def _known(tx: Transaction, spec: JobSpec) -> tuple[str, str | None] | None:
    row: tuple[str, str | None] | None = tx.execute(
        "SELECT id, body_hash FROM jobs "
        "WHERE ifnull(owner, '') = ? AND idempotency_key = ? AND idempotency_key IS NOT NULL",
        (spec.owner or "", spec.idempotency_key),
    ).fetchone()
    return row


def _refuse_cycles(specs: Sequence[JobSpec]) -> None:
    """Jobs that exist cannot wait for new ones, so a cycle must lie within the batch."""
    graph = {spec.id: spec.wait_for for spec in specs if spec.wait_for}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as problem:
        raise DependencyCycle(problem.args[1][::-1]) from None


def _insert(tx: Transaction, specs: Sequence[JobSpec], made: Sequence[Move]) -> None:
    first = (tx.execute("SELECT max(seq) FROM jobs").fetchone()[0] or 0) + 1
    rows = [
        (seq, *_row(move.job, spec.body))
        for seq, (spec, move) in enumerate(zip(specs, made, strict=True), first)
    ]
    try:
        tx.connection.executemany(_INSERT, rows)
    except sqlite3.IntegrityError:
        raise DuplicateJob(next(spec.id for spec in specs if _taken(tx, spec.id, first))) from None
    tx.created(first, made)


def _taken(tx: Transaction, job_id: str, first: int) -> bool:
    query = "SELECT 1 FROM jobs WHERE id = ? AND seq < ?"
    return tx.execute(query, (job_id, first)).fetchone() is not None


def _row(job: Job, body: bytes) -> tuple[object, ...]:
    return (
        job.id,
        job.need,
        body.decode(),
        job.owner,
        job.priority,
        job.singleton_key,
        to_json(job.wait_for) if job.wait_for else "[]",
        job.on_dependency_cancelled,
        job.on_dependency_failed,
        job.max_attempts,
        job.idempotency_key,
        job.body_hash,
        moment(job.submitted_at),
        job.submitted_by,
        moment(job.available_at),
        job.estimate,
        job.billing.value,
        stage_of(job),
    )


def _settle_in(tx: Transaction, job: Job) -> Job:
    """What a new job needs beyond its row: its reservation, its place among waiters and singletons."""
    if job.estimate is not None:
        ledger.reserve(tx, job)
    if job.singleton_key is not None:
        singleton.elect(tx, job.singleton_key)
    return dependency.settle_in(tx, job) if job.wait_for else job
