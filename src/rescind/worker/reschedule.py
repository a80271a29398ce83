"""What a handler returns to send its job on instead of ending it."""

from collections.abc import Sequence
from datetime import datetime

import msgspec


class Reschedule(msgspec.Struct, frozen=True, kw_only=True):
    """The job goes back to the queue: for another `need`, after other jobs, at a time, or after a delay.

    What is not said stays as it is; `singleton_key=""` takes the key away.
    """

    need: str | None = None
    wait_for: Sequence[str] = ()
    at: datetime | None = None
    delay_seconds: float = 0
    singleton_key: str | None = None
