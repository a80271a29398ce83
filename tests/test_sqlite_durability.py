"""What a SQLite file keeps when the world around it fails: rights, room on the disk, locks and crashes."""

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from rescind.errors import StoreBusy, StoreFull
from rescind.testing.invariants import check_all
from rescind.testing.record import jobs_of, run_of
from tests.sqlite_files import filled, job, opened

NOBODY: Final = 65534


def try_to_submit(path: Path, first: str = "") -> str:
    """Open the file and submit in a process of its own, which does `first` first; what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(TRY_TO_SUBMIT), str(path), first]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


TRY_TO_SUBMIT: Final = """
    import asyncio, os, resource, sys
    from rescind.engines.sqlite.engine import SQLiteEngine
    from rescind.errors import Unavailable
    from rescind.spec import spec

    async def main():
        engine = SQLiteEngine(sys.argv[1])
        try:
            await engine.install()
            await engine.submit([spec("work", "x" * 1000, id=f"new-{n}", by="tester") for n in range(500)])
            print("submitted")
        except Unavailable as problem:
            print(type(problem).__name__, problem)
        finally:
            await engine.close()

    exec(sys.argv[2])
    asyncio.run(main())
"""
AS_ANYBODY: Final = f"""
if os.geteuid() == 0:  # root may write anywhere: become somebody who may not
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
"""
WITH_SMALL_FILES: Final = "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))"


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that any user may enter, since pytest's own belongs to us alone."""
    path = Path(tempfile.mkdtemp(prefix="rescind-test-"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


# Rights and room


def test_a_read_only_file_is_reported_as_read_only(public_directory: Path) -> None:
    path = public_directory / "queue.db"
    asyncio.run(filled(path, 10))
    path.chmod(0o444)
    public_directory.chmod(0o777)
    said = try_to_submit(path, AS_ANYBODY)
    assert said.startswith(f"StoreReadOnly {path} cannot be")


def test_a_read_only_directory_is_reported_as_read_only(public_directory: Path) -> None:
    path = public_directory / "queue.db"
    asyncio.run(filled(path, 10))
    path.chmod(0o666)
    public_directory.chmod(0o555)
    said = try_to_submit(path, AS_ANYBODY)
    assert said.startswith(f"StoreReadOnly {path} cannot be")


def test_a_directory_that_cannot_be_made_is_reported_as_read_only(public_directory: Path) -> None:
    public_directory.chmod(0o555)
    path = public_directory / "sub" / "queue.db"
    said = try_to_submit(path, AS_ANYBODY)
    assert said == f"StoreReadOnly {path} cannot be created: Permission denied"


async def test_a_full_disk_is_reported_and_nothing_half_done_remains(tmp_path: Path) -> None:
    # Given a file that may not grow any more
    path = tmp_path / "queue.db"
    async with opened(path) as engine:
        await engine.submit([job("before")])
        assert engine._committer is not None
        writing = engine._committer._connection
        (pages,) = writing.execute("PRAGMA page_count").fetchone()
        writing.execute(f"PRAGMA max_page_count = {pages}")
        # When a batch needs more room than there is
        with pytest.raises(StoreFull, match="the disk is full"):
            await engine.submit([job(f"job-{n}", "x" * 1000) for n in range(100)])
        # Then none of it is there, and with room again it works
        assert [each.id for each in await jobs_of(engine)] == ["before"]
        writing.execute("PRAGMA max_page_count = 1000000")
        await engine.submit([job(f"job-{n}", "x" * 1000) for n in range(100)])
        assert len(await jobs_of(engine)) == 101
        assert check_all(await run_of(engine)) == []


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path | None]:
    """A file system with little room, where we may mount one."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)],
        capture_output=True,
        check=False,
    )
    try:
        yield directory if mounted.returncode == 0 else None
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(directory)], check=True)


def test_a_disk_that_is_really_full_is_reported_as_full(tmp_path: Path) -> None:
    with small_disk(tmp_path, "300k") as disk:
        if disk is None:
            pytest.skip("mounting a small disk needs root")
        said = try_to_submit(disk / "queue.db")
        assert (
            said == f"StoreFull {disk}/queue.db cannot grow: the disk is full. Free some space and try again"
        )


def test_a_disk_too_full_to_begin_is_reported_as_full(tmp_path: Path) -> None:
    with small_disk(tmp_path, "64k") as disk:
        if disk is None:
            pytest.skip("mounting a small disk needs root")
        said = try_to_submit(disk / "queue.db")
        assert said.startswith("StoreFull")


async def test_a_file_at_its_size_limit_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    await filled(path, 10)

    said = try_to_submit(path, WITH_SMALL_FILES)
    assert said.startswith(("Unavailable", "StoreFull"))
    async with opened(path) as engine:
        assert len(await jobs_of(engine)) == 10
        assert check_all(await run_of(engine)) == []


# Others on the same file


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the write lock."""
    code = """
        import sqlite3, sys
        held = sqlite3.connect(sys.argv[1], isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        print("locked", flush=True)
        sys.stdin.read()
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin is not None and other.stdout is not None
    try:
        assert other.stdout.readline() == b"locked\n"
        yield
    finally:
        other.communicate(timeout=10)


async def test_a_file_locked_for_too_long_is_reported_as_busy_and_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    await filled(path, 3)
    async with opened(path, busy_seconds=0.05) as engine:
        with locked(path):
            with pytest.raises(StoreBusy, match=r"queue\.db is locked by another process; try again"):
                await engine.submit([job("new")])
            assert len(await jobs_of(engine)) == 3
        await engine.submit([job("new")])
        assert len(await jobs_of(engine)) == 4


async def test_opening_a_file_locked_for_too_long_is_reported_as_busy(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    await filled(path, 3)
    with locked(path), pytest.raises(StoreBusy):
        async with opened(path, busy_seconds=0.05):
            pass


async def test_a_short_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with opened(path) as engine:
        with locked(path):
            waiting = asyncio.ensure_future(engine.submit([job("new")]))
            await engine.get(["new"])  # the submit has been handed over by then
            assert not waiting.done()
        assert (await waiting)[0].id == "new"


@pytest.mark.race
async def test_many_processes_may_install_one_file_at_once(tmp_path: Path) -> None:
    code = """
        import asyncio, sys
        from rescind.engine import open_engine
        from rescind.spec import spec

        async def main():
            for line in sys.stdin:  # each line is a file that all are told of at the same moment
                engine = open_engine(f"sqlite://{line.strip()}")
                await engine.install()
                await engine.submit([spec("work", None, id=sys.argv[1], by="tester")])
                await engine.close()
                print("done", flush=True)

        asyncio.run(main())
    """
    # Given processes that wait for the word
    command = [sys.executable, "-c", textwrap.dedent(code)]
    others = [
        await asyncio.create_subprocess_exec(
            *command, f"process-{n}", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        for n in range(4)
    ]
    try:
        for round in range(15):
            # When all of them open the same new file at once
            path = tmp_path / f"queue-{round}.db"
            for other in others:
                assert other.stdin is not None
                other.stdin.write(f"{path}\n".encode())
            for other in others:
                assert other.stdout is not None
                assert await asyncio.wait_for(other.stdout.readline(), 30) == b"done\n"
            # Then each of them got its job in
            async with opened(path) as engine:
                assert len(await jobs_of(engine)) == len(others)
    finally:
        for other in others:
            assert other.stdin is not None
            other.stdin.close()
            await other.wait()


# Crashes


@pytest.mark.race
@pytest.mark.parametrize("after", [1, 20, 200])
async def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, after: int) -> None:
    # Given a process that submits, claims and completes, telling each id once it was acknowledged
    path = tmp_path / "queue.db"
    code = """
        import asyncio, itertools, sys
        from rescind.engine import Claim, open_engine
        from rescind.lease import Complete
        from rescind.spec import spec

        async def one(engine, number):
            await engine.submit([spec("work", "x" * 500, id=f"job-{number}", by="tester")])
            print(f"submitted job-{number}", flush=True)
            claim = Claim(worker=f"w{number}", needs=("work",), limit=1, lease_seconds=60)
            for job in await engine.claim(claim):
                await engine.settle([Complete(lease=job.lease, output=b"1")])
                print(f"completed {job.id}", flush=True)

        async def main():
            engine = open_engine(f"sqlite://{sys.argv[1]}")
            await engine.install()
            for first in itertools.count(0, 8):
                await asyncio.gather(*(one(engine, first + n) for n in range(8)))

        asyncio.run(main())
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(code), str(path)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    # When it is killed in the middle of it
    told = [await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(after)]
    process.send_signal(signal.SIGKILL)
    rest, _ = await process.communicate()
    lines = [
        line.decode().split() for line in (*told, *rest.splitlines(keepends=True)) if line.endswith(b"\n")
    ]
    # Then all that it told is true, and the file is sound
    async with opened(path) as engine:
        jobs = {each.id: each for each in await jobs_of(engine)}
        assert {id for word, id in lines if word == "submitted"} <= jobs.keys()
        assert all(jobs[id].output == 1 for word, id in lines if word == "completed")
        assert check_all(await run_of(engine)) == []
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
