"""What is measured on SQLite, of rescind and huey."""

from bench.measurements.value import LOOK_SECONDS, Measurement, Ratio, Size, Variant

RESCIND, HUEY = "rescind-sqlite", "huey-sqlite"


def measurements(size: Size) -> list[Measurement]:
    """The claims come last: the gigabytes they write are still on their way to the disk for a while."""
    makers = (_submit, _drain, _cancel, _latency, _silence, _stop, _claim)
    return [make(size) for make in makers]


def _submit(size: Size) -> Measurement:
    few = max(1, size.submits // 3)
    threads, ours, theirs = "rescind, 4 threads", "rescind, 4 at a time", "huey, 4 threads"
    single, bulk = "rescind, one after another", f"rescind, submit_many({size.bulk:,})"
    return Measurement(
        "submit",
        "Durable submits: each is on disk when its caller goes on",
        "per second",
        (
            Variant(theirs, HUEY, "submit", {"count": size.submits, "threads": 4}),
            Variant(threads, RESCIND, "submit_threads", {"count": size.submits, "threads": 4}),
            Variant(ours, RESCIND, "submit", {"count": size.submits, "callers": 4}),
            Variant("rescind, 10 at a time", RESCIND, "submit", {"count": size.submits, "callers": 10}),
            Variant("huey, one after another", HUEY, "submit", {"count": few, "threads": 1}),
            Variant(single, RESCIND, "submit", {"count": few, "callers": 1}),
            Variant(bulk, RESCIND, "submit_many", {"count": size.bulk}),
        ),
        (
            Ratio("4 threads, rescind to huey", (threads,), (theirs,), at_least=1),
            Ratio("4 callers, rescind asyncio to huey threads", (ours,), (theirs,), at_least=1),
            Ratio("bulk to single, one after another", (bulk,), (single,), at_least=10),
            Ratio("bulk to single, 4 at a time", (bulk,), (ours,)),
        ),
        remarks=("huey stores the pickled task; rescind a row of facts, its indexes and a line of history.",),
    )


def _drain(size: Size) -> Measurement:
    def huey(threads: int, keep_results: bool) -> Variant:
        label = f"huey, {threads} thread{'s' * (threads > 1)}" + (", results kept" if keep_results else "")
        parameters = {"count": size.drained, "threads": threads, "keep_results": keep_results}
        return Variant(label, HUEY, "drain", parameters)

    def ours(concurrency: int, threads: bool) -> Variant:
        label = f"rescind, {'thread' if threads else 'async'} handlers, {concurrency} at a time"
        parameters = {"count": size.drained, "concurrency": concurrency, "threads": threads}
        return Variant(label, RESCIND, "drain", parameters)

    theirs = (huey(1, False), huey(4, False), huey(1, True), huey(4, True))
    asynchronous, threaded = (ours(10, False), ours(100, False)), (ours(10, True), ours(100, True))
    every = tuple(each.label for each in theirs)
    keeping = tuple(each.label for each in theirs if each.parameters["keep_results"])
    default = (asynchronous[0].label,)
    best = tuple(each.label for each in asynchronous)
    return Measurement(
        "drain",
        "Noop jobs finished by one worker process",
        "per second",
        (*theirs, *asynchronous, *threaded),
        (
            Ratio("drain, rescind's best to huey's best", best, every, at_least=1),
            Ratio("drain, rescind's default to huey's best", default, every, at_least=1),
            Ratio("drain, rescind's default to huey's best that keeps results", default, keeping),
            Ratio("drain, thread handlers at 10 to huey's best", (threaded[0].label,), every),
        ),
        remarks=(
            "huey deletes a task before it runs and, without results, keeps no trace: a crash loses it.",
            "rescind records claim and outcome of every job, and a crash brings the job back.",
        ),
    )


def _cancel(size: Size) -> Measurement:
    by_type, many, revoke = "rescind, cancel_by_type", "rescind, cancel_many", "huey, revoke_by_id"
    count = {"count": size.cancelled}
    return Measurement(
        "cancel",
        f"Cancels of {size.cancelled:,} waiting jobs",
        "per second",
        (
            Variant(by_type, RESCIND, "cancel_by_type", count),
            Variant(many, RESCIND, "cancel_many", count),
            Variant(revoke, HUEY, "cancel", count),
        ),
        (
            Ratio("cancel_by_type to huey's revoke", (by_type,), (revoke,)),
            Ratio("cancel_many to huey's revoke", (many,), (revoke,)),
        ),
        remarks=(
            "A revoke is a note that a consumer reads when it reaches the task, which stays queued till then;"
            " it says neither who nor why nor whether it stopped anything. huey has no bulk form of it.",
        ),
    )


_CROWDS = {
    "ready": "ready",
    "future": "of higher priority in the future",
    "parked": "parked on one busy singleton key",
    "waiting": "waiting for another job",
    "other_need": "of another need",
    "hundred_needs": "ready, over 100 needs served at once",
}


def _claim(size: Size) -> Measurement:
    few = 1_000
    variants: list[Variant] = []
    ratios: list[Ratio] = []

    def variant(shape: str, jobs: int, limit: int) -> str:
        label = f"limit {limit}, {jobs:,} {_CROWDS[shape]}"
        times = size.claims if limit == 1 else max(2, size.claims // 4)
        parameters = {"shape": shape, "size": jobs, "limit": limit, "times": times}
        variants.append(Variant(label, RESCIND, "claim", parameters))
        return label

    for limit in (1, 100):
        small = {shape: variant(shape, few, limit) for shape in ("ready", "hundred_needs")}
        for shape, words in _CROWDS.items():
            large = variant(shape, size.crowd, limit)
            base = small.get(shape, small["ready"])
            label = f"claim of {limit}, {size.crowd:,} {words}"
            ratios.append(Ratio(f"{label}: time", (large,), (base,), at_most=1.5))
            ratios.append(Ratio(f"{label}: processor", (large,), (base,), of="cpu", at_most=1.5))
    stores = [("ready", few), ("hundred_needs", few), *((shape, size.crowd) for shape in _CROWDS)]
    return Measurement(
        "claim",
        f"One claim, beside {few:,} and beside {size.crowd:,} jobs",
        "ms",
        tuple(variants),
        tuple(ratios),
        prepare=(Variant("stores", RESCIND, "build", {"stores": stores}),),
        remarks=(
            "What was claimed is released at once, so that every claim finds the same store.",
            "Time includes one fsync, which hides growth; the processor's share does not.",
        ),
    )


def _latency(size: Size) -> Measurement:
    parameters = {"count": size.samples, "pause_seconds": 0.07, "look_seconds": LOOK_SECONDS}
    return Measurement(
        "latency",
        "From submit to done, worker in another process, a job every 70 ms",
        "ms",
        (Variant("rescind", RESCIND, "latency", parameters), Variant("huey", HUEY, "latency", parameters)),
        (Ratio("time to done, rescind to huey", ("rescind",), ("huey",)),),
        remarks=("Seen by a caller who looks every millisecond.",),
    )


def _silence(size: Size) -> Measurement:
    parameters = {"count": size.silent_samples, "pause_seconds": 2.5, "look_seconds": LOOK_SECONDS}
    return Measurement(
        "silence",
        "From submit to done after 2.5 s of silence",
        "ms",
        (Variant("rescind", RESCIND, "latency", parameters),),
        remarks=("A rescind worker that heard nothing for 2 s looks less often.",),
    )


def _stop(size: Size) -> Measurement:
    def variant(label: str, apart: bool) -> Variant:
        return Variant(
            label, RESCIND, "stop", {"count": size.samples, "look_seconds": LOOK_SECONDS, "apart": apart}
        )

    return Measurement(
        "stop",
        "From cancel to stopped, a running async job",
        "ms",
        (variant("worker in another process", True), variant("worker in this process", False)),
        remarks=("huey cannot stop a running task.",),
    )
