"""Turns a forgotten `-p rescind.testing.plugin` into a sentence: the `harness` comes from it."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("rescind.testing.plugin"):
        raise pytest.UsageError(
            "the conformance suite needs its plugin: pytest -p rescind.testing.plugin ..."
        )
