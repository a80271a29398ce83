"""The queue for code without an event loop: the same Queue, driven in a background thread.

queue = rescind.sync.connect()
job = queue.submit("resize", {"path": "cat.png"})
queue.cancel(job.id, reason="wrong cat")
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from rescind import queue as asynchronous

P = ParamSpec("P")
T = TypeVar("T")


class _Portal:
    """An event loop in a daemon thread, and the way in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rescind-sync", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
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

        return self._portal.call(ask())

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
            more, value = self._portal.call(step())
            if not more:
                return
            yield value  # type: ignore[misc]

    update_wrapper(iterate, method)
    return iterate


class Queue:
    """`rescind.Queue` for sync code; safe to share between threads."""

    def __init__(self, queue: asynchronous.Queue, portal: _Portal) -> None:
        self.asynchronous = queue
        self._portal = portal

    def close(self) -> None:
        self._portal.call(self.asynchronous.close())
        self._portal.close()

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def spec(self, *args: Any, **kwargs: Any) -> Any:
        return self.asynchronous.spec(*args, **kwargs)

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


def connect(url: str | None = None, **options: Any) -> Queue:
    """As `rescind.connect`, without the `await`."""
    portal = _Portal()

    async def ask() -> asynchronous.Queue:
        return await asynchronous.connect(url, **options)

    try:
        return Queue(portal.call(ask()), portal)
    except BaseException:
        portal.close()
        raise
