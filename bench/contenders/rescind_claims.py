"""What a claim costs in stores of different sizes and shapes, each built once and left as it was found."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import batched as _batched  # type: ignore[attr-defined,unused-ignore]
from pathlib import Path
from typing import Any

from bench.contenders.protocol import Answer, answer
from rescind import Job, Queue, Settings, connect
from rescind.engine import Claim
from rescind.lease import Release

FAR = datetime(2100, 1, 1, tzinfo=UTC)
