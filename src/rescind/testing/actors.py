"""Producer, worker and canceller as processes of their own, for tests of a store that processes share.

    python -m rescind.testing.actors URL ROLE NAME SECONDS

Each does its part for so many seconds and prints, as JSON, what it was told.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rescind.engine import Filter
from rescind.errors import WrongState
from rescind.job import Job
from rescind.state import State
from rescind.testing.engines import Existing
from rescind.testing.harness import Harness

Going = Callable[[], bool]


async def producer(harness: Harness, name: str, going: Going) -> dict[str, Any]:
    """Submits, and remembers what was acknowledged."""
    ids: list[str] = []
    while going():
        options = {"singleton_key": "one"} if random.random() < 0.1 else {}
        ids += [job.id for job in await harness.submit_many(5, by=name, **options)]
    return {"acknowledged": ids}


async def worker(harness: Harness, name: str, going: Going) -> dict[str, Any]:
    """Claims, and ends what it claimed in every way there is."""
    while going():
        for job in await harness.claim(limit=4, worker=name, lease_seconds=30):
            with contextlib.suppress(WrongState):  # cancelled meanwhile: the history tells
                await _settle(harness, job)
    return {}


async def _settle(harness: Harness, job: Job) -> None:
    chance = random.random()
    if chance < 0.6:
        await harness.complete(job)
    elif chance < 0.7:
        await harness.fail(job, retry_seconds=0)
    elif chance < 0.8:
        await harness.release(job)
    elif (await harness.extend(job)).cancelling:
        await harness.acknowledge(job)
    else:
        await harness.reschedule(job, job.need)


async def canceller(harness: Harness, name: str, going: Going) -> dict[str, Any]:
    """Cancels waiting and running jobs, some by force, sweeps, and remembers the answers."""
    answers = []
    unfinished = Filter(states=frozenset({State.READY, State.ACTIVE}))
    while going():
        page = await harness.engine.list(unfinished, limit=20)
        for job in random.sample(page.jobs, min(3, len(page))):
            answer = await harness.cancel(job.id, by=name, force=random.random() < 0.2)
            answers.append({"id": job.id, "changed": answer.changed, "succeeded": answer.error is None})
        await harness.sweep()
    return {"answers": answers}


Role = Callable[[Harness, str, Going], Awaitable[dict[str, Any]]]
ROLES: Final[dict[str, Role]] = {"producer": producer, "worker": worker, "canceller": canceller}


async def start(url: str, role: str, name: str, seconds: float) -> dict[str, Any]:
    """Run a role in a process of its own; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, url, role, name, str(seconds)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    said: dict[str, Any] = json.loads(out)
    return said


async def _main(url: str, role: str, name: str, seconds: str) -> None:
    harness = Harness(Existing(url), prefix=name)
    await harness.open()
    until = time.monotonic() + float(seconds)
    print(json.dumps(await ROLES[role](harness, name, lambda: time.monotonic() < until)))
    await harness.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
