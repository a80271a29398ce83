"""`rescind demo`: what a newcomer sees first."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rescind.cli.options import Json
from rescind.cli.render import emit, out, show
from rescind.errors import InvalidInput

if TYPE_CHECKING:
    from rescind.cli.demo_stage import Role, Stage

_HINT = "Press a job's number to take it back (0 is 10), q to end."


def demo(
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Choose yourself which jobs to take back.")
    ] = False,
    speed: Annotated[float, typer.Option("--speed", min=0.1, max=10, help="Play it faster or slower.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Watch jobs being taken back while they wait and while they run: ten seconds, nothing stays behind."""
    from rescind.cli import demo_view

    if interactive and (as_json or not (sys.stdin.isatty() and _is_screen())):
        raise InvalidInput("--interactive needs a terminal; without it the demo plays by itself")
    roles = asyncio.run(_play(speed, interactive, as_json))
    if as_json:
        emit(demo_view.as_dict(roles))
        return
    out().print()
    if any(role.stopped for role in roles):
        show(demo_view.summary(roles))
        out().print()
    out().print(demo_view.closing(roles))


def _is_screen() -> bool:
    return out().is_terminal and not out().is_dumb_terminal


async def _play(speed: float, interactive: bool, as_json: bool) -> "list[Role]":
    from rich.live import Live

    from rescind.cli import demo_view
    from rescind.cli.demo_stage import play

    if as_json:
        return await play(demo_view.Silent(), speed)
    if not _is_screen():
        return await play(demo_view.Lines(out()), speed)
    with Live(console=out(), auto_refresh=False) as live:
        if interactive:
            return await play(demo_view.Screen(live, _HINT), speed, _directed_by_keys)
        return await play(demo_view.Screen(live), speed)


async def _directed_by_keys(stage: "Stage") -> None:
    from rescind.cli.demo_jobs import PARTS
    from rescind.cli.keys import pressed

    keys: asyncio.Queue[str] = asyncio.Queue()
    with pressed(keys.put_nowait):
        while (key := await keys.get()) != "q":
            if (number := "1234567890".find(key)) >= 0:
                await stage.cancel(PARTS[number].id, "user:you", "you pressed its number")
    stage.over.set()
