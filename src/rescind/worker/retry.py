"""How long to wait before a failed job is tried again."""

from typing import Annotated

import msgspec


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential, with jitter so that jobs which failed together do not come back together."""

    first_seconds: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    factor: Annotated[float, msgspec.Meta(ge=1)] = 2.0
    longest_seconds: Annotated[float, msgspec.Meta(ge=0)] = 3600.0
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.25

    def delay_seconds(self, failures: int, chance: float) -> float:
        """The pause after this many failures before the current one; `chance` is a number in [0, 1)."""
        steps = min(failures, 64)  # beyond that every pause is the longest, and the power would overflow
        delay = min(self.first_seconds * self.factor**steps, self.longest_seconds)
        return delay * (1 + self.jitter * (2 * chance - 1))
