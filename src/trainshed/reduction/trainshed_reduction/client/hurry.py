"""How often Python lets another thread have its turn, while a transfer in Python moves bytes.

A program that computes in pure Python gives its interpreter away every 5 ms only; a lane would then be idle for most of
the time (measured: 936 → 325 Mbit/s; 892 with 0.2 ms).
"""

from __future__ import annotations

import sys
import threading

_INTERVAL = 2e-4


class Hurry:
    """Between `begin` and `end`, which may be nested, over all communicators of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _INTERVAL))

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                sys.setswitchinterval(self._before)


HURRY = Hurry()
