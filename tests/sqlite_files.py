"""What tests of SQLite files share: opening one as an engine, and putting jobs into it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rescind.engines.sqlite.engine import SQLiteEngine
from rescind.spec import JobSpec, spec


def job(id: str, input: Any = None, **options: Any) -> JobSpec:
    return spec("work", input, id=id, by="tester", **options)


@asynccontextmanager
async def opened(path: Path | str, **options: Any) -> AsyncIterator[SQLiteEngine]:
    engine = SQLiteEngine(str(path), **options)
    try:
        await engine.install()
        yield engine
    finally:
        await engine.close()


async def filled(path: Path, number: int = 500) -> None:
    async with opened(path) as engine:
        await engine.submit([job(f"job-{n}", "x" * 200) for n in range(number)])
