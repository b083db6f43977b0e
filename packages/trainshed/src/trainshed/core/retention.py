"""How long data of ended jobs is kept: which jobs, and which logs, are deleted. Pure."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from trainshed.core.units import Bytes, Nanos

_AGE: Final = re.compile(r"(\d{1,5})([hdw])")
_AGES: Final = {"h": 3600 * 10**9, "d": 86400 * 10**9, "w": 7 * 86400 * 10**9}
_SIZE: Final = re.compile(r"(\d{1,9})(MB|GB|TB|MiB|GiB|TiB)")
_SIZES: Final = {
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_age(text: str) -> int:
    """Return `12h`, `30d` or `4w` in nanoseconds; "" = 0. Raise ValueError for anything else."""
    if not text:
        return 0
    match = _AGE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is no age such as 12h, 30d or 4w")
    return int(match[1]) * _AGES[match[2]]


def parse_size(text: str) -> int:
    """Return `500MB`, `50GB` or `2TiB` in bytes; "" = 0. Raise ValueError for anything else."""
    if not text:
        return 0
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is no size such as 500MB, 50GB or 2TiB")
    return int(match[1]) * _SIZES[match[2]]


class Retention(Struct, frozen=True):
    """What is kept of jobs that are over; what has no setting is kept for ever."""

    #: How long a job is kept after its end, as `parse_age` reads it; "" = for ever.
    jobs: str = ""
    #: How much the logs of all jobs that are over may take together, as `parse_size` reads it; "" = any size.
    size: str = ""

    @property
    def is_set(self) -> bool:
        """Whether anything is ever deleted."""
        return bool(self.jobs or self.size)


class RetentionReport(Struct):
    """What was deleted since the service started."""

    retention: Retention
    #: Jobs that were deleted.
    jobs: int = 0
    #: Deleted logs of jobs that stay.
    logs: int = 0
    #: Bytes of all deleted logs.
    freed: Bytes = 0
    #: Bytes that the logs of ended jobs take now.
    kept: int = 0


LOG_DELETED: Final = "log_deleted"
"""The kind of the timeline entry about a deleted log."""


class Ending(Protocol):
    """Anything that ends."""

    @property
    def ended(self) -> int:
        """When it ended, in nanoseconds since the epoch; 0 = it is not over."""
        ...


E = TypeVar("E", bound=Ending)


def jobs_due(newest_first: Sequence[E], before: int) -> list[E]:
    """Return those that ended before a moment (ns), in the order of their ends, and with equal ends the older
    first."""
    due = [job for job in reversed(newest_first) if 0 < job.ended < before]
    return sorted(due, key=lambda job: job.ended)


class KeptLog(Struct, frozen=True):
    """The log of a job that is over."""

    uid: int
    #: When the job, and whatever had made it, was over; nanoseconds since the epoch.
    ended: Nanos
    bytes: Bytes


def logs_due(logs: Sequence[KeptLog], retention: Retention) -> list[KeptLog]:
    """Return as many of the oldest logs as it takes until the rest fits into the size, in the order of their
    jobs' ends."""
    limit = parse_size(retention.size)
    left = sum(log.bytes for log in logs)
    due: list[KeptLog] = []
    for log in sorted(logs, key=lambda log: (log.ended, log.uid)):
        if left <= limit:
            break
        due.append(log)
        left -= log.bytes
    return due


def log_deleted_message(kept: str, now: Nanos) -> str:
    """Return the text that stands in the place of a log. `kept`: how much is, in words. `now`: nanoseconds
    since the epoch."""
    day = datetime.fromtimestamp(now // 10**9, UTC).date()
    return f"The log was deleted on {day}: logs are kept {kept}."


def size_in_words(text: str) -> str:
    """Return of `50GB` which logs are kept."""
    return f"up to {text} in all, the newest ones"


def age_in_words(text: str) -> str:
    """Return `30d` as `30 days`."""
    word = {"h": "hour", "d": "day", "w": "week"}[text[-1]]
    return f"{text[:-1]} {word}{'' if text[:-1] == '1' else 's'}"
