"""Settings: `rescind.toml`, then `RESCIND_*`, then code. A bad value is named and stops start-up."""

import os
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from platformdirs import user_data_path

from rescind.errors import InvalidSettings
from rescind.payload import DEFAULT_LIMIT_BYTES

_YEAR = 86_400.0 * 365


def _seconds(description: str, *, zero: bool = False) -> msgspec.Meta:
    if zero:
        return msgspec.Meta(ge=0, le=_YEAR, description=description)
    return msgspec.Meta(gt=0, le=_YEAR, description=description)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. `RESCIND_LEASE_SECONDS=90` sets `lease_seconds`."""

    url: Annotated[
        str | None,
        msgspec.Meta(description="where the queue lives; by default a file in the user's data directory"),
    ] = None
    concurrency: Annotated[
        int, msgspec.Meta(ge=1, le=1_000_000, description="jobs that one worker runs at a time")
    ] = 10
    lease_seconds: Annotated[float, _seconds("how long a claim holds without a heartbeat")] = 60
    heartbeat_seconds: Annotated[float, _seconds("how often a worker keeps its leases")] = 15
    grace_seconds: Annotated[
        float, _seconds("from the request to stop until an exception is raised in the handler", zero=True)
    ] = 10
    kill_after_seconds: Annotated[float, _seconds("from that until the handler is given up", zero=True)] = 5
    drain_seconds: Annotated[float, _seconds("what running handlers get at shutdown", zero=True)] = 30
    sweep_seconds: Annotated[float, _seconds("the pause between two sweeps")] = 60
    retention_days: Annotated[
        float, msgspec.Meta(gt=0, le=36_500, description="how long finished jobs keep their input and output")
    ] = 30
    payload_limit_bytes: Annotated[
        int, msgspec.Meta(ge=1, description="the most JSON that an input or output may be")
    ] = DEFAULT_LIMIT_BYTES

    def __post_init__(self) -> None:
        """msgspec checks what it reads; what is made in code is held to the same bounds here."""
        for field in msgspec.structs.fields(self):
            try:
                msgspec.convert(getattr(self, field.name), field.type)
            except msgspec.ValidationError as problem:
                raise InvalidSettings(_named(field.name, str(problem))) from problem

    @property
    def retention(self) -> timedelta:
        return timedelta(days=self.retention_days)

    def check_lease(self, grace_seconds: float) -> None:
        """A cancelling job's lease is not extended, so the whole stop must fit into one."""
        least = 2 * self.heartbeat_seconds + grace_seconds + self.kill_after_seconds
        if self.lease_seconds < least:
            raise InvalidSettings(
                f"lease_seconds is {self.lease_seconds:g}, but must be at least {least:g}: "
                "2 x heartbeat_seconds + grace_seconds + kill_after_seconds"
            )


def load(environ: Mapping[str, str] = os.environ, **overrides: Any) -> Settings:
    """The settings in force. `RESCIND_CONFIG` names another file than ./rescind.toml."""
    values = _from_file(environ.get("RESCIND_CONFIG"))
    for name in Settings.__struct_fields__:
        if (text := environ.get(f"RESCIND_{name.upper()}")) is not None:
            values[name] = text
    values.update({name: value for name, value in overrides.items() if value is not None})
    return _convert(values)


def _from_file(named: str | None) -> dict[str, Any]:
    path = Path(named or "rescind.toml")
    if not named and not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidSettings(f"{path} cannot be read: {problem}") from problem


def _convert(values: dict[str, Any]) -> Settings:
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as problem:
        # msgspec ends with a path, as in "Expected `int`, got `str` - at `$.concurrency`": it goes first.
        words, _, path = str(problem).partition(" - at `$.")
        raise InvalidSettings(_named(path.rstrip("`"), words)) from problem


def _named(name: str, problem: str) -> str:
    return f"setting {name} (RESCIND_{name.upper()}): {problem}" if name else f"settings: {problem}"


def default_url() -> str:
    return f"sqlite://{user_data_path('rescind') / 'rescind.db'}"
