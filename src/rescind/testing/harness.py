"""The harness: short verbs with sensible defaults for an engine under test, by its public methods only."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

import msgspec

from rescind import payload
from rescind.engine import Amendment, Claim, Document, Engine, Selector, Swept, WorkerInfo
from rescind.job import CancelRequest, CancelResult, Event, Job
from rescind.lease import (
    Acknowledge,
    Complete,
    Fail,
    Lease,
    Release,
    Report,
    Reschedule,
    Rung,
    Settlement,
    Target,
)
from rescind.lifecycle import Situation, situation_of
from rescind.policy import Account
from rescind.spec import JobSpec, spec
from rescind.testing.engines import Store
from rescind.testing.invariants import check_all
from rescind.testing.record import events_of, jobs_of, run_of

NEED: Final = "work"
WORKER: Final = "worker-1"
LEASE_SECONDS: Final = 60.0
RETENTION: Final = timedelta(days=30)
_PAGE: Final = 1000


class Harness:
    """One engine on a store. `peer()` gives another on the same store, to meet the first one there."""

    def __init__(self, store: Store, prefix: str = "job") -> None:
        self.store = store
        self.engine: Engine = store.connect()
        self._peers: list[Harness] = []
        self._ids = (f"{prefix}-{number}" for number in count(1))

    async def open(self) -> None:
        await self.engine.install()

    async def close(self) -> None:
        for peer in self._peers:
            await peer.engine.close()
        await self.engine.close()
        await self.store.drop()

    async def peer(self) -> "Harness":
        """A second engine where the store allows it, else a second caller of the same one."""
        peer = Harness(self.store, f"peer-{len(self._peers) + 1}")
        await peer.open()
        self._peers.append(peer)
        return peer

    # Time

    def now(self) -> datetime:
        return self.engine.clock.now()

    async def advance(self, seconds: float) -> None:
        await self.store.advance(seconds)

    # Producers

    def spec(self, need: str = NEED, input: Any = None, **options: Any) -> JobSpec:
        options.setdefault("id", next(self._ids))
        options.setdefault("by", "tester")
        return spec(need, input, **options)

    async def submit(self, need: str = NEED, input: Any = None, **options: Any) -> Job:
        return (await self.engine.submit([self.spec(need, input, **options)]))[0]

    async def submit_many(self, number: int, **options: Any) -> Sequence[Job]:
        """So many alike, in one batch."""
        return await self.engine.submit([self.spec(**options) for _ in range(number)])

    # Workers

    async def claim(
        self,
        *needs: str,
        limit: int = 100,
        worker: str = WORKER,
        lease_seconds: float = LEASE_SECONDS,
    ) -> Sequence[Job]:
        return await self.engine.claim(
            Claim(worker=worker, needs=needs or (NEED,), limit=limit, lease_seconds=lease_seconds)
        )

    async def claim_one(self, *needs: str, worker: str = WORKER, lease_seconds: float = LEASE_SECONDS) -> Job:
        """Take the first job; there must be one."""
        claimed = await self.claim(*needs, limit=1, worker=worker, lease_seconds=lease_seconds)
        assert claimed, "there was nothing to claim"
        return claimed[0]

    async def running(self, **options: Any) -> Job:
        """Submit a job and claim it."""
        job = await self.submit(**options)
        claimed = await self.claim_one(job.need)
        assert claimed.id == job.id, f"claimed {claimed.id} instead of {job.id}"
        return claimed

    async def settle(self, settlement: Settlement) -> Job:
        """The job after a worker's last word; a refusal is raised."""
        settled = await self.engine.settle([settlement])
        answer = settled.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def complete(self, held: Job | Lease, output: Any = None, **reported: Any) -> Job:
        body = payload.encode(output, "output")
        return await self.settle(Complete(lease=_lease(held), output=body, **reported))

    async def fail(
        self, held: Job | Lease, error: str = "it broke", retry_seconds: float | None = 0.0, **reported: Any
    ) -> Job:
        return await self.settle(
            Fail(lease=_lease(held), error=error, retry_seconds=retry_seconds, **reported)
        )

    async def reschedule(self, held: Job | Lease, need: str = "next", **target: Any) -> Job:
        return await self.settle(Reschedule(lease=_lease(held), to=Target(need=need, **target)))

    async def release(self, held: Job | Lease, reason: str | None = "shutdown") -> Job:
        return await self.settle(Release(lease=_lease(held), reason=reason))

    async def acknowledge(self, held: Job | Lease, rung: Rung = Rung.FLAG, **said: Any) -> Job:
        return await self.settle(Acknowledge(lease=_lease(held), rung=rung, **said))

    async def extend(self, held: Job | Lease, *, seconds: float = LEASE_SECONDS, **reported: Any) -> Job:
        """The job after a heartbeat for it alone; a refusal is raised."""
        lease = _lease(held)
        worker = self.worker(lease.worker)
        beat = (await self.engine.extend(worker, [Report(lease=lease, **reported)], seconds))[0]
        if beat.error is not None:
            raise beat.error
        assert beat.job is not None
        return beat.job

    def worker(self, id: str = WORKER, *needs: str) -> WorkerInfo:
        return WorkerInfo(id=id, needs=needs or (NEED,), slots=4, host="here", pid=1, started_at=self.now())

    # Operators

    async def cancel(self, job_id: str, **request: Any) -> CancelResult:
        return (await self.cancel_many(Selector(ids=(job_id,)), **request))[0]

    async def cancel_many(
        self,
        selector: Selector,
        *,
        limit: int = _PAGE,
        after: str = "",
        dry_run: bool = False,
        **request: Any,
    ) -> Sequence[CancelResult]:
        wish = CancelRequest(**{"by": "operator", "reason": "not needed", **request})
        return await self.engine.cancel(selector, wish, limit=limit, after=after, dry_run=dry_run)

    async def complete_unheld(self, job_id: str, output: Any = None) -> Job:
        body = payload.encode(output, "output")
        return await self.engine.amend(job_id, Amendment(by="operator", output=body))

    async def reschedule_unheld(self, job_id: str, need: str = "next", **target: Any) -> Job:
        return await self.engine.amend(job_id, Amendment(by="operator", to=Target(need=need, **target)))

    async def sweep(self, *, limit: int = _PAGE, retention: timedelta = RETENTION) -> Swept:
        return await self.engine.sweep(limit=limit, retention=retention)

    async def policy(self, need: str = NEED, **rules: Any) -> None:
        """Give a need these rules, beside those that other needs have."""
        now = await self.engine.document("policies")
        body = {**(now.body or {}), need: rules}
        await self.engine.document("policies", Document("policies", now.revision, body))

    async def credit(self, owner: str, amount: int, key: str | None = None) -> Account:
        return await self.engine.credit(owner, amount, by="tester", key=key)

    async def balance(self, owner: str) -> tuple[int, int]:
        """What the owner can still spend, and what is set aside."""
        account = await self.engine.account(owner)
        return account.available, account.reserved

    # Looking

    async def get(self, job_id: str) -> Job:
        job = (await self.engine.get([job_id]))[0]
        assert job is not None, f"there is no job {job_id}"
        return job

    async def situation(self, job_id: str) -> Situation:
        return situation_of(await self.get(job_id), self.now())

    async def history(self, job_id: str) -> Sequence[Event]:
        return await self.engine.history(job_id)

    async def verbs(self, job_id: str) -> list[str]:
        """What happened to a job, in a word each."""
        return [event.verb for event in await self.history(job_id)]

    async def events(self) -> list[Event]:
        """Everything that happened in the store, in order."""
        return await events_of(self.engine)

    async def jobs(self) -> list[Job]:
        return await jobs_of(self.engine)

    # Truth

    async def violations(
        self, *, acknowledged: Iterable[str] = (), answers: Iterable[CancelResult] | None = None
    ) -> list[str]:
        """Where what happened breaks an invariant; empty when all is well."""
        return check_all(await run_of(self.engine, acknowledged=acknowledged, answers=answers))


def _lease(held: Job | Lease) -> Lease:
    return held if isinstance(held, Lease) else held.lease


def stale(held: Job | Lease) -> Lease:
    """A lease on the same job that was never the current one."""
    return msgspec.structs.replace(_lease(held), lease_id="0" * 32)


def lease_on(job: Job) -> Lease:
    """The lease a job carries, or a made-up one when it carries none."""
    if job.lease_id is not None:
        return job.lease
    return Lease(job.id, "0" * 32, WORKER, job.attempt, job.submitted_at)
