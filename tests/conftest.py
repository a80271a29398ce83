"""What every test may ask for: a queue on a fresh file, and the clock it reads."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import msgspec
import pytest

from rescind import Queue, connect
from rescind.clock import SystemClock
from rescind.settings import Settings

# No deadlines: a busy machine is no bug.
hypothesis.settings.register_profile(
    "rescind", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("rescind")


@pytest.fixture
def clock() -> SystemClock:
    """The real clock, whose wall time a test may move."""
    return SystemClock()


@pytest.fixture
def queue(runner: asyncio.Runner, clock: SystemClock, tmp_path: Path) -> Iterator[Queue]:
    async def opened() -> Queue:
        url = f"sqlite://{tmp_path}/jobs.db"
        return await connect(url, settings=Settings(), clock=clock, by="test")

    queue = runner.run(opened())
    yield queue
    runner.run(queue.close())


@pytest.fixture
def patient_queue(queue: Queue) -> Queue:
    """The same queue for workers that lose patience with a deaf handler at once."""
    return Queue(queue.engine, msgspec.structs.replace(queue.settings, kill_after_seconds=0.01))
