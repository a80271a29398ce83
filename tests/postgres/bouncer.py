"""PgBouncer in transaction mode, in front of a server."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rescind.testing.postgres import _free_port, _give, _unprivileged

_CONFIGURATION: Final = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = users
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 1000
"""


@contextmanager
def bouncer(binary: Path, url: str, size: int) -> Iterator[str]:
    """The URL by which clients reach the database of `url`, sharing so many connections to it."""
    account, server, own_port = _unprivileged(), urlsplit(url), _free_port()
    directory = Path(tempfile.mkdtemp(prefix="rescind-bouncer-"))
    configuration = directory / "pgbouncer.ini"
    values = {"host": server.hostname, "port": server.port, "own_port": own_port, "size": size}
    configuration.write_text(_CONFIGURATION.format(**values))
    (directory / "users").write_text(f'"{server.username}" ""\n')
    _give(directory, account)
    log = (directory / "log").open("w")
    process = subprocess.Popen(
        [binary, configuration], cwd=directory, stdout=log, stderr=subprocess.STDOUT, **account
    )
    try:
        _wait(own_port, process, directory / "log")
        yield server._replace(netloc=f"{server.username}@127.0.0.1:{own_port}").geturl()
    finally:
        process.kill()
        process.wait()
        log.close()
        shutil.rmtree(directory)


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PgBouncer does not serve:\n{log.read_text()}") from None
            time.sleep(0.01)
