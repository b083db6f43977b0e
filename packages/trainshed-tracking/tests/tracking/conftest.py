"""The service and the stores of the root's contract tests."""

from tests.contract.api.conftest import house, one_loop
from tests.contract.store.conftest import reopen, store

__all__ = ["house", "one_loop", "reopen", "store"]
