"""A job `a` in any state, made by the moves that lead there."""

from tests.pgwf.client import Client


def in_state(db: Client, state: str, need: str = "work") -> str:
    """The lease of the job, if it has or had one. `lapsed` is READY after a lease that ran out, `CANCELLING`
    is ACTIVE and asked to stop, and of an `unknown` job there is nothing."""
    lease = ""
    match state:
        case "unknown":
            pass
        case "PENDING_JOBS":
            db.submit("first", "first")
            db.submit("a", need, p_wait_for=["first"])
        case "AWAITING_FUTURE":
            db.submit_in("1 h", "a", need)
        case "COMPLETED":
            db.completed("a", need)
        case "ACTIVE" | "CANCELLING" | "lapsed":
            lease = db.held("a", need)
        case "FAILED":
            lease = db.held("a", need, p_max_attempts=1)
        case "READY" | "CANCELLED" | "archived":
            db.submit("a", need)
        case _:
            raise ValueError(state)
    if state in ("FAILED", "lapsed"):
        db.advance(61)
    if state in ("CANCELLING", "CANCELLED", "archived"):
        db.cancel("a")
    if state == "archived":
        db.archive()
    return lease
