"""Fixtures of the root's contract tests: the service and the stores."""

from tests.contract.api.conftest import service, shared_event_loop
from tests.contract.store.conftest import reopen, store

__all__ = ["service", "shared_event_loop", "reopen", "store"]
