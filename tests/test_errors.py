"""The errors: one tree, drawn in full, and each of them survives the way to another process."""

import copy
import inspect
import pickle
from typing import Any, Final

import pytest

from rescind import errors
from rescind.errors import RescindError, RetryableError
from rescind.state import State, TaskStatus

CLASSES: Final = [
    each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)
]
SAMPLES: Final[dict[str, Any]] = {
    "available": 3,
    "ids": ["one", "two"],
    "job_id": "one",
    "key": "once",
    "limit": 100,
    "name": "policies",
    "required": 5,
    "revision": 7,
    "size": 1000,
    "state": State.COMPLETED,
    "status": TaskStatus.Completed,
    "verb": "complete",
    "what": "input",
}


def raised(kind: type[Exception]) -> Exception:
    """One of this kind, as the code would raise it."""
    if not inspect.isfunction(kind.__init__) or kind is RetryableError:
        return kind("some words")
    return kind(*(SAMPLES[name] for name in inspect.signature(kind).parameters))


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickling_and_copying(kind: type[Exception]) -> None:
    problem = raised(kind)
    problem.add_note("seen in the nightly run")
    for again in (pickle.loads(pickle.dumps(problem)), copy.copy(problem)):
        assert type(again) is kind
        assert (str(again), again.args, vars(again)) == (str(problem), problem.args, vars(problem))


def test_what_a_handler_asked_for_survives_too() -> None:
    again = pickle.loads(pickle.dumps(RetryableError("busy", delay=3)))
    assert (str(again), again.delay) == ("busy", 3)


def test_the_tree_shows_each_error_below_its_parent() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").split("\n\n")[1].splitlines():
        name = line.lstrip(" │├└─").split()[0]
        depth = (line.index(name) - 4) // 4
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else "Exception"
    assert drawn == {
        kind.__name__: kind.__mro__[1].__name__ for kind in CLASSES if issubclass(kind, RescindError)
    }
