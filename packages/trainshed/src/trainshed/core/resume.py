"""The resume report of a drill, which is a fault that a user ordered: the affected replicas, the steps in the
log, whether the job resumed, and the lost work (spec/operations#drills).

Programs write steps in many forms. They also print numbers that are not their own progress ("restored from
step 100"). The report therefore examines the lines before the fault first. The most frequent *kind* of line
counts (`core.progress`), and other kinds are ignored. The effect of a drill is determined from the details of
timeline entries (`core.lifecycle.timeline`), never from their texts.
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
"""Words for a step in the field names of JSON lines."""
_MAX_READ_CHARS: Final = 4096
"""Maximum number of characters that are examined in each line, because steps are usually at its beginning."""


class Line(Protocol):
    """A log line, such as a `store.logs.lines.LogLine`. `at`: time in ns. `payload`: the JSON object if the
    line is one, otherwise None."""

    @property
    def at(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, Any] | None: ...


class Step(Struct, frozen=True):
    """A step number and the time at which it was written (ns)."""

    number: int
    at: Nanos


class Series(Struct, frozen=True):
    """Log lines of one kind, which count the same unit."""

    #: The word for the number (`step`, `epoch`, …).
    word: str
    #: Whether the lines are about checkpoints.
    of_checkpoints: bool = False

    def step(self, line: Line) -> Step | None:
        """Return the step in the line, or None if the line has another kind."""
        number = _step_numbers(line).get(self)
        return None if number is None else Step(number, line.at)


def learn_series(lines: Iterable[Line]) -> Series | None:
    """Return the kind of line that shows progress: the most frequent kind, and among equally frequent kinds
    the one with the smallest unit. Lines about checkpoints count only if no other lines show progress. None
    if no line shows progress."""
    kinds = Counter(kind for line in lines for kind in _step_numbers(line))
    return max(
        kinds, key=lambda kind: (not kind.of_checkpoints, kinds[kind], -LEVELS[kind.word]), default=None
    )


def _step_numbers(line: Line) -> dict[Series, int]:
    """Return the numbers in the line that may be steps. Each number has a series, which identifies lines of
    the same form."""
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
    """The fault of a drill (a test that a user ordered) and the following events. Times are in nanoseconds. 0
    means that the event has not happened."""

    drill: Drill
    #: Start of the replica's run (incarnation) that the fault hit.
    began: Nanos
    #: End of the run that the fault hit, or the time of the fault if no end was recorded.
    ended: Nanos
    #: The timeline entry with the failure table's decision, or None before the decision.
    verdict: TimelineEntry | None
    #: Start of the replica's next run (incarnation), in this attempt or a later one.
    restarted: Nanos = 0
    #: Attempt and number of the replica's next run (incarnation).
    attempt: int = 0
    incarnation: int = 0
    #: Start of the replica's run (incarnation) after the next one.
    until: Nanos = 0


def hits(job: Job, timeline: Sequence[TimelineEntry]) -> tuple[Hit, ...]:
    """Return the drills (ordered faults) that were injected, in the order of their numbers. `timeline` is in
    the order in which it was written."""
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
    """Return the first verdict (decision of the failure table) after the drill's fault that refers to the
    drill or to its replica."""
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
    """Whether a program continued its earlier work after a fault."""

    #: The first step after the fault is larger than the job's first step.
    RESUMED = "resumed"
    #: The first step after the fault is not larger than the job's first step.
    STARTED_OVER = "started_over"
    #: The program's output does not show whether the program resumed.
    UNKNOWN = "unknown"


class Result(enum.StrEnum):
    """The combined result of all drills (ordered faults) of a job that were injected."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


class Progress(Struct, frozen=True):
    """The steps in the log around a fault. `source`: the replica that printed the lines, or None for all
    replicas. `ascending`: whether the numbers never decreased before the fault. Otherwise they do not show
    the progress of the job."""

    source: str | None = None
    word: str = "step"
    first: Step | None = None
    before: Step | None = None
    after: Step | None = None
    ascending: bool = True


class Finding(Struct, frozen=True):
    """The report about one drill, a fault that the user ordered."""

    hit: Hit
    progress: Progress
    #: Time of the first log line of the replica's next run (ns), or 0 without a line.
    first_line: Nanos
    outcome: Outcome
    #: Number of repeated steps, or None if unknown.
    lost: int | None
    #: Why the outcome is unknown, or None if it is known.
    why: str | None
    advice: str

    @property
    def downtime(self) -> int | None:
        """Return the nanoseconds between the end of the run that the fault hit and the start of the replica's
        next run. None without a next run."""
        return max(0, self.hit.restarted - self.hit.ended) if self.hit.restarted else None

    @property
    def silence(self) -> int | None:
        """Return the nanoseconds between the end of the run that the fault hit and the first log line of the
        replica's next run. None without such a line."""
        return max(0, self.first_line - self.hit.ended) if self.first_line else None


def find(hit: Hit, progress: Progress, first_line: int, *, in_bucket: bool, over: bool) -> Finding:
    """Return the report about one drill (ordered fault). `in_bucket`: whether the job has an output directory
    in a bucket. `over`: whether the job has finished, so that no more lines can follow."""
    first, before, after = progress.first, progress.before, progress.after
    if not hit.restarted or not (first and before and after) or not progress.ascending:
        why, then = _unknown(hit, progress, over=over)
        advice = f"unknown: {why}; {then}."
        return Finding(hit, progress, first_line, Outcome.UNKNOWN, None, why, advice)
    # A negative difference means that no step was lost: a program that logs only every tenth step continues
    # with a larger number.
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
    """Return FAIL if the program started over after any drill (ordered fault), PASS if it resumed after every
    one, and otherwise UNKNOWN."""
    outcomes = {finding.outcome for finding in findings}
    if Outcome.STARTED_OVER in outcomes:
        return Result.FAIL
    return Result.PASS if outcomes == {Outcome.RESUMED} else Result.UNKNOWN


def _unknown(hit: Hit, progress: Progress, *, over: bool) -> tuple[str, str]:
    """Return the reason why it is unknown whether the program resumed, and advice."""
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
        why = f"before the fault, the log {whose}shows no {progress.word} that only increases"
        return why, "make the program print its step (step 120)"
    return f"no line {whose}shows a {progress.word} since the restart", later
