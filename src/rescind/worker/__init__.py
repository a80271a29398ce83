"""The worker: claims jobs, runs their handlers, and really stops them."""

from rescind.worker.context import Context
from rescind.worker.reschedule import Reschedule
from rescind.worker.retry import Retry
from rescind.worker.worker import Worker

__all__ = ["Context", "Reschedule", "Retry", "Worker"]
