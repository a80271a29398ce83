"""Owners' accounts: an append-only ledger beside the balances, changed in the job's own transaction."""

from typing import TYPE_CHECKING

from rescind.engines.sqlite.rows import moment
from rescind.errors import IdempotencyConflict, InsufficientTokens, InvalidInput
from rescind.job import Job
from rescind.policy import Account, Charge

if TYPE_CHECKING:
    from rescind.engines.sqlite.transaction import Transaction


def account(tx: "Transaction", owner: str) -> Account:
    row = tx.execute("SELECT available, reserved FROM accounts WHERE owner = ?", (owner,)).fetchone()
    return Account(owner, *row) if row else Account(owner)


def credit(tx: "Transaction", owner: str, amount: int, by: str, key: str | None) -> Account:
    """Add to what an owner can spend; the same key twice adds once."""
    if amount <= 0:
        raise InvalidInput(f"amount must be above 0, not {amount}")
    if key is not None:
        row = tx.execute("SELECT owner, kind, amount FROM ledger WHERE key = ?", (key,)).fetchone()
        if row == (owner, "CREDIT", amount):
            return account(tx, owner)
        if row:
            raise IdempotencyConflict(key, "of another ledger entry")
    return _enter(tx, owner, "CREDIT", amount, by, key, available=amount)


def reserve(tx: "Transaction", job: Job) -> None:
    """Set the estimate of a metered job aside, or refuse the job."""
    assert job.owner is not None and job.estimate is not None
    available = account(tx, job.owner).available
    if available < job.estimate:
        raise InsufficientTokens(job.estimate, available)
    key = f"{job.need}:{job.id}:reserve"
    n = job.estimate
    _enter(tx, job.owner, "RESERVE", n, job.submitted_by, key, available=-n, reserved=n, job_id=job.id)


def settle(tx: "Transaction", charge: Charge, by: str) -> None:
    """End a reservation. The unique key makes a second settlement of the same job impossible."""
    kept, freed = charge.committed, charge.released
    if kept:
        _enter(tx, charge.owner, "COMMIT", kept, by, charge.key, reserved=-kept, job_id=charge.job_id)
    if freed:
        key = f"{charge.key}:remainder" if kept else charge.key
        _enter(
            tx,
            charge.owner,
            "RELEASE",
            freed,
            by,
            key,
            available=freed,
            reserved=-freed,
            job_id=charge.job_id,
        )


def _enter(
    tx: "Transaction",
    owner: str,
    kind: str,
    amount: int,
    by: str,
    key: str | None,
    *,
    available: int = 0,
    reserved: int = 0,
    job_id: str | None = None,
) -> Account:
    before = account(tx, owner)
    after = Account(owner, before.available + available, before.reserved + reserved)
    tx.execute(
        "INSERT OR REPLACE INTO accounts (owner, available, reserved) VALUES (?, ?, ?)",
        (owner, after.available, after.reserved),
    )
    tx.execute(
        "INSERT INTO ledger (owner, kind, amount, job_id, key, at, actor, available_after, reserved_after) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (owner, kind, amount, job_id, key, moment(tx.now), by, after.available, after.reserved),
    )
    return after
