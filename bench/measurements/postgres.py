"""What is measured on PostgreSQL, of rescind, PgQueuer and procrastinate, on one server."""

from dataclasses import replace
from typing import Any

from bench.measurements import growth
from bench.measurements.value import LOOK_SECONDS, Measurement, Ratio, Size, Variant

RESCIND, PGQUEUER, PROCRASTINATE = "rescind-postgres", "pgqueuer-postgres", "procrastinate-postgres"
TRACES = {"trace off": False, "trace on": True}
CALLERS = 10


def measurements(size: Size) -> list[Measurement]:
    """Those that build large stores come last: what they write is on its way to the disk for a while."""
    makers = (_submit, _bulk, _drain, _cancel, _latency, _done, _stop, _crowd)
    return [*(make(size) for make in makers), growth.measurement(size)]


def _ours(measure: str, parameters: dict[str, Any], words: str = "") -> tuple[Variant, ...]:
    """rescind with and without a line of history for every move."""
    return tuple(
        Variant(f"rescind{words}, {label}", RESCIND, measure, {**parameters, "trace": trace})
        for label, trace in TRACES.items()
    )


def _level(
    what: str, ours: tuple[Variant, ...], theirs: tuple[Variant, ...], *, time: bool = False
) -> tuple[Ratio, ...]:
    """Level with the best of PgQueuer, our best with trace off and our best with trace on."""
    ratios = []
    for label, trace in TRACES.items():
        ratio = Ratio(
            f"PostgreSQL, {what}: rescind, {label}, to PgQueuer",
            tuple(each.label for each in ours if each.parameters["trace"] is trace),
            tuple(each.label for each in theirs),
        )
        ratios.append(replace(ratio, at_most=1.0) if time else replace(ratio, at_least=1.0))
    return tuple(ratios)


def _processor(what: str, ours: tuple[Variant, ...], theirs: tuple[Variant, ...]) -> tuple[Ratio, ...]:
    """The processor time per job, of the worker and of the server, at most that of PgQueuer."""
    below = tuple(each.label for each in theirs)
    return tuple(
        Ratio(
            f"PostgreSQL, {what}, {words}: rescind, {label}, to PgQueuer",
            tuple(each.label for each in ours if each.parameters["trace"] is trace),
            below,
            of=of,
            at_most=1.0,
        )
        for of, words in (("cpu", "processor of the worker"), ("server_cpu", "processor of the server"))
        for label, trace in TRACES.items()
    )


def _submit(size: Size) -> Measurement:
    parameters = {"count": size.submits, "callers": CALLERS}
    theirs = (Variant("PgQueuer", PGQUEUER, "submit", parameters),)
    ours = _ours("submit", parameters)
    return Measurement(
        "postgres-submit",
        f"PostgreSQL: single submits, {CALLERS} at a time",
        "per second",
        (*theirs, Variant("procrastinate", PROCRASTINATE, "submit", parameters), *ours),
        _level("single submits", ours, theirs),
    )


def _bulk(size: Size) -> Measurement:
    parameters = {"count": size.bulk}
    theirs = (Variant("PgQueuer", PGQUEUER, "submit_many", parameters),)
    ours = _ours("submit_many", parameters)
    return Measurement(
        "postgres-bulk",
        f"PostgreSQL: {size.bulk:,} jobs submitted by one call",
        "per second",
        (*theirs, Variant("procrastinate", PROCRASTINATE, "submit_many", parameters), *ours),
        _level("bulk submit", ours, theirs),
    )


def _drain(size: Size) -> Measurement:
    count, few = size.drained * 5, size.drained // 2

    def pgqueuer(batch_size: int, measure: str = "drain", words: str = "") -> Variant:
        parameters = {"count": count, "batch_size": batch_size}
        return Variant(f"PgQueuer, batches of {batch_size:,}{words}", PGQUEUER, measure, parameters)

    def procrastinate(concurrency: int) -> Variant:
        parameters = {"count": few, "concurrency": concurrency}
        return Variant(f"procrastinate, {concurrency} at a time", PROCRASTINATE, "drain", parameters)

    theirs = (pgqueuer(10), pgqueuer(100), pgqueuer(1000))
    ours = tuple(
        each
        for concurrency in (10, 100, 1000)
        for each in _ours(
            "drain", {"count": count, "concurrency": concurrency}, f", {concurrency:,} at a time"
        )
    )
    return Measurement(
        "postgres-drain",
        "PostgreSQL: noop jobs finished by one worker process, async handlers",
        "per second",
        (
            *theirs,
            pgqueuer(1000, "drain_on_uvloop", ", on uvloop"),
            procrastinate(10),
            procrastinate(100),
            *ours,
        ),
        (*_level("drain", ours, theirs), *_processor("drain", ours, theirs)),
        remarks=(
            "Until the last outcome is in the store; each side's best in each round.",
            "PgQueuer starts all that it fetches; the others, as many handlers as may run at a time.",
            "procrastinate is given a tenth of the jobs, since it takes one statement for each.",
        ),
    )


