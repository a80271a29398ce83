"""From what PostgreSQL says to the errors of rescind: SQLSTATEs, refusals in answers, lost connections."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import asyncpg
import msgspec

from rescind import errors
from rescind.job import Job
from rescind.lifecycle import Verb
from rescind.state import STATUS_OF, State, TaskStatus

_WRONG_STATE: Final[dict[str, type[errors.WrongState]]] = {
    "PW003": errors.LeaseLost,
    "PW004": errors.JobCancelled,
    "PW005": errors.NotAvailable,
    "PW006": errors.CannotCancelError,
    "PW007": errors.WrongState,
}
_REFUSALS: Final[dict[str, type[errors.WrongState]]] = {
    "LeaseLost": errors.LeaseLost,
    "JobCancelled": errors.JobCancelled,
    "CannotCancel": errors.CannotCancelError,
    "WrongState": errors.WrongState,
}
_MADE_ANEW: Final = ("cache lookup failed", "could not open relation with OID")
_DUPLICATE: Final = re.compile(r"\(job_id\)=\((.*)\) already exists")

AWAY: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
"""The server cannot be reached, or went away before it answered."""


def lost_a_race(problem: asyncpg.PostgresError) -> bool:
    """Nothing was done, and doing it once more is all it takes."""
    if isinstance(problem, asyncpg.InternalServerError):  # the schema was made anew this moment
        return any(words in str(problem) for words in _MADE_ANEW)
    return isinstance(problem, asyncpg.SerializationError | asyncpg.DeadlockDetectedError)


@contextlib.contextmanager
def translated(place: str, verb: Verb | None = None) -> Iterator[None]:
    """Everything that goes wrong inside, at this place, comes out as an error of rescind."""
    try:
        yield
    except asyncpg.ClientConfigurationError as problem:  # it was our URL that it could not make sense of
        raise errors.InvalidInput(f"{place} cannot be opened: {problem}") from problem
    except AWAY as problem:
        raise errors.Unavailable(f"{place} cannot be reached: {_words(problem)}") from problem
    except asyncpg.PostgresError as problem:
        raise from_sqlstate(
            problem.sqlstate or "", _words(problem), getattr(problem, "detail", None), place, verb
        ) from problem


def _words(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return "it does not answer"
    if isinstance(problem, asyncpg.PostgresError):  # whose text would go on with details and hints
        return str(problem.args[0] if problem.args else type(problem).__name__)
    return str(problem) or type(problem).__name__


def from_sqlstate(
    code: str, words: str, detail: str | None, place: str, verb: Verb | None = None
) -> errors.RescindError:
    """By code, so that it is the same whichever driver brought it."""
    if code.startswith("PW"):
        return refused(code, words, _told(detail), verb)
    if code == "23505":
        found = _DUPLICATE.search(detail or "")
        return errors.DuplicateJob(found[1] if found else words)
    if code in ("40001", "40P01", "55P03", "57014"):
        return errors.StoreBusy(f"others held what this needed: {words}")
    if code in ("53100", "53200"):
        return errors.StoreFull(words)
    if code == "25006":
        return errors.StoreReadOnly(f"{words}: this server is a standby, or the database is read-only")
    if code == "42501":
        return errors.StoreReadOnly(
            f"{words}: the database user needs a role such as pgwf_producer or pgwf_worker"
        )
    if code == "3D000":
        return errors.NoSuchStore(f"{place} is not there: {words}. Create it, or correct the URL")
    if code in ("3F000", "42883"):
        return errors.NoSuchStore(f"{place} has no pgwf schema of this version: {words}")
    if code == "25P02":
        return errors.InvalidInput(f"{words}: roll this transaction back first")
    if code.startswith("22"):
        return errors.InvalidInput(words)
    return errors.Unavailable(f"{place} refused: {words} (SQLSTATE {code or 'unknown'})")


def refused(code: str, words: str, told: dict[str, Any], verb: Verb | None) -> errors.RescindError:
    """A refusal that a function of pgwf raised."""
    match code:
        case "PW001":
            return errors.JobNotFoundError(told.get("job_id", words))
        case "PW002":
            return errors.DuplicateJob(told.get("job_id", words))
        case "PW008":
            return errors.UnknownDependency(told["ids"])
        case "PW009":
            return errors.DependencyCycle(told["ids"])
        case "PW010":
            return errors.IdempotencyConflict(told["key"], told.get("job_id", "of another ledger entry"))
        case "PW011":
            return errors.InsufficientTokens(told["required"], told["available"])
        case "PW012":
            return errors.DocumentConflict(told["name"], told["revision"])
        case "PW013":
            return errors.StoreTooNew(words)
    state = State(told["state"])
    status = TaskStatus.Archived if told.get("purged") else STATUS_OF[state]
    return _WRONG_STATE[code](told["job_id"], (verb or Verb.CLAIM).value, state, status)


def _told(detail: str | None) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(detail or "{}")
    except msgspec.DecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def from_answer(
    refusal: str, detail: list[str] | None, job_id: str, job: Job | None, verb: Verb
) -> errors.RescindError:
    """A refusal inside a batch, which is a value and undoes only itself."""
    if refusal == "UnknownDependency":
        return errors.UnknownDependency(list(detail or ()))
    if refusal == "DependencyCycle":
        return errors.DependencyCycle(list(detail or ()))
    if refusal == "JobNotFound" or job is None:
        return errors.JobNotFoundError(job_id)
    return _REFUSALS[refusal](job.id, verb.value, job.state, job.status)
