"""Cancelling one, many, or all of a kind, and saying what a cancel would do without doing it."""

from rescind import moves
from rescind.engine import Selector
from rescind.engines.sqlite.rows import moment, state_in
from rescind.engines.sqlite.transaction import Transaction
from rescind.errors import JobNotFoundError, RescindError
from rescind.job import CancelOutcome, CancelRequest, CancelResult, Job
from rescind.state import PENDING_STATES, State


def cancel(
    tx: Transaction, selector: Selector, request: CancelRequest, limit: int, after: str, dry_run: bool
) -> list[CancelResult]:
    if selector.ids is not None:  # each is read when its turn comes: an id may be named twice
        return [_cancel(tx, job_id, tx.find(job_id), request, dry_run) for job_id in selector.ids]
    return [
        _cancel(tx, job.id, job, request, dry_run) for job in _matching(tx, selector, request, limit, after)
    ]


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


def _matching(
    tx: Transaction, selector: Selector, request: CancelRequest, limit: int, after: str
) -> list[Job]:
    """The jobs of a need or an owner that this request would change, the longest available first."""
    states = PENDING_STATES | {State.ACTIVE} if selector.running else PENDING_STATES
    where = ["outcome IS NULL", state_in(states)]
    if not request.force:
        where.append("cancel_requested_at IS NULL")
    if selector.need is not None:
        where.append("need = :need")
    if selector.owner is not None:
        where.append("owner = :owner")
    if after:
        where.append("(available_at, id) > (SELECT available_at, id FROM jobs WHERE id = :after)")
    parameters = {"need": selector.need, "owner": selector.owner, "after": after, "limit": limit}
    return tx.jobs(
        f"{' AND '.join(where)} ORDER BY available_at, id LIMIT :limit", {**parameters, "now": moment(tx.now)}
    )