def _crowd(size: Size) -> Measurement:
    count = size.drained * 5
    crowd = {"size": size.crowd}
    theirs = (
        Variant(
            "PgQueuer, batches of 1,000",
            PGQUEUER,
            "drain_crowd",
            {**crowd, "count": count, "batch_size": 1000},
        ),
    )
    ours = _ours("drain_crowd", {**crowd, "count": count, "concurrency": 1000}, ", 1,000 at a time")
    slow = {**crowd, "count": max(1, size.drained // 4), "concurrency": 10}
    return Measurement(
        "postgres-crowd",
        f"PostgreSQL: the same with {size.crowd:,} jobs ready",
        "per second",
        (
            *theirs,
            Variant("procrastinate, 10 at a time", PROCRASTINATE, "drain_crowd", slow),
            *ours,
        ),
        (*_level(f"drain at {size.crowd:,}", ours, theirs),),
        prepare=tuple(
            Variant(f"{size.crowd:,} jobs of {name}", name, "build_crowd", crowd)
            for name in (PGQUEUER, PROCRASTINATE, RESCIND)
        ),
        remarks=("What was drained is put back after each turn.",),
    )


def _cancel(size: Size) -> Measurement:
    parameters = {"count": size.cancelled}
    theirs = (Variant("PgQueuer, mark_job_as_cancelled", PGQUEUER, "cancel", parameters),)
    slow = {**parameters, "callers": CALLERS}
    by_type = _ours("cancel_by_type", parameters, ", cancel_by_type")
    by_ids = _ours("cancel_many", parameters, ", cancel_many")
    return Measurement(
        "postgres-cancel",
        f"PostgreSQL: cancels of {size.cancelled:,} waiting jobs",
        "per second",
        (
            *theirs,
            Variant("procrastinate, cancel_job_by_id", PROCRASTINATE, "cancel", slow),
            *by_type,
            *by_ids,
        ),
        (*_level("cancel_by_type", by_type, theirs), *_level("cancel_many", by_ids, theirs)),
        remarks=(
            "PgQueuer deletes the jobs and writes a line of log for each; it says neither who nor why, and a"
            " running job that misses the notification runs on.",
        ),
    )


def _idle(size: Size, name: str, title: str, until: str, remarks: tuple[str, ...] = ()) -> Measurement:
    parameters = {
        "count": size.samples,
        "pause_seconds": 0.07,
        "look_seconds": LOOK_SECONDS,
        "until": until,
    }
    theirs = (Variant("PgQueuer", PGQUEUER, "latency", parameters),)
    ours = _ours("latency", parameters)
    return Measurement(
        f"postgres-{name}",
        title,
        "ms",
        (*theirs, Variant("procrastinate", PROCRASTINATE, "latency", parameters), *ours),
        _level(name, ours, theirs, time=True),
        remarks=remarks,
    )


def _latency(size: Size) -> Measurement:
    return _idle(
        size,
        "latency",
        "PostgreSQL: from submit to the handler's first line, idle worker in another process",
        "begun",
    )


def _done(size: Size) -> Measurement:
    return _idle(
        size,
        "done",
        "PostgreSQL: from submit to done, idle worker in another process",
        "seen",
        (
            "Seen by a caller who looks every millisecond.",
            "PgQueuer writes outcomes down when a batch is full or a tenth of a second has passed.",
        ),
    )


def _stop(size: Size) -> Measurement:
    theirs = (Variant("PgQueuer", PGQUEUER, "stop", {"count": size.samples}),)
    ours = _ours("stop", {"count": size.samples, "look_seconds": LOOK_SECONDS, "until": "ended"})
    seen = _ours("stop", {"count": size.samples, "look_seconds": LOOK_SECONDS}, ", until seen cancelled")
    return Measurement(
        "postgres-stop",
        "PostgreSQL: from cancel to the last line of a running async handler in another process",
        "ms",
        (
            *theirs,
            Variant("procrastinate, abort", PROCRASTINATE, "stop", {"count": size.samples}),
            *ours,
            *seen[:1],
        ),
        _level("cancel to stop", ours, theirs, time=True),
        remarks=(
            "PgQueuer's and procrastinate's handlers are cancelled; rescind's waits for the request to stop.",
        ),
    )
