"""Formats times, durations, sizes and counts for people, and parses times and durations. Pure. Times are in
nanoseconds since the epoch, durations in nanoseconds, sizes in bytes."""

import re
from datetime import UTC, datetime
from typing import Any

import click

from trainshed.core.units import Nanos, text_nanos

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", re.ASCII)
_LENGTH = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)([smhd]?)", re.ASCII)
_AGO = re.compile(r"(\d{1,9})([smhd])")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_CENTURY = 100 * 365 * 86400
"""A century in seconds. The API rejects longer durations, and Python cannot wait much longer."""
_SECOND = 10**9
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


def parse_moment(text: str) -> int:
    """Convert an RFC 3339 text such as `2026-11-20T05:55:42.123456Z` to nanoseconds, and "" to 0. Raises
    ValueError for other texts."""
    if not text:
        return 0
    # `datetime` supports only microseconds, but times of log lines have nanoseconds.
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time in RFC 3339 format, such as 2026-11-20T05:55:42.123456Z")
    seconds = int(datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp())
    return seconds * _SECOND + int((match[2] or "").ljust(9, "0"))


def moment(text: str, now: Nanos, option: str) -> Nanos:
    """Convert a date and time, or a time ago such as `10m` or `2h`, to nanoseconds since the epoch. The
    result is at least 1, even for a time before 1970.

    A date and time without a zone is in this machine's time zone. `option`: the name of the option, for the
    error. Raises click.UsageError.
    """
    if match := _AGO.fullmatch(text):
        return max(1, now - int(match[1]) * _SECONDS[match[2]] * _SECOND)
    try:
        # `astimezone` assumes this machine's time zone for a time without one.
        at = datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"{option} {text!r} is not a time. Write how long ago (30s, 10m, 2h, 1d) or a date and time "
            "(2026-11-20T06:05, with Z for UTC)."
        ) from None
    return max(1, round(at * 10**6) * 1000)


def since(context: click.Context, _: click.Parameter, text: str | None) -> str | None:
    """Return the value of --since in the form that the service's API accepts."""
    return text_nanos(moment(text, context.obj(), "--since")) if text else None


def seconds_of(text: str) -> float:
    """Convert `45`, `0.5`, `90s`, `10m`, `2h` or `1d` to seconds. Raises ValueError for other texts, and for
    more than a hundred years."""
    match = _LENGTH.fullmatch(text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else -1.0
    if not 0 <= seconds <= _CENTURY:
        raise ValueError(f"{text!r} is not a length of time such as 45s, 10m or 2h")
    return seconds


def local_moment(at: Nanos) -> str:
    """Return a time as `2026-11-20 06:05:12` in this machine's time zone; "–" for 0."""
    return f"{_local(at):%Y-%m-%d %H:%M:%S}" if at else "–"


def short_moment(at: Nanos, now: Nanos) -> str:
    """Return a time as `local_moment` does, but shorter: today without the date, other days without the
    seconds."""
    text, today = local_moment(at), local_moment(now)[:10]
    return text[11:] if text.startswith(today) else text[:16]


def exact_moment(at: Nanos) -> str:
    """Return a time with milliseconds, such as `2026-11-20 06:05:12.345`."""
    return f"{local_moment(at)}.{at % _SECOND // 1_000_000:03d}"


def local_clock(at: Nanos) -> str:
    """Return the time of day, such as `06:05:12.345`."""
    return f"{_local(at):%H:%M:%S}.{at % _SECOND // 1_000_000:03d}"


def duration(length: int) -> str:
    """Return a duration such as `0.42s`, `7.3s`, `42s`, `3m 12s`, `2h 05m` or `3d 4h`. A negative duration
    becomes 0."""
    length = max(0, length)
    if length < _SECOND:
        return f"{length / _SECOND:.2f}s"
    if length < 10 * _SECOND:
        # Truncated, not rounded, so that 9.96 s does not become 10.0s.
        return f"{length // (_SECOND // 10) / 10:.1f}s"
    if length < _MINUTE:
        return f"{length // _SECOND}s"
    if length < _HOUR:
        return f"{length // _MINUTE}m {length % _MINUTE // _SECOND:02d}s"
    if length < _DAY:
        return f"{length // _HOUR}h {length % _HOUR // _MINUTE:02d}m"
    return f"{length // _DAY}d {length % _DAY // _HOUR}h"


def gibibytes(size: int) -> str:
    """Return a size such as `13.6 GiB`, or `960 GiB` (no fraction from 100 GiB on); "–" for 0 (unknown)."""
    if not size:
        return "–"
    gib = size / 2**30
    return f"{gib:.1f} GiB" if gib < 100 else f"{gib:.0f} GiB"


def size(count: float) -> str:
    """Return a number of bytes as text, such as `24.1 MB`, with decimal prefixes."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


def _local(at: Nanos) -> datetime:
    return datetime.fromtimestamp(at // _SECOND, UTC).astimezone()


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 job` or `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class TimeLimit(click.ParamType[float]):
    """Converts `45`, `90s`, `10m`, `2h` or `1d` to seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds. A float is a command's default, which is in seconds already."""
        if isinstance(value, float):
            return value
        try:
            return seconds_of(value)
        except ValueError:
            self.fail(f"{value!r} is not a time. Write a time such as 45s, 10m or 2h.", param, ctx)
