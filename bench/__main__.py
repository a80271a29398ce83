"""`python -m bench`: measure rescind beside other queues, in one run, on this machine."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.conditions import conditions, load_average
from bench.environments import CACHE, CONTENDERS
from bench.harness import Harness, aims, say
from bench.measurements import SIZES, measurements
from bench.report import report

FORMAT = 1  # of the JSON; raised when a reader would have to change


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything could be measured, whether or not the aims were met; 1 when something broke."""
    options = _options(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=options.directory))
    try:
        run = _run(options, directory)
    finally:
        shutil.rmtree(directory)
    print(report(run))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n")
    return 1 if run["failures"] else 0


def _run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    size = SIZES[options.size]
    chosen = [each for each in measurements(size) if not options.only or each.name in options.only]
    begun, here = time.monotonic(), conditions(directory)
    with Harness(directory, options.contender or list(CONTENDERS), say) as harness:
        results = [harness.run(each, options.rounds or size.rounds) for each in chosen]
    return {
        "format": FORMAT,
        "size": options.size,
        "rounds": options.rounds or size.rounds,
        "seconds": round(time.monotonic() - begun, 1),
        "conditions": here,
        "load_average_after": load_average(),
        "server": harness.server,
        "contenders": harness.about,
        "measurements": (found := [each for each in results if each is not None]),
        "aims": aims(found),
        "failures": harness.failures,
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [each.name for each in measurements(SIZES["tiny"])]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=names, help="only this measurement; may be repeated"
    )
    parser.add_argument("--contender", action="append", choices=list(CONTENDERS), help="only this contender")
    parser.add_argument("--size", choices=list(SIZES), default="full", help="how much is measured")
    parser.add_argument(
        "--quick", dest="size", action="store_const", const="quick", help="the same as --size quick"
    )
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything that was found to this file"
    )
    parser.add_argument("--directory", type=Path, default=CACHE / "data", help="where the stores are put")
    return parser.parse_args(arguments)


def _stop(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # on the way out contenders and server are ended, stores removed
    sys.exit(main())
