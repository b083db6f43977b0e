"""Converts times from nanoseconds to public Timestamps in responses."""

from typing import Any

from trainshed.core.units import Nanos


def set_micros(target: Any, time: Nanos) -> None:
    """Set a Timestamp field to a time (ns) at the public precision of microseconds; 0 leaves the field
    unset."""
    if time:
        target.seconds, nanos = divmod(time, 10**9)
        target.nanos = nanos // 1000 * 1000
