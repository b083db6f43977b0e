"""Times in answers: nanoseconds inside, public Timestamps outside."""

from typing import Any

from trainshed.core.units import Nanos


def set_micros(target: Any, at: Nanos) -> None:
    """Set a Timestamp field to `at` (ns) at the public precision of microseconds; 0 leaves it unset."""
    if at:
        target.seconds, rest = divmod(at, 10**9)
        target.nanos = rest // 1000 * 1000
