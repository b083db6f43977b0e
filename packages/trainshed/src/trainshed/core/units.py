"""Types of numbers, which specify the unit of a field or a parameter; moments as texts."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeAlias

Nanos: TypeAlias = int
"""Nanoseconds: of a moment, since the epoch; of a duration, how long it is."""

Bytes: TypeAlias = int


@lru_cache(64)
def whole_second(seconds: int) -> str:
    """Return a time as `2026-11-20T05:55:42`. Cached, because thousands of log lines are of one second."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def text_micros(at: Nanos) -> str:
    """Return a time as `2026-11-20T05:55:42.123456Z`; "" for 0, a time that has not come."""
    if not at:
        return ""
    seconds, rest = divmod(at, 10**9)
    return f"{whole_second(seconds)}.{rest // 1000:06d}Z"


def text_nanos(at: Nanos) -> str:
    """Return a time as `2026-11-20T05:55:42.123456789Z`: one width, so that texts sort like the times."""
    seconds, rest = divmod(at, 10**9)
    return f"{whole_second(seconds)}.{rest:09d}Z"
