"""The resume report (spec/operations#drills): timelines of the real state machine, steps made up."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, Life, job
from trainshed.core.lifecycle.events import DrillLanded, DrillOrdered
from trainshed.core.lifecycle.records import Drill, DrillKind
from trainshed.core.names import ReplicaId
from trainshed.core.resume import Finding, Hit, Outcome, Progress, Result, Step, find, hits, result

OUTPUT = "gs://bucket/run"


def order(kind: DrillKind, replica: ReplicaId = PRIMARY) -> DrillOrdered:
    return DrillOrdered(Drill(0, kind, replica, CREATED))


def killed() -> Life:
    """A job whose replica was killed by a drill and runs again."""
    life = Life(job(1, 1, output=OUTPUT)).up().see(order(DrillKind.KILL))
    return life.exits(signal=9).see(DrillLanded(1)).up()


def only(life: Life) -> Hit:
    (hit,) = hits(life.job, life.told)
    return hit


def steps(first: int | None, before: int | None, after: int | None) -> Progress:
    steps = [Step(n, 0) if n is not None else None for n in (first, before, after)]
    return Progress("workerpool0-0", "step", steps[0], steps[1], steps[2])


def found(progress: Progress) -> Finding:
    hit = only(killed())
    return find(hit, progress, hit.restarted + SECOND, in_bucket=True, over=True)


def test_a_retry_of_the_whole_job_is_a_restart_in_the_next_attempt() -> None:
    """spec/operations#drills: the verdict is the drill's own, also where others end in its wake."""
    life = Life(job(1, 1)).up().see(order(DrillKind.PREEMPT, WORKER)).up()
    hit = only(life)
    assert hit.verdict is not None
    details = hit.verdict.details
    assert (details["rule"], details["effect"]) == ("preempted", "job_retries")
    assert (hit.attempt, hit.incarnation) == (2, 1)
    assert hit.restarted > hit.ended >= hit.drill.fired


@pytest.mark.parametrize(
    ("progress", "why", "advice"),
    [
        (Progress(), "the log shows no step", "make the program print its step"),
        (steps(None, 12, 5), "the log of workerpool0-0 shows no step", "make the program print"),
        (steps(1, 12, None), "no line of workerpool0-0 shows a step", "another drill, earlier"),
        (replace(steps(1, 12, 5), ascending=False), "that only grows", "make the program print"),
    ],
)
def test_what_the_log_does_not_say_is_unknown_and_why(
    progress: Progress, why: str, advice: str
) -> None:
    finding = found(progress)
    assert (finding.outcome, finding.lost) == (Outcome.UNKNOWN, None)
    assert finding.why is not None and why in finding.why
    assert finding.why in finding.advice
    assert advice in finding.advice


def test_a_fault_that_ends_the_job_is_unknown_with_the_rule() -> None:
    """spec/failures#out-of-memory: out of memory fails the job by default."""
    life = Life(job(1)).up().see(order(DrillKind.OOM)).exits(signal=9, oom=True).up()
    hit = only(life)
    finding = find(hit, steps(1, 5, None), 0, in_bucket=True, over=True)
    assert finding.outcome is Outcome.UNKNOWN
    assert finding.why is not None and "out_of_memory" in finding.why
    assert (finding.down, finding.silent) == (None, None)
    assert "docs/failure-table.md" in finding.advice


def test_one_that_started_over_fails_the_report() -> None:
    good, bad, unknown = found(steps(1, 5, 5)), found(steps(1, 5, 1)), found(Progress())
    assert result((good,)) is Result.PASS
    assert result((good, bad, unknown)) is Result.FAIL
    assert result((good, unknown)) is Result.UNKNOWN
    assert result(()) is Result.UNKNOWN


@pytest.mark.parametrize(
    ("in_bucket", "advice"),
    [(True, "loads its latest one"), (False, "Write checkpoints to a bucket")],
)
def test_the_advice_names_the_likely_cause(advice: str, *, in_bucket: bool) -> None:
    hit = only(killed())
    finding = find(hit, steps(1, 5, 1), hit.restarted, in_bucket=in_bucket, over=True)
    assert advice in finding.advice


def test_a_fault_under_way_is_unknown_for_now() -> None:
    life = Life(job(1, 1)).up().see(order(DrillKind.KILL))
    finding = find(only(life), steps(1, 5, None), 0, in_bucket=True, over=False)
    assert finding.why == "the fault has had no effect yet"
    life.exits(PRIMARY, signal=9)
    finding = find(only(life), steps(1, 5, None), 0, in_bucket=True, over=False)
    assert finding.why == "it has not restarted yet"
    finding = find(only(life.up()), steps(1, 5, None), 0, in_bucket=True, over=False)
    assert finding.why == "no line of workerpool0-0 shows a step since the restart"


def test_a_crash_is_told_by_the_verdict_on_the_replica() -> None:
    """spec/failures#retries row of exit codes 6, 11, 134, 139: a retry."""
    life = Life(job(1)).up().see(order(DrillKind.SEGV)).exits(signal=11).see(DrillLanded(1)).up()
    hit = only(life)
    assert hit.verdict is not None
    assert (hit.verdict.details["rule"], hit.attempt) == ("transient_exit", 2)


def test_maintenance_counts_from_the_end_of_the_replica_that_left() -> None:
    life = Life(job(1, 1)).up().see(order(DrillKind.MAINTENANCE, WORKER))
    life.exits(WORKER, 0, stopped=True).places(WORKER, "c").up()
    hit = only(life)
    assert hit.verdict is not None
    assert hit.verdict.details["rule"] == "replica_lost"
    assert hit.ended > hit.drill.fired
    assert hit.incarnation == 2
