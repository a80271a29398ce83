"""The command line. It speaks to the queue and the worker, never to an engine."""


def main() -> None:
    """The `rescind` console script."""
    from rescind.cli.app import run  # typer is not imported by those who only import rescind.cli.*

    run()
