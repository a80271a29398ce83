"""Every metric rescind has, each defined once. Exporters stay outside: read `prometheus_client.REGISTRY`."""

from functools import lru_cache
from typing import Final, TypeVar

from prometheus_client import Counter, Histogram

M = TypeVar("M", Counter, Histogram)

SUBMITTED: Final = Counter("rescind_jobs_submitted", "Jobs accepted", ["need"])
CLAIMED: Final = Counter("rescind_jobs_claimed", "Attempts started", ["need"])
SETTLED: Final = Counter(
    "rescind_jobs_settled", "Attempts ended, by the state that followed", ["need", "state"]
)
LEASES_LOST: Final = Counter("rescind_leases_lost", "Attempts whose lease ended before they did", ["need"])
RUN_SECONDS: Final = Histogram("rescind_run_seconds", "How long handlers ran", ["need"])

CANCELLED: Final = Counter("rescind_tasks_cancelled", "Jobs whose end was CANCELLED", ["task_type"])
CANCEL_REQUESTS: Final = Counter("rescind_cancel_requests", "Cancels asked for", ["task_type", "outcome"])
CANCEL_SECONDS: Final = Histogram(
    "rescind_cancel_seconds",
    "From the request to each stage of the receipt",
    ["need", "stage"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)

SWEPT: Final = Counter("rescind_swept", "Jobs moved by sweeps", ["kind"])
SWEEP_FAILURES: Final = Counter("rescind_sweep_failures", "Sweeps that ended in an error")


@lru_cache(maxsize=4096)
def child(metric: M, *labels: str) -> M:
    """The time series for these labels, looked up once: a busy worker asks thousands of times a second."""
    return metric.labels(*labels)
