"""The resume report of a drill: the steps in a program's log lines, the affected replicas, whether
the job continued where it was, and the cost (spec/operations#drills).

Programs write steps in many ways, and one program also prints numbers that are not its own
progress ("restored from step 100"). Therefore the lines before a fault are examined first. The
most frequent *kind* of line counts (`core.progress`), and lines of other kinds are ignored. The
effect of a drill is read from the details of timeline entries (`core.lifecycle.timeline`), never
from their texts.
"""

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Drill, Job
from trainshed.core.progress import LEVELS, counts
from trainshed.core.units import Nanos

_OF_CHECKPOINTS: Final = re.compile(
    r"restor|resum|(continu\w+|go\w* on) (from|after|at)|load|sav(ed|ing)|checkpoint|ckpt", re.I
)
_WORDS: Final = {word: word for word in LEVELS} | {"globalstep": "step"}
"""The words for a step in the names of fields of JSON lines."""
_MAX_READ_CHARS: Final = 4096
"""How many characters of a line are looked at: a step is at its beginning."""


class Line(Protocol):
    """A log line (`store.logs.lines.LogLine`). `at`: ns; `payload`: the JSON object of the line, if it is
    one."""

    @property
    def at(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, Any] | None: ...


class Step(Struct, frozen=True):
    """A step number and when it was written (ns)."""

    number: int
    at: Nanos


class Series(Struct, frozen=True):
    """The lines of one kind."""

    #: The word for the number (`step`, `epoch`, …).
    word: str
    #: They are those about checkpoints, or all others.
    of_checkpoints: bool = False

    def step(self, line: Line) -> Step | None:
        """Return the step in the line; None if the line is not of this kind."""
        number = _told(line).get(self)
        return None if number is None else Step(number, line.at)


def learned(lines: Iterable[Line]) -> Series | None:
    """Return the kind of line that shows progress: the most frequent one, and of equally frequent
    ones the finest. None if no line shows progress.

    Lines about checkpoints count only if there are no others.
    """
    kinds = Counter(kind for line in lines for kind in _told(line))
    return max(
        kinds,
        key=lambda kind: (not kind.of_checkpoints, kinds[kind], -LEVELS[kind.word]),
        default=None,
    )


def _told(line: Line) -> dict[Series, int]:
    """Return each number in the line that may be a step."""
    text = line.text[:_MAX_READ_CHARS]
    of_checkpoints = _OF_CHECKPOINTS.search(text) is not None
    numbers = {
        Series(count.what, of_checkpoints): int(count.done)
        for count in counts(text)
        if count.what in LEVELS and count.done == int(count.done)
    }
    for key, value in (line.payload or {}).items():
        word = _WORDS.get(re.sub(r"[\W_]", "", key.lower()))
        if word and isinstance(value, int) and not isinstance(value, bool):
            numbers[Series(word, of_checkpoints)] = value
    return numbers


_ENDED: Final = frozenset({"replica_exited", "replica_lost", "service_failed"})


class Hit(Struct, frozen=True):
    """A drill that fired, and what followed. Times are nanoseconds; 0 = the moment has not come."""

    drill: Drill
    #: Start of the incarnation that was hit.
    began: Nanos
    #: Its end; the injection, if its end is not recorded.
    ended: Nanos
    #: The timeline's entry of the failure table's decision; None = not decided yet.
    verdict: TimelineEntry | None
    #: The next incarnation's start, in this attempt or a later one.
    restarted: Nanos = 0
    #: The attempt of that next incarnation, and its number.
    attempt: int = 0
    incarnation: int = 0
    #: The start of the one after that.
    until: Nanos = 0


def hits(job: Job, timeline: Sequence[TimelineEntry]) -> tuple[Hit, ...]:
    """Return the drills that fired, in the order of their numbers. `timeline` is in the order in which it was
    written."""
    return tuple(_hit(drill, timeline) for drill in job.drills if not drill.is_armed)


def _hit(drill: Drill, timeline: Sequence[TimelineEntry]) -> Hit:
    replica = str(drill.replica)
    lived = (drill.attempt, drill.incarnation)
    began = ended = 0
    later: list[tuple[tuple[int, int], int]] = []
    for entry in timeline:
        if entry.details.get("replica") != replica or "incarnation" not in entry.details:
            continue
        life = (int(entry.details.get("attempt", 1)), int(entry.details["incarnation"]))
        if entry.kind == "replica_started" and life == lived:
            began = entry.at
        elif entry.kind in _ENDED and life == lived:
            ended = entry.at
        elif entry.kind == "replica_started" and life > lived:
            later.append((life, entry.at))
    later.sort()
    next_life, restarted = later[0] if later else ((0, 0), 0)
    return Hit(
        drill,
        began,
        ended or drill.fired,
        _verdict(drill, timeline),
        restarted,
        *next_life,
        until=later[1][1] if len(later) > 1 else 0,
    )


