"""Converts times in nanoseconds to public Timestamps for responses."""

from typing import Any

from trainshed.core.units import Nanos


def set_micros(target: Any, time: Nanos) -> None:
    """Set a Timestamp field to a time (ns), truncated to the public precision of microseconds. If the time is
    0, the field remains unset."""
    if time:
        target.seconds, nanos = divmod(time, 10**9)
        target.nanos = nanos // 1000 * 1000
