"""In a worker: the time that goes into copies which only faults need (`faults.steady`)."""

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_PASSES = 4
_WHOLE = 16 << 20


class Watch:
    """Looks at what the package does in this process from now on."""

    def __init__(self) -> None:
        self._kept = 0.0
        ledger: Any = importlib.import_module("trainshed_reduction.client.ledger")
        settings: Any = importlib.import_module("trainshed_reduction.settings")
        ledger.Ledger.release = self._timed(ledger.Ledger.release)
        self._rate = _copy_rate(settings.Settings((), b"").chunk)

    def begin(self) -> None:
        self._kept = 0.0

    def end(self, nbytes: int) -> dict[str, float]:
        """Seconds since `begin`: of keeping results, and of copying `nbytes` out of buffers that are in the cache."""
        return {"kept": self._kept, "copied": nbytes / self._rate}

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self._kept += time.perf_counter() - begun

        return timed


def _copy_rate(chunk: int) -> float:
    """Bytes per second from one buffer of `chunk` bytes into a large tensor, a chunk at a time."""
    source, target = np.ones(chunk, np.uint8), np.ones(_WHOLE // chunk * chunk, np.uint8)
    begun = time.perf_counter()
    for _ in range(_PASSES):
        for first in range(0, len(target), chunk):
            target[first : first + chunk] = source
    return _PASSES * len(target) / (time.perf_counter() - begun)
