"""Threads for plain handlers: daemons, reused while they behave, never waited for."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

Inbox: TypeAlias = "SimpleQueue[Callable[[], None] | None]"


class Threads:
    """A handler that never ends keeps its own thread and nothing else: neither a pool nor the process."""

    def __init__(self) -> None:
        self._idle: list[Inbox] = []
        self._open = True

    def run(self, call: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Call it in a thread that has nothing to do, or in a new one."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                value = context.run(call)
            except BaseException as problem:
                _hand_over(loop, future, future.set_exception, _carried(problem))
            else:
                _hand_over(loop, future, future.set_result, value)

        inbox = self._idle.pop() if self._idle else self._new()
        inbox.put(work)
        return future

    def close(self) -> None:
        """Let the idle threads end; the others end with their calls, or with the process."""
        self._open = False
        while self._idle:
            self._idle.pop().put(None)

    def _new(self) -> Inbox:
        inbox: Inbox = SimpleQueue()
        threading.Thread(target=self._serve, args=(inbox,), name="rescind-handler", daemon=True).start()
        return inbox

    def _serve(self, inbox: Inbox) -> None:
        while (work := inbox.get()) is not None:
            work()
            self._idle.append(inbox)
            if not self._open:  # closed meanwhile, perhaps before we were back among the idle
                self.close()


def _carried(problem: BaseException) -> BaseException:
    """A future refuses StopIteration, which a handler may well raise by mistake."""
    return RuntimeError(f"handler raised {problem!r}") if isinstance(problem, StopIteration) else problem


def _hand_over(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", deliver: Callable[[Any], None], value: Any
) -> None:
    def settle() -> None:
        if not future.done():
            deliver(value)

    with contextlib.suppress(RuntimeError):  # the loop is gone, and whoever waited with it
        loop.call_soon_threadsafe(settle)
