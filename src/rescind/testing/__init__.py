"""What proves an engine: the conformance suite, the harness it drives engines with, and the invariants.

pytest -p rescind.testing.plugin --pyargs rescind.testing.conformance --rescind-engine my_module:MyStore
"""

from rescind.testing.engines import Factory, Store, factories
from rescind.testing.harness import Harness
from rescind.testing.invariants import Run, check_all
from rescind.testing.situation import WAYS, Way

__all__ = ["WAYS", "Factory", "Harness", "Run", "Store", "Way", "check_all", "factories"]
