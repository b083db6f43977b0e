"""Defines log lines and pages, and determines the severity of a line. Pure.

Also defines two kinds of positions in a log. A cursor is a position in the merged order of all replicas. A
log position contains one line number per replica.

The severity of a line is the first of these that exists (spec/logs#severity, facts/lifecycle#executor and
facts/program#files):

- The `severity` of a one-line JSON object.
- The level at the beginning of the line.
- The default of the stream: INFO for stdout, ERROR for stderr.

Progress bars on stderr are INFO, because they are not errors. The service's own lines in a replica's log are
NOTICE.
"""

import enum
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct

from trainshed.core.names import SERVICE, JobUid, ReplicaId
from trainshed.core.units import Nanos


class Stream(enum.StrEnum):
    """The source of a line. SERVICE means that the service wrote the line."""

    STDOUT = "o"
    STDERR = "e"
    SERVICE = "b"


class Severity(enum.StrEnum):
    """The severities of the public logging API, in ascending order."""

    DEFAULT = "DEFAULT"
    DEBUG = "DEBUG"
    INFO = "INFO"
    NOTICE = "NOTICE"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"
    ALERT = "ALERT"
    EMERGENCY = "EMERGENCY"


OrderKey = tuple[int, int, int, int, int]
"""(time, pool, index, attempt, line number): the sort key of all lines of a job."""


class LogLine(Struct, frozen=True):
    """One line of a job's log."""

    uid: JobUid
    attempt: int
    replica: ReplicaId
    #: Number of the line within its replica and attempt. It starts at 0 and has no gaps.
    n: int
    #: Time of the line in nanoseconds since the epoch. It increases strictly with `n`.
    at: Nanos
    stream: Stream
    text: str
    severity: Severity
    #: The line as a JSON object (see `Reading`).
    payload: dict[str, Any] | None = None
    #: Whether the replica's next line continues this line. The service splits lines over 64 KiB.
    partial: bool = False

    @property
    def is_notice(self) -> bool:
        """Return whether the line is one of the notices at the beginning of a job's log. The timeline
        contains the same notices."""
        return self.replica == SERVICE and self.stream is Stream.SERVICE

    @property
    def insert_id(self) -> str:
        """Return an ID that is unique among the lines of all jobs. If lines of one job have equal times, the
        text order of their IDs is the order of `key`."""
        return f"{self.uid:016x}{self.replica.pool:x}{self.replica.index:06x}{self.attempt:04x}{self.n:010x}"

    @property
    def key(self) -> OrderKey:
        return (self.at, self.replica.pool, self.replica.index, self.attempt, self.n)

    @property
    def cursor(self) -> "LogCursor":
        return LogCursor(self.at, self.replica, self.attempt, self.n)


class LogCursor(Struct, frozen=True):
    """The position of one line in the merged order of all replicas. Its text form is a page token."""

    at: Nanos
    replica: ReplicaId
    attempt: int
    n: int

    @property
    def key(self) -> OrderKey:
        return (self.at, self.replica.pool, self.replica.index, self.attempt, self.n)

    def __str__(self) -> str:
        return f"{self.at}.{self.replica.pool}.{self.replica.index}.{self.attempt}.{self.n}"

    @staticmethod
    def parse(text: str) -> "LogCursor":
        """Parse the text form of a cursor. Raise ValueError for an invalid text."""
        parts = text.split(".")
        if len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"{text!r} is not a position in a log; start again from the first page")
        at, pool, index, attempt, n = map(int, parts)
        return LogCursor(at, ReplicaId(pool, index), attempt, n)


class LogPage(Struct, frozen=True):
    """A page of lines. `next`: pass it as `after` to get the following page. None = the log has no more lines
    at the moment."""

    lines: tuple[LogLine, ...]
    next: LogCursor | None


LogPosition = Mapping[ReplicaId, tuple[int, int]]
"""The last line that a follower has received from each replica, as (attempt, n). It omits replicas from which
no line was received."""


class Reading(Struct, frozen=True):
    """The content of one line of a program."""

    severity: Severity
    #: The message to display.
    text: str
    #: The JSON object of the line without its `severity`. None if the line is not a JSON object, or if the
    #: object contains only a message.
    payload: dict[str, Any] | None = None


