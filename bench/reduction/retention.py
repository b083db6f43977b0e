"""Runs in a worker: a client that does not keep data for lost reducers, to measure the cost of keeping them
(`faults.steady`). No user setting disables the data: a client that keeps nothing fails with the first
reducer."""

import importlib
from typing import Any


class Retention:
    """Controls the client in this process. The client keeps copies of results that other ranks may need,
    unless `keep` disables the copies."""

    def __init__(self) -> None:
        self._ledger: Any = importlib.import_module("trainshed_reduction.client.ledger").Ledger
        self._release: Any = self._ledger.release

    def keep(self, on: bool) -> None:
        """Enable or disable the copies, from the next operation on. No operation may be active."""
        self._ledger.release = self._release if on else self._forget

    @property
    def _forget(self) -> Any:
        release = self._release

        def forget(ledger: Any, work: Any) -> None:
            for entry in work.entries:
                entry.everywhere = True
            release(ledger, work)

        return forget
