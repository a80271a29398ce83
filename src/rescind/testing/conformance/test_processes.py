"""Several processes on one store: nothing lost, nothing twice, nothing after its cancel was acknowledged."""

import asyncio
from typing import Final

import pytest

from rescind.testing import Harness, actors

pytestmark = [pytest.mark.race, pytest.mark.soak]

SECONDS: Final = 2.0


async def test_a_producer_two_workers_and_a_canceller_in_processes_of_their_own(
    shared_harness: Harness,
) -> None:
    # Given one store and four processes, each with its own engine
    url = shared_harness.store.url
    assert url is not None
    # When they hammer it together
    cast = [("producer", "p"), ("worker", "w1"), ("worker", "w2"), ("canceller", "c")]
    said = await asyncio.gather(*(actors.start(url, role, name, SECONDS) for role, name in cast))
    producer, canceller = said[0], said[-1]
    # Then what they were told is true
    jobs = {job.id: job for job in await shared_harness.jobs()}
    assert producer["acknowledged"] and canceller["answers"]
    assert set(producer["acknowledged"]) == jobs.keys()
    for answer in canceller["answers"]:
        assert answer["succeeded"] or not answer["changed"]
        assert not answer["succeeded"] or jobs[answer["id"]].cancel_requested_by == "c"
    # And the history, which the fixture also checks, shows that everything took part
    violations = await shared_harness.violations(acknowledged=producer["acknowledged"])
    assert not violations, "\n".join(violations[:20])
    verbs = {event.verb for event in await shared_harness.events()}
    assert verbs >= {"claim", "complete", "fail", "release", "reschedule", "cancel", "archive"}
