"""The moves as pure functions: whatever is tried in whatever order, the promises hold."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rescind import moves
from rescind.errors import CannotCancelError, LeaseLost, NotAvailable, WrongState
from rescind.job import Billing, CancelRequest, Event, Job, Outcome
from rescind.lease import Acknowledge, Complete, Fail, Lease, Release, Report, Reschedule, Rung, Target
from rescind.lifecycle import snapshot, state_of
from rescind.policy import Policy
from rescind.spec import JobSpec, spec
from rescind.state import State
from rescind.testing.invariants import Run, check_all

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_SECONDS = 60.0


def _spec(**options: Any) -> JobSpec:
    return spec("work", {"page": 7}, **{"id": "j", "by": "ann", **options})


def _submitted(**options: Any) -> Job:
    return moves.submit(_spec(**options), START).job


def _claimed(**options: Any) -> Job:
    return moves.claim(_submitted(**options), "w", "lease-1", LEASE_SECONDS, START).job


def _request(**options: Any) -> CancelRequest:
    return CancelRequest(**{"by": "ann", "reason": "typo", **options})


class Life(RuleBasedStateMachine):
    """One job, anything done to it at any time; refusals are welcome, broken promises are not."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.job: Job
        self.events: list[Event] = []
        self.leases: list[Lease] = []
        self.claims = 0

    @initialize(
        max_attempts=st.sampled_from([None, 1, 2, 3]),
        delay=st.sampled_from([0, 30]),
        wait_for=st.sampled_from([(), ("a",), ("a", "b")]),
        metered=st.booleans(),
        on_cancelled=st.sampled_from(["release", "cancel"]),
        on_failed=st.sampled_from(["release", "cancel"]),
    )
    def submit(
        self,
        max_attempts: int | None,
        delay: float,
        wait_for: tuple[str, ...],
        metered: bool,
        on_cancelled: Any,
        on_failed: Any,
    ) -> None:
        move = moves.submit(
            _spec(
                max_attempts=max_attempts,
                delay_seconds=delay,
                wait_for=wait_for,
                owner="ann",
                estimate=10 if metered else None,
                on_dependency_cancelled=on_cancelled,
                on_dependency_failed=on_failed,
            ),
            self.now,
        )
        self._take(move)

    def _take(self, move: moves.Move) -> None:
        before = getattr(self, "job", None)
        if before is not None and before.outcome is not None and move.changed:
            assert move.event is not None and move.event.verb == "purge"
        self.job = move.job
        if move.event is not None:
            self.events.append(msgspec.structs.replace(move.event, seq=len(self.events) + 1))

    def _try(self, make: Any, *arguments: Any) -> None:
        before = self.job
        try:
            move = make(*arguments)
        except WrongState as problem:
            assert problem.state is state_of(before, self.now)  # noqa: PT017 - a refusal is one of two good ends
            return
        self._take(move)

    @rule(seconds=st.sampled_from([0.5, 29, 31, 61, 3600]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(worker=st.sampled_from(["w1", "w2"]))
    def claim(self, worker: str) -> None:
        claims = self.job.attempt
        self._try(moves.claim, self.job, worker, f"lease-{self.claims}", LEASE_SECONDS, self.now)
        if self.job.attempt > claims:
            self.claims += 1
            self.leases.append(self.job.lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), units=st.integers(0, 20_000), started=st.booleans())
    def extend(self, data: st.DataObject, units: int, started: bool) -> None:
        report = Report(lease=data.draw(st.sampled_from(self.leases)), units=units, work_started=started)
        self._try(moves.extend, self.job, report, LEASE_SECONDS, self.now)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(), kind=st.sampled_from(["complete", "retry", "fail", "move", "release", "acknowledge"])
    )
    def settle(self, data: st.DataObject, kind: str) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        current = self.job.lease_id == lease.lease_id and state_of(self.job, self.now) is State.ACTIVE
        before = len(self.events)
        settlement = {
            "complete": Complete(lease=lease, output=b"1", units=5000, work_started=True),
            "retry": Fail(lease=lease, error="broke", retry_seconds=10),
            "fail": Fail(lease=lease, error="broke", retry_seconds=None),
            "move": Reschedule(lease=lease, to=Target(need="next")),
            "release": Release(lease=lease),
            "acknowledge": Acknowledge(lease=lease, rung=Rung.FLAG),
        }[kind]
        self._try(moves.settle, self.job, settlement, self.now)
        assert current or len(self.events) == before, "a lease that is not current moved the job"

    @rule(by=st.sampled_from(["ann", "bob"]), force=st.booleans(), running_only=st.booleans())
    def cancel(self, by: str, force: bool, running_only: bool) -> None:
        request = CancelRequest(by=by, reason=by, force=force, running_only=running_only)
        self._try(moves.cancel, self.job, request, self.now)

    @rule()
    def complete_unheld(self) -> None:
        self._try(moves.complete_unheld, self.job, "op", b"2", self.now)

    @rule()
    def reschedule_unheld(self) -> None:
        self._try(moves.reschedule_unheld, self.job, "op", Target(need="next"), self.now)

    @precondition(lambda self: self.job.wait_for)
    @rule(outcome=st.sampled_from(Outcome))
    def a_dependency_ends(self, outcome: Outcome) -> None:
        self._take(moves.unblock(self.job, self.job.wait_for[0], outcome, self.now))

    @precondition(lambda self: self.job.outcome is None)
    @rule()
    def sweep(self) -> None:
        if self.job.lease_id is not None:
            self._take(moves.lapse(self.job, self.now))
        elif self.job.cancel_requested_at is not None:
            self._take(moves.archive(self.job, self.now))

    @precondition(lambda self: self.job.outcome is not None and self.job.purged_at is None)
    @rule()
    def purge(self) -> None:
        self._take(moves.purge(self.job, self.now))

    @invariant()
    def the_history_is_lawful_and_tells_the_record(self) -> None:
        if not self.events:
            return
        own = [
            each
            for each in check_all(Run(events=self.events, jobs=[self.job]))
            if "has not ended" not in each
        ]
        assert own == []  # what it waited for is no part of this story

    @invariant()
    def attempts_are_claims(self) -> None:
        if self.events:
            assert self.job.attempt == self.claims

    @invariant()
    def a_settled_reservation_stays_settled(self) -> None:
        if self.events and self.job.outcome is not None:
            assert self.job.billing is not Billing.RESERVED


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@given(st.lists(st.sampled_from(["ann", "bob", "cy"]), min_size=1, max_size=5), st.booleans())
def test_however_many_ask_the_first_one_is_on_record(askers: list[str], running: bool) -> None:
    job = _claimed() if running else _submitted()
    changed = 0
    for asker in askers:
        move = moves.cancel(job, _request(by=asker), START)
        job, changed = move.job, changed + move.changed
    assert (job.cancel_requested_by, changed) == (askers[0], 1)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_usage_never_shrinks_and_a_repeated_report_counts_once(one: int, two: int, three: int) -> None:
    job = _claimed()
    for units in (one, two, one, three, two):
        report = Report(lease=job.lease, units=units)
        job = moves.extend(job, report, LEASE_SECONDS, START).job
    assert job.usage_units == max(one, two, three)