_LEVELS = {
    **{severity.value: severity for severity in Severity},
    "TRACE": Severity.DEBUG,
    "FINE": Severity.DEBUG,
    "VERBOSE": Severity.DEBUG,
    "INFORMATION": Severity.INFO,
    "SUCCESS": Severity.INFO,
    "WARN": Severity.WARNING,
    "ERR": Severity.ERROR,
    "EXCEPTION": Severity.ERROR,
    "SEVERE": Severity.ERROR,
    "CRIT": Severity.CRITICAL,
    "FATAL": Severity.CRITICAL,
    "PANIC": Severity.CRITICAL,
    "EMERG": Severity.EMERGENCY,
}
_LETTERS = {
    "D": Severity.DEBUG,
    "V": Severity.DEBUG,
    "I": Severity.INFO,
    "W": Severity.WARNING,
    "E": Severity.ERROR,
    "C": Severity.CRITICAL,
    "F": Severity.CRITICAL,
}
_NUMBERS = dict(zip(range(0, 801, 100), Severity, strict=True))
"""Severities by the enum numbers of the public API: DEFAULT 0, DEBUG 100, ..., EMERGENCY 800. NOTICE is 300.
"""

_WORD = "(TRACE|DEBUG|VERBOSE|INFO|NOTICE|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL|ALERT|EMERGENCY|PANIC)"
_DATE = r"(?:\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d/\d\d)"
_TIME = r"\d\d:\d\d[:.]\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
# Possessive quantifiers prevent backtracking on hostile lines.
_GAP = r"[\s\-|:,\[\](]++"
_TOKEN = r"[^\s|,\[\](]++"
_RANK = r"(?:\[rank ?\d+\]:? ?)?"