def _verdict(drill: Drill, timeline: Sequence[TimelineEntry]) -> TimelineEntry | None:
    """Return the first verdict after the injection that names the drill, or is about the replica that it
    hit."""
    fired = False
    for entry in timeline:
        details = entry.details
        if entry.kind == "drill_fired" and details.get("drill") == drill.number:
            fired = True
        if not fired or entry.kind != "verdict" or details.get("attempt") != drill.attempt:
            continue
        if details.get("drill", drill.number) == drill.number and (
            "drill" in details or details.get("replica") == str(drill.replica)
        ):
            return entry
    return None


class Outcome(enum.StrEnum):
    """Whether a program went on after a fault where it had been."""

    #: The first step after the fault is beyond the first one ever.
    RESUMED = "resumed"
    #: The first step after the fault is not beyond the first one ever.
    STARTED_OVER = "started_over"
    #: The program's output does not show the result.
    UNKNOWN = "unknown"


class Result(enum.StrEnum):
    """The result of all drills of a job that fired, together."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


class Progress(Struct, frozen=True):
    """The steps of the log around a fault. `source`: the replica that printed the lines, None =
    all replicas. `ascending`: the numbers only grew until the fault; otherwise they do not show
    the progress of the job."""

    source: str | None = None
    word: str = "step"
    first: Step | None = None
    before: Step | None = None
    after: Step | None = None
    ascending: bool = True


class Finding(Struct, frozen=True):
    """The findings on the fault of one drill."""

    hit: Hit
    progress: Progress
    #: When the next incarnation wrote its first line, nanoseconds; 0 = it has not.
    first_line: Nanos
    outcome: Outcome
    #: Steps done again; None = not known.
    lost: int | None
    #: Why the outcome is not known; None = it is.
    why: str | None
    advice: str

    @property
    def down(self) -> int | None:
        """Nanoseconds from the end of the incarnation that was hit to the next one's start; None if there is
        none."""
        return max(0, self.hit.restarted - self.hit.ended) if self.hit.restarted else None

    @property
    def silent(self) -> int | None:
        """Nanoseconds from that end to the next incarnation's first line; None if there is none."""
        return max(0, self.first_line - self.hit.ended) if self.first_line else None


def find(hit: Hit, progress: Progress, first_line: int, *, in_bucket: bool, over: bool) -> Finding:
    """Return the finding on one drill. `in_bucket`: the job names a place in a bucket for what it writes.
    `over`: the job is over, so nothing more can come."""
    first, before, after = progress.first, progress.before, progress.after
    if not hit.restarted or not (first and before and after) or not progress.ascending:
        why, then = _unknown(hit, progress, over=over)
        advice = f"unknown: {why}; {then}."
        return Finding(hit, progress, first_line, Outcome.UNKNOWN, None, why, advice)
    # The gap may show although nothing was lost, if a program logs only each tenth step.
    lost = max(0, before.number - after.number + 1)
    outcome, advice = Outcome.RESUMED, "resumed: nothing was lost."
    if after.number <= first.number:
        outcome = Outcome.STARTED_OVER
        advice = _STARTED_OVER if in_bucket else _NOT_IN_BUCKET
    elif lost:
        advice = (
            f"resumed: {lost} {progress.word}{'s' * (lost != 1)} had to be repeated. More "
            "frequent checkpoints lose less."
        )
    return Finding(hit, progress, first_line, outcome, lost, None, advice)


_STARTED_OVER: Final = (
    "started over: check that the program writes checkpoints often enough, and "
    "that it loads its latest one when it starts."
)
_NOT_IN_BUCKET: Final = (
    "started over: the job has no baseOutputDirectory or jobDir, and files in the "
    "working directory do not survive a retry or a move. Write checkpoints to a "
    "bucket."
)


def result(findings: tuple[Finding, ...]) -> Result:
    """Return FAIL if one started over, PASS if all resumed, and otherwise UNKNOWN."""
    outcomes = {finding.outcome for finding in findings}
    if Outcome.STARTED_OVER in outcomes:
        return Result.FAIL
    return Result.PASS if outcomes == {Outcome.RESUMED} else Result.UNKNOWN


def _unknown(hit: Hit, progress: Progress, *, over: bool) -> tuple[str, str]:
    """Return why it is not known whether the program resumed, and what to do about that."""
    later = (
        "order another drill, earlier or of a longer job"
        if over
        else "run the report again after the job has resumed"
    )
    whose = f"of {progress.source} " if progress.source else ""
    if not hit.restarted and hit.verdict is None:
        return "the fault has had no effect" + ("" if over else " yet"), later
    if not hit.restarted and not over:
        return "it has not restarted yet", later
    if not hit.restarted and hit.verdict is not None:
        why = f"the rule {hit.verdict.details.get('rule', '')} did not restart anything"
        return why, "add restarts to the rule in the failure table (docs/failure-table.md)"
    if progress.first is None or progress.before is None or not progress.ascending:
        why = f"the log {whose}shows no {progress.word} before the fault that only grows"
        return why, "make the program print its step (step 120)"
    return f"no line {whose}shows a {progress.word} since the restart", later
