"""How long what is over is kept: which jobs, and which logs, go. Pure.

`trainshed gc` and the service's own timer decide by the same functions.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar

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
    """`12h`, `30d` or `4w` in nanoseconds; "" = 0. Raises ValueError."""
    if not text:
        return 0
    match = _AGE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is no age such as 12h, 30d or 4w")
    return int(match[1]) * _AGES[match[2]]


def parse_size(text: str) -> int:
    """`500MB`, `50GB` or `2TiB` in bytes; "" = 0. Raises ValueError."""
    if not text:
        return 0
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is no size such as 500MB, 50GB or 2TiB")
    return int(match[1]) * _SIZES[match[2]]


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept of jobs that are over; what is not set is kept for ever."""

    #: As they were written: ages of a whole job and of its log after its end, and the size of all logs of
    #: jobs that are over; "" = not set.
    jobs: str = ""
    logs: str = ""
    size: str = ""

    @property
    def is_set(self) -> bool:
        """Whether anything is ever deleted."""
        return bool(self.jobs or self.logs or self.size)


@dataclass(slots=True)
class RetentionReport:
    """What was deleted since the service started."""

    retention: Retention
    #: When it was last looked what is to go; ns since the epoch, 0 = not yet.
    last_pass: int = 0
    jobs: int = 0
    logs: int = 0
    #: Bytes of logs that were deleted, and that jobs that are over have now.
    freed: int = 0
    kept: int = 0


LOG_DELETED: Final = "log_deleted"
"""The kind of the timeline's entry that tells of a log that is gone."""


class Ending(Protocol):
    """Something that ends."""

    @property
    def ended(self) -> int:
        """ns since the epoch; 0 = it is not over."""
        ...


E = TypeVar("E", bound=Ending)


def jobs_due(newest_first: Iterable[E], before: int, keep: int = 0) -> list[E]:
    """Those that have been over since before a moment (ns), but for the first `keep` of the list: what ended
    first first, and of the same moment the older one. Nothing that is not over is among them."""
    considered = list(newest_first)[keep:]
    due = [each for each in reversed(considered) if 0 < each.ended < before]
    return sorted(due, key=lambda each: each.ended)


@dataclass(frozen=True, slots=True)
class KeptLog:
    """The log of a job that is over."""

    uid: int
    #: When the job was over, and whatever had made it; ns since the epoch.
    ended: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogDue:
    """A log that is to be deleted, and by which setting."""

    log: KeptLog
    #: What is told of it: how long, or how much, is kept.
    kept: str


def logs_due(logs: Sequence[KeptLog], retention: Retention, now: int) -> list[LogDue]:
    """Those that are older than the setting allows; then as many of the oldest as it takes for the rest to
    fit into the size. The one that ended first first."""
    before = now - parse_age(retention.logs) if retention.logs else 0
    limit = parse_size(retention.size)
    left = sum(log.bytes for log in logs)
    due: list[LogDue] = []
    for log in sorted(logs, key=lambda log: (log.ended, log.uid)):
        if log.ended < before:
            due.append(LogDue(log, f"for {age_in_words(retention.logs)} after a job's end"))
        elif retention.size and left > limit:
            due.append(LogDue(log, f"up to {retention.size} in all, the newest ones"))
        else:
            break
        left -= log.bytes
    return due


def log_deleted_message(due: LogDue, now: int) -> str:
    """What whoever looks for a log is told; `now` in ns since the epoch."""
    day = datetime.fromtimestamp(now // 10**9, UTC).date()
    return f"The log was deleted on {day}: logs are kept {due.kept}."


def age_in_words(text: str) -> str:
    """`30d` as `30 days`."""
    word = {"h": "hour", "d": "day", "w": "week"}[text[-1]]
    return f"{text[:-1]} {word}{'' if text[:-1] == '1' else 's'}"
