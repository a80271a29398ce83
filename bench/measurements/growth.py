"""What one call costs the server beside few jobs and beside many, on PostgreSQL."""

from bench.measurements.value import Measurement, Ratio, Size, Variant

RESCIND = "rescind-postgres"
FEW = 1_000
AT_MOST = 1.5

_CROWDS = {
    "ready": "ready",
    "future": "of higher priority in the future",
    "parked": "blocked on one busy singleton key",
    "waiting": "waiting for another job",
    "other_need": "of another need",
    "hundred_needs": "ready, over 100 needs served at once",
    "dependents": "jobs, each awaited by another",
    "cancelled": "cancelled",
}


def measurement(size: Size) -> Measurement:
    variants: dict[str, Variant] = {}
    ratios: list[Ratio] = []

    def variant(call: str, shape: str, jobs: int) -> str:
        label = f"{call.partition(',')[0]}, {jobs:,} {_CROWDS[shape]}"
        times = max(2, size.claims // 3)
        parameters = {"call": call, "shape": shape, "size": jobs, "times": times}
        variants[label] = Variant(label, RESCIND, "cost", parameters)
        return label

    def compare(call: str, shape: str, jobs: int, base: str) -> None:
        small, large = variant(call, base, FEW), variant(call, shape, jobs)
        for of, words in (("value", "time"), ("buffers", "pages")):
            ratios.append(Ratio(f"PostgreSQL, {large}: {words}", (large,), (small,), of=of, at_most=AT_MOST))

    many = max(2 * FEW, size.crowd // 10)
    for limit in (1, 100):
        for shape in ("ready", "future", "parked", "waiting", "other_need"):
            compare(f"get_work({limit})", shape, size.crowd, "ready")
        compare(f"get_work({limit}), 100 needs", "hundred_needs", size.crowd, "hundred_needs")
    compare("complete_job", "dependents", many, "dependents")
    compare("cancel_job", "ready", size.crowd, "ready")
    compare("archive_cancelled_jobs(500)", "cancelled", many, "cancelled")
    stores = sorted({(each.parameters["shape"], each.parameters["size"]) for each in variants.values()})
    build = {"stores": stores, "archived": size.crowd}
    return Measurement(
        "postgres-growth",
        f"PostgreSQL: what one call costs the server, {size.crowd:,} archived jobs beside it",
        "ms",
        tuple(variants.values()),
        tuple(ratios),
        prepare=(Variant("stores of many shapes", RESCIND, "build", build),),
        remarks=(
            "Execution time and pages (shared buffers hit and read) as EXPLAIN (ANALYZE, BUFFERS) has them.",
            "Each call is rolled back, so there is no fsync in it.",
        ),
    )
