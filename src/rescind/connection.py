"""`connect`: from a URL, a bucket or the settings to an open queue."""

from collections.abc import Generator
from typing import Any
from urllib.parse import urlencode

from rescind.clock import SYSTEM_CLOCK, Clock
from rescind.engine import open_engine
from rescind.errors import InvalidInput
from rescind.queue import Queue
from rescind.settings import Settings, default_url, load


class connect:  # noqa: N801 - reads as the function it stands for
    """Open a queue: `queue = await connect(...)`, or `async with connect(...) as queue`.

    Give a URL, or `bucket=` for an S3-compatible store; by default `RESCIND_URL`, `rescind.toml`, or one
    SQLite file in the user's data directory. `create=False` refuses to start a queue that is not there.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        bucket: str | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        by: str | None = None,
        create: bool = True,
        settings: Settings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if url and bucket:
            raise InvalidInput("give a URL or a bucket, not both")
        self._by = by
        self._create = create
        self._settings = settings or load()
        named = url or (bucket and _bucket_url(bucket, endpoint, region)) or self._settings.url
        self.engine = open_engine(named or default_url(), clock=clock)

    def __await__(self) -> Generator[Any, None, Queue]:
        return self._open().__await__()

    async def __aenter__(self) -> Queue:
        self._queue = await self._open()
        return self._queue

    async def __aexit__(self, *_: object) -> None:
        await self._queue.close()

    async def _open(self) -> Queue:
        try:
            await self.engine.install(create=self._create)
        except BaseException:
            await self.engine.close()
            raise
        return Queue(self.engine, self._settings, by=self._by)


def _bucket_url(bucket: str, endpoint: str | None, region: str | None) -> str:
    options = {name: value for name, value in (("endpoint", endpoint), ("region", region)) if value}
    return f"s3://{bucket}" + (f"?{urlencode(options)}" if options else "")
