"""The resume report of one drill: did the job go on where it was, and what did the fault cost (SPEC §8, `drills`)."""

import enum
from dataclasses import dataclass, replace
from typing import assert_never

from trainshed.core.failure.rules import Effect
from trainshed.core.resume.hits import Hit
from trainshed.core.resume.steps import Step
from trainshed.core.resume.traffic import FileSeen, Traffic, read, written


class Outcome(enum.StrEnum):
    """RESUMED: the first step after the fault is beyond the first one ever. STARTED_OVER: it is not."""

    RESUMED = "resumed"
    STARTED_OVER = "started_over"
    UNKNOWN = "unknown"


class Result(enum.StrEnum):
    """Of all drills of a job that fired, together."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Progress:
    """The steps of the log around a fault. `source`: whose lines they are, "" = of all replicas. `ascending`: whether
    the numbers only grew until the fault; where they did not, they say nothing of how far the job was."""

    source: str = ""
    word: str = "step"
    first: Step | None = None
    before: Step | None = None
    after: Step | None = None
    ascending: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of one drill's fault. `first_line`: when the next incarnation wrote its first line (ns, 0 = not).

    `written`: files whose writing was over before the injection, the newest first; `read`: those of them that were
    read from the restart to the first step after it, or, without one, since the restart. `unseen`: why these are not
    known, "" if they are. `lost`: steps done again, None if not known. `why`: of an unknown outcome.
    """

    hit: Hit
    progress: Progress
    first_line: int
    written: tuple[FileSeen, ...]
    read: tuple[FileSeen, ...]
    unseen: str
    outcome: Outcome
    lost: int | None
    why: str
    advice: str

    @property
    def down(self) -> int:
        """Nanoseconds from the end of the incarnation that was hit to the next one's start; -1 if there is none."""
        return max(0, self.hit.restarted - self.hit.ended) if self.hit.restarted else -1

    @property
    def silent(self) -> int:
        """Nanoseconds from that end to the next incarnation's first line; -1 if there is none."""
        return max(0, self.first_line - self.hit.ended) if self.first_line else -1


def find(hit: Hit, progress: Progress, traffic: Traffic, first_line: int, *, over: bool) -> Finding:
    """The finding on one drill. `over`: nothing more can come, since the job is over."""
    kept = written(traffic.accesses, hit.drill.fired)
    end = progress.after.at if progress.after else hit.until
    taken = read(traffic.accesses, hit.restarted, end, {file.uri for file in kept})
    taken = taken if hit.restarted else ()
    outcome, why = _outcome(hit, progress, over=over)
    lost = None
    if outcome is not Outcome.UNKNOWN and progress.before and progress.after:
        # A program that logs each tenth step may show a gap where it has lost nothing.
        lost = max(0, progress.before.number - progress.after.number + 1)
    unseen = traffic.unseen
    found = Finding(hit, progress, first_line, kept, taken, unseen, outcome, lost, why, "")
    return replace(found, advice=_advice(found))


def result(findings: tuple[Finding, ...]) -> Result:
    """FAIL if one started over, PASS if all resumed."""
    outcomes = {finding.outcome for finding in findings}
    if Outcome.STARTED_OVER in outcomes:
        return Result.FAIL
    return Result.PASS if outcomes == {Outcome.RESUMED} else Result.UNKNOWN


def _outcome(hit: Hit, progress: Progress, *, over: bool) -> tuple[Outcome, str]:
    whose = f"of {progress.source} " if progress.source else ""
    word = progress.word
    if not hit.restarted:
        return Outcome.UNKNOWN, _not_back(hit, over=over)
    if progress.before is None or progress.first is None:
        return (
            Outcome.UNKNOWN,
            f"no line {whose}tells a step before the fault" if whose else "the log tells no step",
        )
    if not progress.ascending:
        return (
            Outcome.UNKNOWN,
            f"the {word} numbers {whose}in the log fall as well as rise before the fault",
        )
    if progress.after is None:
        ended = "the job ended before" if over else "so far"
        return Outcome.UNKNOWN, f"{ended} no line {whose}told a {word} after the restart"
    if progress.after.number > progress.first.number:
        return Outcome.RESUMED, ""
    return Outcome.STARTED_OVER, ""


def _not_back(hit: Hit, *, over: bool) -> str:
    if hit.ruling is None:
        return "the fault has shown no effect" + ("" if over else " yet")
    if hit.ruling.effect in (Effect.JOB_FAILS, Effect.JOB_CANCELLED):
        return f"the job ended by the rule {hit.ruling.rule}, which starts nothing again"
    if hit.ruling.effect in (Effect.REPLICA_DONE, Effect.JOB_SUCCEEDS):
        return f"by the rule {hit.ruling.rule} the replica is not started again"
    return "the job ended before the replica was up again" if over else "it is not up again yet"


def _advice(finding: Finding) -> str:
    """What to do about it, in one sentence."""
    match finding.outcome:
        case Outcome.RESUMED:
            if not finding.lost:
                return "resumed: nothing was lost."
            done = f"{finding.lost} {finding.progress.word}{'s' * (finding.lost != 1)}"
            return f"resumed: {done} had to be done again; checkpoints that are written more often lose less."
        case Outcome.STARTED_OVER:
            return f"started over: {_cause(finding)}"
        case Outcome.UNKNOWN:
            return f"unknown: {finding.why}; {_next_step(finding)}"
        case _:
            assert_never(finding.outcome)


def _cause(finding: Finding) -> str:
    if finding.unseen:
        return (
            "see that the program looks for its latest checkpoint when it starts (which files it read is not"
            f" known: {finding.unseen})."
        )
    if finding.read:
        return (
            f"{finding.read[-1].uri} was read after the restart, but the program did not go on from it; see what"
            " it takes from the checkpoint, the step's number above all."
        )
    if finding.written:
        return (
            f"no checkpoint was read after the restart, though {finding.written[0].uri} was there; see that the"
            " program looks for its latest checkpoint when it starts."
        )
    return "no checkpoint was written before the fault; write them more often, or order the drill for later."


def _next_step(finding: Finding) -> str:
    hit, progress = finding.hit, finding.progress
    if hit.restarted and progress.before is None:
        return "let the program print its step (step 120), or give a stepPattern for the lines that tell it."
    if hit.restarted and not progress.ascending:
        return "give a stepPattern for a number that only grows."
    if hit.restarted:
        return "let the job run on to the next line with a step, and ask again."
    if hit.ruling is not None and hit.ruling.effect == Effect.JOB_FAILS:
        return "a rule of your own in the failure table can restart or retry it (docs/failure-table.md)."
    return "ask again when the replica runs."
