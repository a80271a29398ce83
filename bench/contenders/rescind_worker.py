"""A rescind worker in a process of its own, for what is measured across processes."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from bench.contenders.apart import BEGUN, ENDED, tell
from rescind import Context, Queue, Settings, Worker, connect


def worker(queue: Queue, tell: Callable[[str], None]) -> Worker:
    """Serves one need that ends at once and one that runs until it is asked to stop."""
    crew = Worker(queue)

    @crew.task("noop")
    async def noop(_: Any) -> int:
        tell(BEGUN)
        return 1

    @crew.task("endless")
    async def endless(_: Any, context: Context) -> None:
        tell(BEGUN)
        await context.cancelled.wait()
        tell(ENDED)

    return crew


async def main(url: str) -> None:
    async with connect(url, settings=Settings()) as queue:
        await worker(queue, tell).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
