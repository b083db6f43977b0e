"""The resume report (spec/operations#drills), from timelines of the real state machine and invented steps."""

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


def killed_job() -> Life:
    """Return a job whose replica was killed by a drill and runs again."""
    life = Life(job(1, 1, output=OUTPUT)).up().see(order(DrillKind.KILL))
    return life.exits(signal=9).see(DrillLanded(1)).up()


def only_hit(life: Life) -> Hit:
    (hit,) = hits(life.job, life.timeline)
    return hit


def steps(first: int | None, before: int | None, after: int | None) -> Progress:
    steps = [Step(n, 0) if n is not None else None for n in (first, before, after)]
    return Progress("workerpool0-0", "step", steps[0], steps[1], steps[2])


def find_outcome(progress: Progress) -> Finding:
    hit = only_hit(killed_job())
    return find(hit, progress, hit.restarted + SECOND, in_bucket=True, over=True)


def test_resume_report_treats_a_job_retry_as_a_restart_in_the_next_attempt() -> None:
    """spec/operations#drills: the report uses the verdict of the drill, even if other replicas end because of
    it."""
    life = Life(job(1, 1)).up().see(order(DrillKind.PREEMPT, WORKER)).up()
    hit = only_hit(life)
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
        (replace(steps(1, 12, 5), ascending=False), "that only increases", "make the program print"),
    ],
)
def test_resume_outcome_without_step_lines_is_unknown_with_a_reason(
    progress: Progress, why: str, advice: str
) -> None:
    finding = find_outcome(progress)
    assert (finding.outcome, finding.lost) == (Outcome.UNKNOWN, None)
    assert finding.why is not None and why in finding.why
    assert finding.why in finding.advice
    assert advice in finding.advice


def test_resume_outcome_of_a_failed_job_is_unknown_and_names_the_failure_rule() -> None:
    """spec/failures#out-of-memory: a replica without memory fails the job by default."""
    life = Life(job(1)).up().see(order(DrillKind.OOM)).exits(signal=9, oom=True).up()
    hit = only_hit(life)
    finding = find(hit, steps(1, 5, None), 0, in_bucket=True, over=True)
    assert finding.outcome is Outcome.UNKNOWN
    assert finding.why is not None and "out_of_memory" in finding.why
    assert (finding.downtime, finding.silence) == (None, None)
    assert "docs/failure-table.md" in finding.advice


def test_resume_report_fails_if_any_replica_started_from_scratch() -> None:
    good, bad, unknown = (
        find_outcome(steps(1, 5, 5)),
        find_outcome(steps(1, 5, 1)),
        find_outcome(Progress()),
    )
    assert result((good,)) is Result.PASS
    assert result((good, bad, unknown)) is Result.FAIL
    assert result((good, unknown)) is Result.UNKNOWN
    assert result(()) is Result.UNKNOWN


@pytest.mark.parametrize(
    ("in_bucket", "advice"), [(True, "loads its latest one"), (False, "Write checkpoints to a bucket")]
)
def test_resume_advice_names_the_likely_cause(advice: str, *, in_bucket: bool) -> None:
    hit = only_hit(killed_job())
    finding = find(hit, steps(1, 5, 1), hit.restarted, in_bucket=in_bucket, over=True)
    assert advice in finding.advice


def test_resume_outcome_of_an_unfinished_drill_is_unknown() -> None:
    life = Life(job(1, 1)).up().see(order(DrillKind.KILL))
    finding = find(only_hit(life), steps(1, 5, None), 0, in_bucket=True, over=False)
    assert finding.why == "the fault has had no effect yet"
    life.exits(PRIMARY, signal=9)
    finding = find(only_hit(life), steps(1, 5, None), 0, in_bucket=True, over=False)
    assert finding.why == "it has not restarted yet"
    finding = find(only_hit(life.up()), steps(1, 5, None), 0, in_bucket=True, over=False)
    assert finding.why == "no line of workerpool0-0 shows a step since the restart"


def test_resume_report_of_a_crash_names_the_failure_rule_of_the_crashed_replica() -> None:
    """spec/failures#retries: the exit codes 6, 11, 134 and 139 cause a retry."""
    life = Life(job(1)).up().see(order(DrillKind.SEGV)).exits(signal=11).see(DrillLanded(1)).up()
    hit = only_hit(life)
    assert hit.verdict is not None
    assert (hit.verdict.details["rule"], hit.attempt) == ("transient_exit", 2)


def test_resume_report_of_maintenance_starts_at_the_replica_exit() -> None:
    life = Life(job(1, 1)).up().see(order(DrillKind.MAINTENANCE, WORKER))
    life.exits(WORKER, 0, stopped=True).places(WORKER, "c").up()
    hit = only_hit(life)
    assert hit.verdict is not None
    assert hit.verdict.details["rule"] == "replica_lost"
    assert hit.ended > hit.drill.fired
    assert hit.incarnation == 2
