"""SIGTERM and SIGINT for all the workers of an event loop: an event loop has room for one handler each."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakKeyDictionary

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_stops: "WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], None]]]" = WeakKeyDictionary()


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Meanwhile either signal means `stop`; in the main thread, that is, for others cannot handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    stops = _stops.setdefault(loop, [])
    if not stops:
        for number in _SIGNALS:
            loop.add_signal_handler(number, _stop_all, stops)
    stops.append(stop)
    try:
        yield
    finally:
        stops.remove(stop)
        if not stops:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


def _stop_all(stops: list[Callable[[], None]]) -> None:
    for stop in list(stops):
        stop()
