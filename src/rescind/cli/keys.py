"""Single key presses for an event loop, without Enter; the terminal is put back as it was."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed(take: Callable[[str], None]) -> Iterator[None]:
    """Call `take` in the running loop with each key."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, lambda: _pass_on(descriptor, take))
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pass_on(descriptor: int, take: Callable[[str], None]) -> None:
    for key in os.read(descriptor, 64).decode(errors="ignore"):
        take(key)
