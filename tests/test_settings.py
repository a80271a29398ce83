"""Settings: where they come from, which wins, and how a bad one is named."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rescind.errors import InvalidSettings
from rescind.settings import Settings, load


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_anything_said_the_defaults_hold() -> None:
    assert load({}) == Settings()


def test_the_environment_outranks_the_file_and_code_outranks_both() -> None:
    Path("rescind.toml").write_text("lease_seconds = 90\nconcurrency = 4\nsweep_seconds = 5\n")
    settings = load({"RESCIND_CONCURRENCY": "8", "RESCIND_SWEEP_SECONDS": "6"}, sweep_seconds=7)
    assert (settings.lease_seconds, settings.concurrency, settings.sweep_seconds) == (90, 8, 7)


def test_another_file_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('url = "sqlite:other.db"\n')
    assert load({"RESCIND_CONFIG": str(tmp_path / "other.toml")}).url == "sqlite:other.db"


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("lease_seconds = 0", "lease_seconds"),
        ("concurrency = 'many'", "concurrency"),
        ("retention_days = -1", "retention_days"),
        ("retention_days = 36_501", "retention_days"),
        ("leese_seconds = 60", "leese_seconds"),
        ("lease_seconds = ", "rescind.toml"),
    ],
)
def test_a_bad_value_stops_start_up_and_is_named(toml: str, named: str) -> None:
    Path("rescind.toml").write_text(toml)
    with pytest.raises(InvalidSettings, match=named):
        load({})


def test_a_bad_environment_variable_is_named_too() -> None:
    with pytest.raises(InvalidSettings, match="heartbeat_seconds"):
        load({"RESCIND_HEARTBEAT_SECONDS": "often"})


@pytest.mark.parametrize(
    "values", [{"retention_days": 1_000_000}, {"concurrency": 0}, {"lease_seconds": "60"}, {"url": 5}]
)
def test_the_same_bounds_hold_for_settings_made_in_code(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=f"setting {next(iter(values))} "):
        Settings(**values)
    with pytest.raises(InvalidSettings, match=f"setting {next(iter(values))} "):
        msgspec.structs.replace(Settings(), **values)


def test_a_named_file_that_is_missing_is_an_error() -> None:
    with pytest.raises(InvalidSettings, match=r"nowhere\.toml"):
        load({"RESCIND_CONFIG": "nowhere.toml"})
