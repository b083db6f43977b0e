"""Guardians that have come to rest, from outside: told by the memory that they have."""

import time
from pathlib import Path

_PATIENCE = 20.0
_AT_REST = 200 << 10
"""Bytes: no Python has so few."""


def resident(process: int) -> int:
    """Bytes of memory that a process has."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


def is_at_rest(process: int) -> bool:
    return resident(process) < _AT_REST


def wait_for_rest(process: int) -> None:
    """Nobody is told of it: it changes nothing but its memory."""
    deadline = time.monotonic() + _PATIENCE
    while not is_at_rest(process):
        assert time.monotonic() < deadline
        time.sleep(0.01)
