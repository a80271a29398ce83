"""A task: a handler registered for a need, and how it is to be run."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from rescind.errors import InvalidInput
from rescind.spec import check_need, check_seconds
from rescind.worker.retry import Retry

Handler = Callable[..., Any]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    need: str
    handler: Handler
    takes_context: bool
    is_async: bool
    timeout_seconds: float | None
    grace_seconds: float | None
    retry: Retry


def make_task(
    need: str,
    handler: Handler,
    *,
    timeout_seconds: float | None = None,
    grace_seconds: float | None = None,
    retry: Retry | None = None,
) -> Task:
    """Check a handler where it is registered, not when its first job arrives."""
    if timeout_seconds is not None and check_seconds(timeout_seconds, "timeout_seconds") == 0:
        raise InvalidInput("timeout_seconds must be above 0")
    if grace_seconds is not None:
        check_seconds(grace_seconds, "grace_seconds")
    return Task(
        need=check_need(need),
        handler=handler,
        takes_context=_takes_context(need, handler),
        is_async=_is_async(handler),
        timeout_seconds=timeout_seconds,
        grace_seconds=grace_seconds,
        retry=retry or Retry(),
    )


def _takes_context(need: str, handler: Handler) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(handler).parameters.values() if p.kind in positional]
    required = sum(p.default is inspect.Parameter.empty for p in parameters)
    if required > 2 or not parameters:
        raise InvalidInput(f"the handler of {need!r} must take (input) or (input, context)")
    return len(parameters) >= 2


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
