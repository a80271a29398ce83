"""The worker as people write it: tasks by need, then `run`."""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

from rescind.clock import new_secret
from rescind.connection import connect
from rescind.engine import WorkerInfo
from rescind.errors import InvalidInput
from rescind.queue import Queue
from rescind.spec import check_integer, check_text
from rescind.worker.loop import Loop
from rescind.worker.retry import Retry
from rescind.worker.signals import stopped_by_signals
from rescind.worker.task import Handler, Task, make_task

H = TypeVar("H", bound=Handler)


class Worker:
    """Register handlers with `@worker.task("need")`, then `await worker.run()`.

    Without a queue it opens the default one when it runs. `concurrency` is how many jobs it runs at a time.
    """

    def __init__(
        self,
        queue: Queue | None = None,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        sweeps: bool = True,
    ) -> None:
        self.queue = queue
        self.name = (
            check_text(name, "name") if name else f"{socket.gethostname()}-{os.getpid()}-{new_secret()[:6]}"
        )
        self.tasks: dict[str, Task] = {}
        self._concurrency = _check_slots(concurrency)
        self._sweeps = sweeps
        self._loop: Loop | None = None
        self._stop_asked = False

    def task(
        self,
        need: str,
        *,
        timeout_seconds: float | None = None,
        grace_seconds: float | None = None,
        retry: Retry | None = None,
    ) -> Callable[[H], H]:
        """The decorated function serves this need. It takes `(input)` or `(input, context)`; `async def` runs
        in the event loop, a plain function in a thread."""

        def register(handler: H) -> H:
            if need in self.tasks:
                raise InvalidInput(f"need {need!r} has a handler already")
            self.tasks[need] = make_task(
                need, handler, timeout_seconds=timeout_seconds, grace_seconds=grace_seconds, retry=retry
            )
            return handler

        return register

    async def run(
        self,
        queue: Queue | None = None,
        *,
        needs: Sequence[str] | None = None,
        concurrency: int | None = None,
        until_empty: bool = False,
        handle_signals: bool = True,
    ) -> None:
        """Work until `stop()`, SIGTERM or SIGINT; `until_empty`: until there is nothing left that could be
        started now (what is delayed, or waits for a retry, is not waited for).

        `needs` narrows the worker to some of its tasks; `concurrency` overrides its own for this run;
        `handle_signals=False` leaves the signals to an application that handles them itself.
        """
        served = self._served(needs)
        slots = _check_slots(concurrency) or self._concurrency
        given = queue or self.queue
        self._stop_asked = False
        if given is not None:
            await self._run(given, served, slots, until_empty, handle_signals)
        else:
            async with connect() as opened:
                await self._run(opened, served, slots, until_empty, handle_signals)

    def stop(self) -> None:
        """Take no more work, let what runs end, then return from `run`. For the worker's own event loop."""
        self._stop_asked = True
        if self._loop is not None:
            self._loop.stop()

    def _served(self, needs: Sequence[str] | None) -> dict[str, Task]:
        if not self.tasks:
            raise InvalidInput('this worker serves nothing: register a handler with @worker.task("need")')
        unknown = [need for need in needs or () if need not in self.tasks]
        if unknown:
            raise InvalidInput(
                f"unknown need {', '.join(unknown)}: this worker serves {', '.join(sorted(self.tasks))}"
            )
        return {need: self.tasks[need] for need in needs} if needs else self.tasks

    async def _run(
        self,
        queue: Queue,
        served: dict[str, Task],
        slots: int | None,
        until_empty: bool,
        handle_signals: bool,
    ) -> None:
        if self._loop is not None:
            raise InvalidInput(f"worker {self.name} is running already")
        default = queue.settings.grace_seconds
        graces = [default if task.grace_seconds is None else task.grace_seconds for task in served.values()]
        queue.settings.check_lease(max(graces))
        info = WorkerInfo(
            id=self.name,
            needs=tuple(served),
            slots=slots or queue.settings.concurrency,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=queue.engine.clock.now(),
        )
        self._loop = Loop(queue.engine, queue.settings, served, info, sweeps=self._sweeps)
        if self._stop_asked:
            self._loop.stop()
        try:
            with stopped_by_signals(self.stop) if handle_signals else nullcontext():
                await self._loop.run(until_empty=until_empty)
        finally:
            self._loop = None


def _check_slots(concurrency: int | None) -> int | None:
    return None if concurrency is None else check_integer(concurrency, "concurrency", 1, 1_000_000)
