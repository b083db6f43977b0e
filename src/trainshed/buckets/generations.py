"""Gives out generation numbers that never repeat, across crashes and clocks that step back.

A generation is microseconds since the epoch, like the public service's, raised above every number
given out before. A ceiling is on disk before any number below it is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from trainshed.buckets.durably import write_durably

_STEP = 60_000_000


class GenerationSource:
    """Strictly rising int64 numbers; blocking (a sync once a minute), safe from several threads."""

    def __init__(self, path: Path, now: Callable[[], int]) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        try:
            self._last = int(path.read_bytes())
        except FileNotFoundError:
            self._last = 0
        self._ceiling = self._last

    def next(self) -> int:
        """The next generation."""
        with self._lock:
            number = max(self._now() // 1000, self._last + 1)
            if number >= self._ceiling:
                ceiling = number + _STEP
                write_durably(self._path, str(ceiling).encode())
                self._ceiling = ceiling
            self._last = number
            return number
