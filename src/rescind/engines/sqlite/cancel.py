"""Cancelling one, many, or all of a kind, and saying what a cancel would do without doing it."""

from typing import Any

from rescind import moves
from rescind.engine import Selector
from rescind.engines.sqlite.rows import moment
from rescind.engines.sqlite.transaction import Transaction
from rescind.errors import JobNotFoundError, RescindError
from rescind.job import CancelOutcome, CancelRequest, CancelResult, Job


def cancel(
    tx: Transaction, selector: Selector, request: CancelRequest, limit: int, after: str, dry_run: bool
) -> list[CancelResult]:
    if selector.ids is not None:  # each is read when its turn comes: an id may be named twice
        return [_cancel(tx, job_id, tx.find(job_id), request, dry_run) for job_id in selector.ids]
    return [_cancel(tx, job.id, job, request, dry_run) for job in _matching(tx, selector, limit, after)]


def _cancel(
    tx: Transaction, job_id: str, job: Job | None, request: CancelRequest, dry_run: bool
) -> CancelResult:
    if job is None:
        return CancelResult(job_id, CancelOutcome.NOT_FOUND, False, None, JobNotFoundError(job_id))
    try:
        move = moves.cancel(job, request, tx.now, tx.policy(job.need))
    except RescindError as problem:
        return CancelResult(job_id, CancelOutcome.INVALID_STATUS, False, job, problem)
    if not dry_run:
        tx.apply(move)
    outcome = CancelOutcome.SUCCESS if move.changed else CancelOutcome.ALREADY_CANCELLED
    return CancelResult(job_id, outcome, move.changed, move.job)


def _matching(tx: Transaction, selector: Selector, limit: int, after: str) -> list[Job]:
    """Unfinished jobs of a need or an owner that nobody has cancelled yet, the longest available first."""
    where = ["outcome IS NULL", "cancel_requested_at IS NULL"]
    parameters: list[Any] = []
    for column, value in (("need", selector.need), ("owner", selector.owner)):
        if value is not None:
            where.append(f"{column} = ?")
            parameters.append(value)
    if (
        not selector.running
    ):  # a lapsed lease is nobody's: unless it was the last attempt, the job waits again
        where.append(
            "(lease_expires_at IS NULL"
            " OR lease_expires_at <= ? AND (max_attempts IS NULL OR failures + 1 < max_attempts))"
        )
        parameters.append(moment(tx.now))
    if after:
        where.append("(available_at, id) > (SELECT available_at, id FROM jobs WHERE id = ?)")
        parameters.append(after)
    return tx.jobs(f"{' AND '.join(where)} ORDER BY available_at, id LIMIT ?", (*parameters, limit))
