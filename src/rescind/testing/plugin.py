"""A pytest plugin: runs `async def` tests, and opens the store a test asks for in that test's event loop.

Load it with `-p rescind.testing.plugin`. The fixture `runner` owns the loop that fixtures and test share.
"""

import asyncio
import fcntl
import inspect
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rescind.testing.engines import RUN, Factory, between_processes, factories
from rescind.testing.harness import Harness


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rescind-engine",
        action="append",
        default=[],
        metavar="NAME",
        help="run the conformance suite on this engine only: a registered name, or module:factory "
        "(may be repeated; default: all that are registered)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "race: several callers at once, many times over")
    config.addinivalue_line("markers", "soak: several processes on one store for seconds")
    if RUN not in os.environ:  # else we are a worker of xdist, or a run inside a run
        _begin_run(config)


def _begin_run(config: pytest.Config) -> None:
    """Give the processes of this run a place to share servers, which end with the lock on `life`."""
    directory = Path(tempfile.mkdtemp(prefix="rescind-run-"))
    life = (directory / "life").open("w")
    fcntl.lockf(life, fcntl.LOCK_EX)
    os.environ[RUN] = str(directory)

    def end() -> None:
        del os.environ[RUN]
        life.close()
        shutil.rmtree(directory, ignore_errors=True)

    config.add_cleanup(end)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`factory` is every engine asked for; `factory_between_processes` those that processes can share."""
    chosen = factories(metafunc.config.getoption("--rescind-engine"))
    if "factory" in metafunc.fixturenames:
        metafunc.parametrize("factory", list(chosen.values()), ids=list(chosen))
    if "factory_between_processes" in metafunc.fixturenames:
        shared = {name: each for name, each in chosen.items() if between_processes(each)}
        metafunc.parametrize("factory_between_processes", list(shared.values()), ids=list(shared))


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of one test."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def harness(runner: asyncio.Runner, factory: Factory, tmp_path: Path) -> Iterator[Harness]:
    """A fresh store of each engine; afterwards whatever the test did there must obey the invariants."""
    yield from _open(runner, factory, tmp_path)


@pytest.fixture
def shared_harness(
    runner: asyncio.Runner, factory_between_processes: Factory, tmp_path: Path
) -> Iterator[Harness]:
    """As `harness`, on stores that other processes can open."""
    yield from _open(runner, factory_between_processes, tmp_path)


def _open(runner: asyncio.Runner, factory: Factory, directory: Path) -> Iterator[Harness]:
    harness = Harness(factory(directory))
    runner.run(harness.open())
    try:
        yield harness
        violations = runner.run(harness.violations())
        assert not violations, "\n".join(violations)
    finally:
        runner.run(harness.close())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end in the loop of its fixtures, or in one of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    test = pyfuncitem.obj(**arguments)
    runner = pyfuncitem.funcargs.get("runner")
    if isinstance(runner, asyncio.Runner):
        runner.run(test)
    else:
        asyncio.run(test)
    return True
