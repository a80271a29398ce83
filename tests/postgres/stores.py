"""A store that exists already, for a harness that is to reach it in a way of its own."""

from rescind.engine import Engine, open_engine


class Existing:
    def __init__(self, url: str) -> None:
        self.url: str | None = url

    def connect(self) -> Engine:
        assert self.url is not None
        return open_engine(self.url)

    async def advance(self, seconds: float) -> None:
        raise NotImplementedError("its time is not ours to move")

    async def drop(self) -> None:
        """It is not ours."""
