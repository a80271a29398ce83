"""The options that commands share, each described once."""

from typing import Annotated

import msgspec
import typer

DEFAULT_PLACE = "RESCIND_URL, else rescind.toml, else one SQLite file in your data directory"


class Shared(msgspec.Struct, frozen=True):
    """What was said before the command; the same option after it wins."""

    url: str | None = None
    as_json: bool = False


def _url(context: typer.Context, value: str | None) -> str | None:
    return value or _shared(context).url


def _json(context: typer.Context, value: bool) -> bool:
    return value or _shared(context).as_json


def _shared(context: typer.Context) -> Shared:
    return context.obj if isinstance(context.obj, Shared) else Shared()


Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help=f"Where the queue lives; otherwise {DEFAULT_PLACE}.", callback=_url
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON and nothing else; errors are JSON on stderr.", callback=_json),
]
By = Annotated[
    str | None, typer.Option("--by", metavar="WHO", help="In whose name; otherwise user:YOUR-LOGIN.")
]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Job ids.")]
