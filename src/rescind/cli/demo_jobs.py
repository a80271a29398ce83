"""The cast and the plot of the demo: ten pretend jobs, their handlers, and who takes which back when."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

from rescind.clock import SYSTEM_CLOCK
from rescind.settings import Settings
from rescind.spec import SubmitOptions
from rescind.worker import Context, Worker

STEP_SECONDS: Final = 0.1
GRACE_SECONDS: Final = 0.6


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One job: how long it would run and what it would cost if nobody stopped it."""

    id: str
    title: str
    need: str
    seconds: float
    dollars: float
    options: SubmitOptions = {}

    def spent_dollars(self, ran_seconds: float) -> float:
        return self.dollars * min(1.0, ran_seconds / self.seconds)


class Cue(msgspec.Struct, frozen=True, kw_only=True):
    at_seconds: float
    id: str
    by: str
    reason: str


PARTS: Final = (
    Part(id="trailer", title="Render the trailer", need="render-video", seconds=30, dollars=4.80),
    Part(id="meeting", title="Transcribe a meeting", need="transcribe", seconds=25, dollars=1.50),
    Part(id="spam-filter", title="Train the spam filter", need="train-model", seconds=60, dollars=18.00),
    Part(id="reviews", title="Summarise 400 reviews", need="llm-batch", seconds=40, dollars=9.60),
    Part(id="photos", title="Resize holiday photos", need="resize", seconds=5, dollars=0.20),
    Part(id="invoices", title="Print the invoices", need="print-pdf", seconds=8, dollars=0.40),
    Part(id="wiki", title="Index the wiki", need="index", seconds=20, dollars=2.20),
    Part(id="backups", title="Check the backups", need="check", seconds=4, dollars=0.10),
    Part(
        id="minutes",
        title="Mail the minutes",
        need="mail",
        seconds=3,
        dollars=0.30,
        options={"wait_for": ["meeting"], "on_dependency_cancelled": "cancel"},
    ),
    Part(
        id="newsletter",
        title="Send the newsletter",
        need="mail",
        seconds=6,
        dollars=3.10,
        options={"delay_seconds": 30},
    ),
)

CUES: Final = (
    Cue(at_seconds=1.8, id="wiki", by="user:dana", reason="the wiki moves next week"),
    Cue(at_seconds=2.8, id="trailer", by="user:alice", reason="wrong soundtrack"),
    Cue(at_seconds=4.2, id="meeting", by="user:bob", reason="it was uploaded twice"),
    Cue(at_seconds=5.6, id="spam-filter", by="user:carol", reason="the loss is NaN"),
    Cue(at_seconds=7.2, id="reviews", by="user:finance", reason="over this month's budget"),
    Cue(at_seconds=8.2, id="newsletter", by="user:erin", reason="typo in the subject line"),
)

THREADED: Final = frozenset({"transcribe"})
DEAF: Final = frozenset({"train-model"})


def settings(url: str) -> Settings:
    """Its own, so that nothing in the environment changes what a newcomer sees."""
    return Settings(
        url=url,
        concurrency=6,
        lease_seconds=10,
        heartbeat_seconds=1,
        grace_seconds=3,
        kill_after_seconds=1,
        drain_seconds=0,
    )


def make_worker(speed: float) -> Worker:
    """All three kinds of handlers: attentive coroutines, one in a thread, one deaf to the flag."""
    worker = Worker(name="demo-worker")
    for need in dict.fromkeys(part.need for part in PARTS):
        worker.task(need, grace_seconds=GRACE_SECONDS)(_handler(need, speed))
    return worker


def _handler(need: str, speed: float) -> Callable[[Any, Context], Any]:
    async def attentive(input: dict[str, float], context: Context) -> str | None:
        for fraction in _steps(input["seconds"], speed):
            if context.is_cancellation_requested():
                return None
            context.progress(fraction)
            with suppress(TimeoutError):  # work on, but wake up at once when it is time to stop
                await asyncio.wait_for(context.cancelled.wait(), STEP_SECONDS)
        return "done"

    async def deaf(input: dict[str, float], context: Context) -> str:
        for fraction in _steps(input["seconds"], speed):
            context.progress(fraction)
            await SYSTEM_CLOCK.sleep(STEP_SECONDS)
        return "done"

    def threaded(input: dict[str, float], context: Context) -> str:
        for fraction in _steps(input["seconds"], speed):
            context.progress(fraction)
            context.cancelled.wait_blocking(STEP_SECONDS)
            context.raise_if_cancelled()
        return "done"

    return threaded if need in THREADED else deaf if need in DEAF else attentive


def _steps(seconds: float, speed: float) -> Iterator[float]:
    number = max(1, round(seconds / speed / STEP_SECONDS))
    yield from (step / number for step in range(1, number + 1))
