"""Number types that specify the unit of a field or a parameter, and functions that format times."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeAlias

Nanos: TypeAlias = int
"""Nanoseconds: a time since the epoch, or a duration."""

Bytes: TypeAlias = int


@lru_cache(64)
def whole_second(seconds: int) -> str:
    """Return a time as `2026-11-20T05:55:42`. Cached, because thousands of log lines may have the same
    second."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def text_micros(at: Nanos) -> str:
    """Return a time as `2026-11-20T05:55:42.123456Z`, or "" for 0, which means that the event has not
    happened."""
    if not at:
        return ""
    seconds, rest = divmod(at, 10**9)
    return f"{whole_second(seconds)}.{rest // 1000:06d}Z"


def text_nanos(at: Nanos) -> str:
    """Return a time as `2026-11-20T05:55:42.123456789Z`. All results have the same length, so they sort like
    the times."""
    seconds, rest = divmod(at, 10**9)
    return f"{whole_second(seconds)}.{rest:09d}Z"
