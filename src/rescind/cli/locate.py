"""From `MODULE:WORKER` to the worker, with a clear word for each way it can go wrong."""

import importlib
import sys
import traceback
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from rescind.errors import InvalidInput
from rescind.worker import Worker


def locate(target: str) -> Worker:
    """Import as Python would from the current directory."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise InvalidInput(f"{target!r} names no worker: write MODULE:WORKER, as in app:worker")
    module = _import(module_name)
    try:
        found = attrgetter(name)(module)
    except AttributeError:
        raise InvalidInput(f"{module_name} has no {name}: {_offer(module)}") from None
    if not isinstance(found, Worker):
        raise InvalidInput(f"{target} is a {type(found).__name__}, not a Worker: {_offer(module)}")
    return found


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name and f"{name}.".startswith(f"{problem.name}."):
            raise InvalidInput(f"no module {name} here ({here}) or among the installed packages") from problem
        raise InvalidInput(_blame(name, problem)) from problem
    except Exception as problem:
        raise InvalidInput(_blame(name, problem)) from problem


def _blame(name: str, problem: Exception) -> str:
    """The module is there but broken: say where, without the frames of the import machinery."""
    last = traceback.extract_tb(problem.__traceback__)[-1]
    place = "" if isinstance(problem, SyntaxError) else f" ({last.filename}, line {last.lineno})"
    return f"importing {name} failed: {type(problem).__name__}: {problem}{place}"


def _offer(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Worker))
    if not names:
        return "it has no Worker at all; make one: worker = rescind.Worker()"
    return f"its workers are {', '.join(f'{module.__name__}:{name}' for name in names)}"
