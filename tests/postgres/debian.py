"""What comes from Debian's packages and from nowhere else: found, or a reason to skip, or to fail."""

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

REQUIRED: Final = "RESCIND_TEST_REQUIRE_DEBIAN"
"""Set where the packages must be there, so that a test of theirs cannot be skipped by mistake."""


def program(name: str, package: str) -> Path:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return _there(Path(found) if found else None, package)


def file(path: Path, package: str) -> Path:
    return _there(path if path.exists() else None, package)


def _there(path: Path | None, package: str) -> Path:
    if path is not None:
        return path
    reason = f"needs apt-get install --no-install-recommends {package}"
    if os.environ.get(REQUIRED):
        pytest.fail(reason)
    pytest.skip(reason)
