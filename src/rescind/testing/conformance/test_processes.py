"""Several processes on one store: nothing lost, nothing twice, nothing after its cancel was acknowledged."""

import asyncio
import json
import sys
from typing import Any, Final

import pytest

from rescind.testing import Harness

pytestmark = [pytest.mark.race, pytest.mark.soak]

SECONDS: Final = 2.0

_PRODUCER: Final = """
ids = []
while going():
    made = await h.submit_many(5) if random.random() < 0.7 else [await h.submit(singleton_key="one")]
    ids += [job.id for job in made]
return {"acknowledged": ids}
"""
_CONSUMER: Final = """
while going():
    for job in await h.claim(limit=4, worker=NAME, lease_seconds=30):
        choice = random.random()
        with contextlib.suppress(WrongState):
            if choice < 0.6:
                await h.complete(job, NAME)
            elif choice < 0.7:
                await h.fail(job, retry_seconds=0)
            elif choice < 0.8:
                await h.release(job)
            elif (await h.extend(job)).cancelling:
                await h.acknowledge(job)
            else:
                await h.reschedule(job, "work")
return {}
"""
_CANCELLER: Final = """
answers = []
while going():
    page = await h.engine.list(Filter(states=frozenset({State.READY, State.ACTIVE})), limit=20)
    for job in random.sample(page.jobs, min(3, len(page))):
        answers.append(await h.cancel(job.id, by=NAME, force=random.random() < 0.2))
    await h.sweep()
return {"answers": [[a.id, a.changed, a.error is None] for a in answers]}
"""
_FRAME: Final = """
import asyncio, contextlib, json, random, sys, time
from rescind.engine import Filter, open_engine
from rescind.errors import WrongState
from rescind.state import State
from rescind.testing.harness import Harness

class Store:
    url = sys.argv[1]
    def connect(self):
        return open_engine(self.url)
    async def drop(self):
        pass

NAME = sys.argv[2]
until = time.monotonic() + float(sys.argv[3])
going = lambda: time.monotonic() < until

async def play(h):
{body}

async def main():
    h = Harness(Store())
    h._numbers = (f"{{NAME}}-{{n}}" for n in range(10**9))
    await h.open()
    print(json.dumps(await play(h)))
    await h.close()

asyncio.run(main())
"""


async def _process(url: str, name: str, body: str) -> dict[str, Any]:
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _FRAME.format(body=indented),
        url,
        name,
        str(SECONDS),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    said: dict[str, Any] = json.loads(out)
    return said


async def test_producers_workers_and_a_canceller_in_processes_of_their_own(shared_harness: Harness) -> None:
    # Given one store and four processes, each with its own engine
    url = shared_harness.store.url
    assert url is not None
    # When they hammer it together
    producer, _, _, canceller = await asyncio.gather(
        _process(url, "producer", _PRODUCER),
        _process(url, "worker-a", _CONSUMER),
        _process(url, "worker-b", _CONSUMER),
        _process(url, "canceller", _CANCELLER),
    )
    # Then what they were told is true
    jobs = {job.id: job for job in await shared_harness.jobs()}
    assert producer["acknowledged"] and canceller["answers"]
    assert set(producer["acknowledged"]) == jobs.keys()
    for job_id, changed, succeeded in canceller["answers"]:
        assert not changed or succeeded
        assert not succeeded or jobs[job_id].cancel_requested_by == "canceller"
    # And the history is lawful
    violations = await shared_harness.violations(acknowledged=producer["acknowledged"])
    assert not violations, "\n".join(violations[:20])
    verbs = {event.verb for event in await shared_harness.events()}
    assert verbs >= {"claim", "complete", "fail", "release", "reschedule", "cancel", "archive"}


async def test_two_processes_may_install_the_same_store_at_once(shared_harness: Harness) -> None:
    url = shared_harness.store.url
    assert url is not None
    body = 'return {"acknowledged": [(await h.submit()).id]}'
    said = await asyncio.gather(*(_process(url + "-new", f"p{number}", body) for number in range(4)))
    assert len({each["acknowledged"][0] for each in said}) == 4
