"""The registry of stores the conformance suite runs on. An engine joins by adding its `Store` here, or by
naming it on the command line as `module:factory`."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rescind.clock import SystemClock
from rescind.engine import Engine, open_engine


class Store(Protocol):
    """One empty store, made for one test, whose time the test may move."""

    url: str | None
    """How another process opens the same store; None when no other process can."""

    def connect(self) -> Engine:
        """One more engine on this store; on a store that only one engine can use, the same one again."""

    async def advance(self, seconds: float) -> None:
        """Let time pass for every engine on this store."""

    async def drop(self) -> None:
        """Leave nothing behind. Every engine has been closed."""


Factory = Callable[[Path], Store]
"""Makes a fresh store; the directory is the test's own and may be used or not."""


class SQLiteFile:
    """A file: any number of engines, and other processes, too."""

    between_processes = True

    def __init__(self, directory: Path) -> None:
        self.url: str | None = f"sqlite://{directory / 'queue.db'}"
        self._clock = SystemClock()

    def connect(self) -> Engine:
        assert self.url is not None
        return open_engine(self.url, clock=self._clock)

    async def advance(self, seconds: float) -> None:
        self._clock.shift(seconds)

    async def drop(self) -> None:
        """The directory goes with the test."""


class SQLiteMemory:
    """Memory belongs to one connection, so there is one engine, however often it is asked for."""

    url: str | None = None

    def __init__(self, _directory: Path) -> None:
        self._clock = SystemClock()
        self._engine = open_engine("sqlite://:memory:", clock=self._clock)

    def connect(self) -> Engine:
        return self._engine

    async def advance(self, seconds: float) -> None:
        self._clock.shift(seconds)

    async def drop(self) -> None:
        """It went with its connection."""


REGISTERED: dict[str, Factory] = {"sqlite-memory": SQLiteMemory, "sqlite-file": SQLiteFile}


def factories(names: Sequence[str] = ()) -> dict[str, Factory]:
    """The factories with these names, or all that are registered."""
    return {name: _named(name) for name in names} if names else REGISTERED


def _named(name: str) -> Factory:
    if name in REGISTERED:
        return REGISTERED[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"no engine {name!r}: use one of {', '.join(REGISTERED)}, or module:factory")
    factory: Factory = getattr(importlib.import_module(module), attribute)
    return factory


def between_processes(factory: Factory) -> bool:
    """Can other processes open its stores by their URL? A factory says so by an attribute of this name."""
    return bool(getattr(factory, "between_processes", False))
