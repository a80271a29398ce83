"""SIGTERM and SIGINT for all the workers of an event loop: an event loop has room for one handler each."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _Handling:
    """What the signals do to one event loop's workers, and what they did before."""

    def __init__(self) -> None:
        self._stops: list[Callable[[], None]] = []
        self._before: dict[signal.Signals, Any] = {}

    def add(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        if not self._stops:
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
            for number in _SIGNALS:
                loop.add_signal_handler(number, self._stop_all)
        self._stops.append(stop)

    def remove(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        """The last one leaves all as it was. (What the application had set through the event loop itself
        cannot be had back: let it handle the signals alone, with `handle_signals=False`.)"""
        self._stops.remove(stop)
        if self._stops:
            return
        for number, before in self._before.items():
            loop.remove_signal_handler(number)
            if before is not None and not _is_of_a_loop(before):
                signal.signal(number, before)

    def _stop_all(self) -> None:
        for stop in list(self._stops):
            stop()


def _is_of_a_loop(handler: Any) -> bool:
    """asyncio's own stand-in: put back without the loop's part it would only swallow the signal."""
    return getattr(handler, "__module__", None) == "asyncio.unix_events"


_handling: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Handling]" = WeakKeyDictionary()


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Meanwhile either signal means `stop`; in the main thread, that is, for others cannot handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handling = _handling.setdefault(loop, _Handling())
    handling.add(loop, stop)
    try:
        yield
    finally:
        handling.remove(loop, stop)
