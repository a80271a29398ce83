"""What a need's work may cost and how long it may wait: `Policy`, and the pure rules on it."""

from datetime import datetime, timedelta
from typing import Annotated

import msgspec

from rescind.errors import InvalidInput
from rescind.job import Billing, Job, Outcome

_AtLeastZero = Annotated[int, msgspec.Meta(ge=0)]
_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules for one need; the defaults are those of a need nobody wrote a policy for."""

    activation_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    commit_on_cancel: bool = True
    min_start_fee: _AtLeastZero = 0
    units_per_token: _AtLeastOne = 1000


NO_POLICY = Policy()
POLICIES = "policies"  # the document that holds them, by need


def check_policies(body: object) -> None:
    """A bad policy must not get into a store: every later move of its need would stumble over it."""
    try:
        msgspec.convert(body, dict[str, Policy])
    except msgspec.ValidationError as problem:
        raise InvalidInput(f"not a policy per need: {problem}") from problem


TIMED_OUT = "Job timed out before processing could start"


class Account(msgspec.Struct, frozen=True):
    """What an owner can still spend, and what running jobs have set aside."""

    owner: str
    available: int = 0
    reserved: int = 0


class Charge(msgspec.Struct, frozen=True):
    """How a reservation ends: `committed` is spent, the rest goes back. `key` makes it happen once."""

    owner: str
    job_id: str
    committed: int
    released: int
    key: str

    @property
    def billing(self) -> Billing:
        return Billing.COMMITTED if self.committed else Billing.RELEASED


def tokens_used(job: Job, policy: Policy) -> int:
    """Rounded up over the total, never a sum of roundings."""
    return -(-job.usage_units // policy.units_per_token)


def settle_cost(job: Job, outcome: Outcome, policy: Policy) -> Charge | None:
    """The charge that ends a job's reservation, or None when it holds none."""
    if job.billing is not Billing.RESERVED or job.estimate is None or job.owner is None:
        return None
    committed, verb = _amount(job, outcome, policy)
    key = f"{job.need}:{job.id}:{verb if committed else 'release'}"
    return Charge(job.owner, job.id, committed, job.estimate - committed, key)


def _amount(job: Job, outcome: Outcome, policy: Policy) -> tuple[int, str]:
    estimate = job.estimate or 0
    used = tokens_used(job, policy)
    if outcome is Outcome.COMPLETED:
        return min(used, estimate), "commit"
    if outcome is Outcome.CANCELLED and job.work_started_at and policy.commit_on_cancel:
        return min(max(used, policy.min_start_fee), estimate), "commit-cancel"
    return 0, "release"


def activation_is_late(job: Job, policy: Policy, now: datetime) -> bool:
    """True for a job that was free to start for longer than its policy allows and never did."""
    if policy.activation_timeout_seconds is None or job.attempt:
        return False
    free_since = max(job.submitted_at, job.available_at, job.unblocked_at or job.submitted_at)
    return now - free_since > timedelta(seconds=policy.activation_timeout_seconds)
