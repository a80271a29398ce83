"""The queue for code without an event loop: the same Queue, each method driven to its end.

queue = rescind.sync.connect()
job = queue.submit("resize", {"path": "cat.png"})
queue.cancel(job.id, reason="wrong cat")
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from rescind import connection
from rescind import queue as asynchronous
from rescind.clock import running_loop
from rescind.errors import StoreClosed

P = ParamSpec("P")
T = TypeVar("T")


class _Runner(Protocol):
    """How a coroutine of the queue is brought to its end."""

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T: ...

    def close(self) -> None: ...


class _Direct:
    """For engines that need no event loop: their coroutines block instead of suspending, so one step in the
    caller's own thread takes them to their end."""

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if running_loop() is not None:  # called from async code, as in a notebook
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(self.call, coroutine).result()
        try:
            coroutine.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        raise RuntimeError("this engine needs an event loop after all")

    def close(self) -> None:
        pass


class _Portal:
    """For engines that need one: an event loop in a daemon thread, and the way in."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rescind-sync", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if os.getpid() != self._pid:  # the thread stayed behind with the parent, and would never answer
            coroutine.close()
            raise StoreClosed("this queue was opened before a fork: connect again in the new process")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _blocking(
    method: Callable[Concatenate[asynchronous.Queue, P], Awaitable[T]],
) -> Callable[Concatenate["Queue", P], T]:
    """The method of the async queue, as a plain one."""

    def call(self: "Queue", /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def ask() -> T:
            return await method(self.asynchronous, *args, **kwargs)

        return self._runner.call(ask())

    update_wrapper(call, method)
    return call


def _plain(
    method: Callable[Concatenate[asynchronous.Queue, P], T],
) -> Callable[Concatenate["Queue", P], T]:
    """A method of the async queue that waits for nothing."""

    def call(self: "Queue", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.asynchronous, *args, **kwargs)

    update_wrapper(call, method)
    return call


def _iterating(
    method: Callable[Concatenate[asynchronous.Queue, P], AsyncIterator[T]],
) -> Callable[Concatenate["Queue", P], Iterator[T]]:
    def iterate(self: "Queue", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        steps = method(self.asynchronous, *args, **kwargs)

        async def step() -> tuple[bool, T | None]:
            try:
                return True, await anext(steps)
            except StopAsyncIteration:
                return False, None

        while True:
            more, value = self._runner.call(step())
            if not more:
                return
            yield value  # type: ignore[misc]

    update_wrapper(iterate, method)
    return iterate


class Queue:
    """`rescind.Queue` for sync code; safe to share between threads."""

    def __init__(self, queue: asynchronous.Queue, runner: _Runner) -> None:
        self.asynchronous = queue
        self._runner = runner

    def close(self) -> None:
        """Let go of the store; what was acknowledged is on disk."""
        self._runner.call(self.asynchronous.close())
        self._runner.close()

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    spec = _plain(asynchronous.Queue.spec)
    submit = _blocking(asynchronous.Queue.submit)
    submit_many = _blocking(asynchronous.Queue.submit_many)
    get = _blocking(asynchronous.Queue.get)
    list = _blocking(asynchronous.Queue.list)
    count = _blocking(asynchronous.Queue.count)
    stats = _blocking(asynchronous.Queue.stats)
    history = _blocking(asynchronous.Queue.history)
    wait = _blocking(asynchronous.Queue.wait)
    workers = _blocking(asynchronous.Queue.workers)
    cancel = _blocking(asynchronous.Queue.cancel)
    request_cancellation = _blocking(asynchronous.Queue.request_cancellation)
    cancel_many = _blocking(asynchronous.Queue.cancel_many)
    cancel_by_type = _blocking(asynchronous.Queue.cancel_by_type)
    cancel_by_owner = _blocking(asynchronous.Queue.cancel_by_owner)
    cancel_matching = _iterating(asynchronous.Queue.cancel_matching)
    complete_unheld = _blocking(asynchronous.Queue.complete_unheld)
    reschedule_unheld = _blocking(asynchronous.Queue.reschedule_unheld)
    sweep = _blocking(asynchronous.Queue.sweep)
    account = _blocking(asynchronous.Queue.account)
    credit = _blocking(asynchronous.Queue.credit)


def _connecting(opens: Callable[P, connection.connect]) -> Callable[P, Queue]:
    def connect(*args: P.args, **kwargs: P.kwargs) -> Queue:
        """As `rescind.connect`, without the `await`."""
        opening = opens(*args, **kwargs)
        runner: _Runner = _Portal() if opening.engine.needs_event_loop else _Direct()

        async def ask() -> asynchronous.Queue:
            return await opening

        try:
            return Queue(runner.call(ask()), runner)
        except BaseException:
            runner.close()
            raise

    return update_wrapper(connect, opens, assigned=(), updated=())


connect = _connecting(connection.connect)
