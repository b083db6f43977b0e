"""In a worker: the client without what it keeps for reducers that may be lost, to see what keeping it costs
(`faults.steady`).

No setting of a user does this: a client that keeps nothing fails with the first reducer.
"""

import importlib
from typing import Any


class Retention:
    """Of the client in this process, which keeps copies of the results that other ranks may still want until
    `keep` says otherwise."""

    def __init__(self) -> None:
        self._ledger: Any = importlib.import_module("trainshed_reduction.client.ledger").Ledger
        self._release: Any = self._ledger.release

    def keep(self, on: bool) -> None:
        """From the next operation on; no operation is under way."""
        self._ledger.release = self._release if on else self._forget

    @property
    def _forget(self) -> Any:
        release = self._release

        def forget(ledger: Any, work: Any) -> None:
            for entry in work.entries:
                entry.everywhere = True
            release(ledger, work)

        return forget