def test_a_cancelled_job_is_never_claimable_again_whatever_time_it_is() -> None:
    job = moves.cancel(_submitted(), _request(), START).job
    for days in (0, 1, 1000):
        with pytest.raises(NotAvailable):
            moves.claim(job, "w", "lease-2", LEASE_SECONDS, START + timedelta(days=days))


def test_a_failure_while_cancelling_is_a_cancel_with_its_error_in_the_history_only() -> None:
    job = moves.cancel(_claimed(), _request(), START).job
    move = moves.settle(job, Fail(lease=job.lease, error="interrupted"), START)
    assert (move.job.outcome, move.job.failures, move.job.last_error) == (Outcome.CANCELLED, 0, "typo")
    assert move.event is not None and move.event.reason == "interrupted"


def test_a_lapse_while_cancelling_stopped_when_the_lease_ended() -> None:
    job = moves.cancel(_claimed(), _request(), START).job
    later = START + timedelta(hours=1)
    assert snapshot(job, later).cancelled_at == job.lease_expires_at
    move = moves.lapse(job, later)
    assert (move.job.stopped_at, move.job.rung) == (job.lease_expires_at, Rung.LAPSED)


def test_lapse_leaves_a_live_lease_alone() -> None:
    job = _claimed()
    assert moves.lapse(job, START).changed is False


def test_a_metered_cancel_is_the_end_and_carries_its_charge() -> None:
    job = _claimed(owner="ann", estimate=10)
    job = moves.extend(job, Report(lease=job.lease, units=4000, work_started=True), 60, START).job
    move = moves.cancel(job, _request(), START)
    assert move.job.state is State.CANCELLED
    assert move.charge is not None
    assert (move.charge.committed, move.charge.released, move.charge.key) == (4, 6, "work:j:commit-cancel")
    with pytest.raises(LeaseLost):
        moves.settle(move.job, Complete(lease=job.lease, output=b"1"), START)


@given(
    units=st.integers(0, 10**7),
    estimate=st.integers(1, 10**4),
    fee=st.integers(0, 10**4),
    started=st.booleans(),
    commit=st.booleans(),
    force=st.booleans(),
)
def test_what_is_committed_and_released_always_adds_up_to_the_estimate(
    units: int, estimate: int, fee: int, started: bool, commit: bool, force: bool
) -> None:
    policy = Policy(min_start_fee=fee, commit_on_cancel=commit)
    job = _claimed(owner="ann", estimate=estimate)
    job = moves.extend(job, Report(lease=job.lease, units=units, work_started=started), 60, START).job
    charge = moves.cancel(job, _request(force=force), START, policy).charge
    assert charge is not None
    due = min(max(-(-units // 1000), fee), estimate) if started and commit else 0
    assert (charge.committed, charge.committed + charge.released) == (due, estimate)


def test_running_only_never_touches_what_waits() -> None:
    with pytest.raises(CannotCancelError):
        moves.cancel(_submitted(), _request(running_only=True), START)


def test_the_history_never_repeats_the_payload() -> None:
    job = _claimed()
    done = moves.settle(job, Complete(lease=job.lease, output=b'"secret"'), START)
    submitted = moves.submit(_spec(), START)
    assert submitted.event is not None and done.event is not None
    assert "input" not in submitted.event.changes and "output" not in done.event.changes
    assert done.job.output == "secret"


def test_a_report_of_progress_alone_makes_no_history() -> None:
    job = _claimed()
    move = moves.extend(job, Report(lease=job.lease, progress=0.5, message="half"), None, START)
    assert (move.event, move.job.progress, move.job.progress_message) == (None, 0.5, "half")
