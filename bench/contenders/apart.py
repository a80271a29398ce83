"""A contender's worker in a process of its own, which tells when its handlers begin and end.

Runs inside every contender's own environment, so it uses the standard library only.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

BEGUN, ENDED = "begun", "ended"
_PATIENCE_SECONDS = 60
_FAREWELL_SECONDS = 20


def tell(event: str) -> None:
    """Said in the worker. Processes of one machine share this clock, so the way here costs nothing."""
    os.write(1, f"{event} {time.monotonic()}\n".encode())


class Apart:
    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines

    async def when(self, event: str) -> float:
        """The `time.monotonic()` of the next such event."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while line := await self._lines.readline():
                name, at = line.decode().split()
                if name == event:
                    return float(at)
        raise RuntimeError(f"the worker ended before anything had {event}")


@asynccontextmanager
async def apart(module: str, *arguments: str) -> AsyncIterator[Apart]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield Apart(process.stdout)
    finally:
        process.terminate()
        await _gone(process)


async def _gone(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), _FAREWELL_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise RuntimeError("the worker did not end when it was asked to") from None
