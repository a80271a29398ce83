"""One package per store; they know neither each other nor the worker."""
