"""The docs: their programs run, their links lead somewhere, and what comes from the code is up to date."""

import asyncio
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rescind.engine import open_administration
from tests.databases import fresh_database, psql

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


_RESULT = re.compile(r"; +-- (.+)$", re.MULTILINE)  # what a statement answers, where the page says so


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in _FENCE.findall(page.read_text()) if found == language]


def programs() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, body in enumerate(blocks(page, "python"), 1):
            yield f"{page.relative_to(ROOT)}:{number}", body


PROGRAMS = dict(programs())


def run(
    arguments: list[str], directory: Path, url: str = "sqlite:jobs.db"
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "RESCIND_URL": url, "PYTHONPATH": str(directory)}
    return subprocess.run(
        arguments, cwd=directory, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def postgres() -> Iterator[str]:
    """A database with the schema, and none of the roles that the page makes."""
    with fresh_database() as url:
        asyncio.run(open_administration(url).install())
        psql(url, "SET client_min_messages = warning; DROP ROLE IF EXISTS app_worker, dashboard;")
        yield url
        psql(url, "SET client_min_messages = warning; DROP ROLE IF EXISTS app_worker, dashboard;")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("README.md")])
def test_a_program_in_the_docs_runs(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS[name])
    on_postgres = name.startswith("docs/postgres.md")
    url = request.getfixturevalue("postgres") if on_postgres else "sqlite:jobs.db"
    done = run([sys.executable, "program.py"], tmp_path, url)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sql")], ids=lambda page: page.name)
def test_the_sql_of_a_page_answers_what_the_page_says(page: Path, postgres: str) -> None:
    script = "\n".join(blocks(page, "sql"))
    printed = iter(psql(postgres, script).splitlines())
    for expected in _RESULT.findall(script):
        assert expected in printed, f"{page.name} says {expected}"  # further on than the one before


def test_the_readmes_worker_and_producer_do_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(PROGRAMS["README.md:1"])
    (tmp_path / "producer.py").write_text(PROGRAMS["README.md:2"])
    environ = {**os.environ, "RESCIND_URL": "sqlite:jobs.db"}
    command = [sys.executable, "-m", "rescind.cli", "worker", "tasks:worker"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL)
    try:
        done = run([sys.executable, "producer.py"], tmp_path)
    finally:
        worker.terminate()
        assert worker.wait(30) == 0
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] in ("cancelled True", "running True")
    assert lines[1:] == [
        "completed {'text': '...'}",
        "user:alice: wrong file",
        "too late: it is completed",
    ]


@pytest.mark.parametrize("page", ["lifecycle.md", "reference.md", "postgres.md"])
def test_a_rendered_page_is_up_to_date(page: str) -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "render.py"))["PAGES"]
    assert (ROOT / "docs" / page).read_text() == pages[page](), "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not dead