_UPPER_CASE_STYLES = re.compile(
    "|".join(
        (
            # Matches such lines: ERROR:root:text · WARNING: text · INFO:     text
            rf"{_RANK}{_WORD}(?=:)",
            # Matches such lines: [INFO] text · [ERROR ] text · [INFO rank=0] text
            rf"{_RANK}\[{_WORD}\b",
            # Matches such lines: 2026-11-20 05:54:33,123 - name - INFO - text · [11/20/26 05:54:33] INFO text
            # 05:54:33 WARN text · 2026-11-20T05:54:33Z INFO text · [2026-11-20 05:54:33 ERROR name] text ...
            # | INFO     | text
            rf"{_RANK}\[?(?:{_DATE}[T ])?{_TIME}(?:{_GAP}{_TOKEN}){{0,3}}?{_GAP}{_WORD}(?!\w|-\w)",
            # Matches lines in which the time is missing, because the previous line has the same time.
            rf"\s{{8,}}{_WORD}\s{{2,}}",
            # Matches such lines: INFO 2026-11-20 05:54:33 text · INFO     text (padded to a column)
            rf"{_RANK}{_WORD}(?:\s+\[?{_DATE}|\s{{4,}}\S)",
        )
    )
)
_NCCL_STYLE = re.compile(rf"\S+:\d+:\d+ \[\d+\] (?:[\w/.:-]+ )?NCCL {_WORD}\b")
"""Matches lines such as: host:12:34 [0] NCCL INFO text"""
_LETTER_STYLES = re.compile(
    "|".join(
        (
            # Matches lines such as: E1120 05:54:33.123456 12 file.cc:1] text, with or without brackets
            rf"{_RANK}\[?([DVIWECF])\d{{4}} {_TIME}",
            # Matches lines such as: 2026-11-20 05:54:33.123456: I tensorflow/core/... text
            rf"{_DATE} {_TIME}: ([IWEF]) ",
            # Matches such lines: [I 2026-11-20 05:54:33,123] text · [W 05:54:33.123 Name] text · [W
            # file.cpp:12] text
            rf"\[([DVIWECF]) (?:{_DATE} )?(?:{_TIME}|[\w./]+\.(?:cpp|cc|h|cu):\d+)",
        )
    )
)
_BRACKET_STYLE = re.compile(
    rf"(?:{_DATE}[T ]{_TIME}\s+)?\[(trace|debug|info|notice|warn|warning|error|critical|fatal)\s*\]"
)
"""Matches such lines: 2026-11-20 05:54:33 [warning ] text · 2026/11/20 05:54:33 [error] text · [info] text"""
_LOGFMT_STYLE = re.compile(r"(?:.{0,120}?[\s,])?(?:level|lvl|severity)=\"?([A-Za-z]+)\b")
"""Matches lines such as: ts=... level=warn msg=..."""
_WORD_BEFORE_COLON = re.compile(r"(trace|debug|info|notice|warning|warn|error|fatal)(?=: )", re.IGNORECASE)
_PYTHON_WARNING = re.compile(r"\S+:\d+: (?:\w+\.)*\w*Warning: |(?:\w+\.)*\w+Warning: ")
_PROGRESS_BAR = re.compile(r".{0,80}\b\d{1,3}%\s?\|.*\|\s|.{0,80}\b\d+it \[\d\d:\d\d, ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEAD = 400
"""Number of characters at the beginning of a line that may contain its level."""


def read_line(stream: Stream, text: str) -> Reading:
    """Return the content of one line without its newline: severity, text to display, JSON object."""
    if text.startswith("{") and text.endswith("}") and (structured := _read_json_line(stream, text)):
        return structured
    return Reading(severity_of(stream, text), text)


def severity_of(stream: Stream, text: str) -> Severity:
    """Return the severity of a line that is not a JSON object. Each expression is tried only on lines that
    could match it, because logs may have millions of lines."""
    if stream is Stream.SERVICE:
        return Severity.NOTICE
    head = text if len(text) <= _HEAD else text[:_HEAD]
    if "\x1b" in head:
        head = _COLOUR.sub("", head)
    is_plain = begins_plainly(head)
    if not is_plain and (match := _UPPER_CASE_STYLES.match(head)):
        return _LEVELS[match[match.lastindex or 0]]
    if "NCCL " in head and (match := _NCCL_STYLE.match(head)):
        return _LEVELS[match[1]]
    if not is_plain:
        if match := _LETTER_STYLES.match(head):
            return _LETTERS[match[match.lastindex or 0]]
        if match := _BRACKET_STYLE.match(head):
            return _LEVELS[match[1].upper()]
    if (
        "=" in head
        and ("level=" in head or "lvl=" in head or "severity=" in head)
        and (match := _LOGFMT_STYLE.match(head))
        and (level := _LEVELS.get(match[1].upper()))
    ):
        return level
    if stream is Stream.STDOUT:
        return Severity.INFO
    # On stdout, a word before a colon may not be a level ("error: 0.03" is a metric), so it is used only on
    # stderr. There, it can only lower the severity.
    if match := _WORD_BEFORE_COLON.match(head):
        return _LEVELS[match[1].upper()]
    if "Warning: " in head and _PYTHON_WARNING.match(head):
        return Severity.WARNING
    if ("|" in head or "it [" in head) and _PROGRESS_BAR.match(head):
        return Severity.INFO
    return Severity.ERROR


def begins_plainly(head: str) -> bool:
    """Return whether a line begins with neither a level, a bracket nor a time. Patterns for lines that begin
    with one of these cannot match it."""
    first, second = head[:1], head[1:2]
    if "a" <= first <= "z" or not first:
        return True
    if "A" <= first <= "Z":
        # A level such as `ERROR:` begins with two capitals, and a glog header such as `E1120` with a letter
        # and a digit.
        return not (second.isupper() or second.isdecimal())
    return first.isdecimal() and ":" not in head


def _read_json_line(stream: Stream, text: str) -> Reading | None:
    """Return the reading of a line that contains a JSON object. Return None if it does not, or if clients
    could not read the object."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    if not _is_readable(value, _DEEPEST):
        return None
    payload = cast("dict[str, Any]", value)
    message = payload.get("message")
    shown = message if isinstance(message, str) else text
    level = _level_of(payload.pop("severity", None))
    for key in ("level", "levelname"):
        level = level or _level_of(payload.get(key))
    if level is None:
        level = severity_of(stream, shown if shown is not text else "")
    only_message = payload.keys() == {"message"} and shown is not text
    return Reading(level, shown, None if only_message else payload)


_DEEPEST = 30
"""Maximum nesting of a JSON object. gRPC clients accept a hundred levels in a response. Each level of the
object uses three of them."""
_MAX_FLOAT = sys.float_info.max


def _is_readable(value: Any, levels: int) -> bool:
    """Return whether a value has at most `levels` levels of nesting, and contains only numbers that the
    public API supports."""
    if isinstance(value, int):
        return -_MAX_FLOAT <= value <= _MAX_FLOAT
    if not isinstance(value, dict | list):
        return True
    inner = cast("Iterable[Any]", value.values() if isinstance(value, dict) else value)
    return levels > 0 and all(_is_readable(item, levels - 1) for item in inner)


def _level_of(value: Any) -> Severity | None:
    if isinstance(value, str):
        return _LEVELS.get(value.upper())
    if isinstance(value, int) and not isinstance(value, bool):
        return _NUMBERS.get(value)
    return None
