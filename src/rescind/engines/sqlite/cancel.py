"""Cancelling one, many, or all of a kind, and saying what a cancel would do without doing it."""

from collections.abc import Sequence

import msgspec

from rescind import moves
from rescind.engine import Selector
from rescind.engines.sqlite.rows import moment, state_in
from rescind.engines.sqlite.transaction import Transaction
from rescind.errors import JobNotFoundError, RescindError
from rescind.job import CancelOutcome, CancelRequest, CancelResult, Job
from rescind.moves import Move
from rescind.state import PENDING_STATES, State


def cancel(
    tx: Transaction, selector: Selector, request: CancelRequest, limit: int, after: str
) -> list[CancelResult]:
    decided = _decide_all(tx, selector, request, limit, after)
    tx.apply_all([move for move in decided.values() if isinstance(move, Move)])
    return _results(selector, decided)


def plan(
    tx: Transaction, selector: Selector, request: CancelRequest, limit: int, after: str
) -> list[CancelResult]:
    """What `cancel` would answer, with nothing written."""
    return _results(selector, _decide_all(tx, selector, request, limit, after))


def _decide_all(
    tx: Transaction, selector: Selector, request: CancelRequest, limit: int, after: str
) -> dict[str, Move | CancelResult]:
    if selector.ids is not None:
        jobs = tx.find_all(selector.ids)
        return {job_id: _decide(tx, job_id, jobs.get(job_id), request) for job_id in selector.ids}
    found = _matching(tx, selector, request, limit, after)
    return {job.id: _decide(tx, job.id, job, request) for job in found}


def _results(selector: Selector, decided: dict[str, Move | CancelResult]) -> list[CancelResult]:
    results = {job_id: _result(job_id, each) for job_id, each in decided.items()}
    return list(results.values()) if selector.ids is None else _in_order(selector.ids, results)


def _in_order(ids: Sequence[str], results: dict[str, CancelResult]) -> list[CancelResult]:
    """An answer for each id, though one be named twice: only the first time did it change anything."""
    answers = []
    for job_id in ids:
        answers.append(results[job_id])
        if results[job_id].changed:
            again = {"changed": False, "outcome": CancelOutcome.ALREADY_CANCELLED}
            results[job_id] = msgspec.structs.replace(results[job_id], **again)
    return answers


def _decide(tx: Transaction, job_id: str, job: Job | None, request: CancelRequest) -> Move | CancelResult:
    if job is None:
        return CancelResult(job_id, CancelOutcome.NOT_FOUND, False, None, JobNotFoundError(job_id))
    try:
        return moves.cancel(job, request, tx.now, tx.policy(job))
    except RescindError as problem:
        return CancelResult(job_id, CancelOutcome.INVALID_STATUS, False, job, problem)


def _result(job_id: str, decided: Move | CancelResult) -> CancelResult:
    if isinstance(decided, CancelResult):
        return decided
    outcome = CancelOutcome.SUCCESS if decided.changed else CancelOutcome.ALREADY_CANCELLED
    return CancelResult(job_id, outcome, decided.changed, decided.job)


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
