"""Claims of several needs by many at once."""

import asyncio
import random
from collections import Counter

import pytest

from rescind.lease import Complete, Release
from rescind.testing import Harness

pytestmark = pytest.mark.race


async def test_a_job_is_never_twice_in_one_answer(harness: Harness) -> None:
    """Also when others, meanwhile, give jobs back that come before it."""
    # Given many jobs of one need
    await harness.submit_many(1000)
    twice: list[str] = []

    async def work(name: str) -> None:
        while claimed := await harness.claim("work", "a", "b", "c", limit=16, worker=name):
            number = Counter(job.id for job in claimed)
            twice.extend(id for id, times in number.items() if times > 1)
            once = {job.id: job.lease for job in claimed}.values()
            await harness.engine.settle(
                [
                    Release(lease=lease) if random.random() < 0.5 else Complete(lease=lease, output=b"1")
                    for lease in once
                ]
            )

    # When many claim several needs at once, and give some of what they get back
    await asyncio.gather(*(work(f"worker-{n}") for n in range(10)))
    # Then nobody was given a job twice
    assert twice == []
