"""The resume report (spec/operations#drills): timelines of the real state machine, steps and accesses made
up."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, Life, job
from trainshed.core.datasets.plans import SplitPlan, SplitRule
from trainshed.core.datasets.records import DatasetKind, DatasetName
from trainshed.core.job.spec import Program
from trainshed.core.lifecycle.drills import Drill, DrillKind
from trainshed.core.lifecycle.events import DrillLanded, DrillOrdered
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId
from trainshed.core.resume.report import Finding, Hit, Outcome, Progress, Result, find, hits, result
from trainshed.core.resume.steps import Step
from trainshed.core.resume.traffic import (
    Access,
    Traffic,
    folders,
    prefixes,
    traffic,
)

OUTPUT = "gs://bucket/run"
UNSEEN = Traffic(unseen="nobody looked")


def order(kind: DrillKind, replica: ReplicaId = PRIMARY) -> DrillOrdered:
    return DrillOrdered(Drill(0, kind, replica, CREATED))


def killed(replica: ReplicaId = PRIMARY) -> Life:
    """A job whose replica was killed by a drill and runs again."""
    life = Life(job(1, 1, output=OUTPUT)).up().see(order(DrillKind.KILL, replica))
    return life.exits(replica, signal=9).see(DrillLanded(1)).up()


def only(life: Life) -> Hit:
    (hit,) = hits(life.job, life.told)
    return hit


def steps(first: int | None, before: int | None, after: int | None) -> Progress:
    told = [Step(n, 0) if n is not None else None for n in (first, before, after)]
    return Progress("workerpool0-0", "step", told[0], told[1], told[2])


def found(progress: Progress, seen: Traffic = UNSEEN, *, hit: Hit | None = None) -> Finding:
    hit = hit or only(killed())
    return find(hit, progress, seen, hit.restarted + SECOND, over=True)


def test_a_retry_of_the_whole_job_is_a_restart_in_the_next_attempt() -> None:
    """spec/operations#drills: the verdict is the drill's own, also where others end in its wake."""
    life = Life(job(1, 1)).up().see(order(DrillKind.PREEMPT, WORKER)).up()
    hit = only(life)
    assert hit.ruling is not None
    assert (hit.ruling.rule, hit.ruling.effect) == ("spot_preempted", "job_retries")
    assert (hit.attempt, hit.incarnation) == (2, 1)
    assert hit.restarted > hit.ended >= hit.drill.fired


def test_a_crash_is_told_by_the_verdict_on_the_replica() -> None:
    """spec/failures#retries row of exit codes 6, 11, 134, 139: a retry."""
    life = Life(job(1)).up().see(order(DrillKind.SEGV)).exits(signal=11).see(DrillLanded(1)).up()
    hit = only(life)
    assert hit.ruling is not None
    assert (hit.ruling.rule, hit.attempt) == ("transient_exit", 2)


def test_maintenance_counts_from_the_end_of_the_replica_that_left() -> None:
    life = Life(job(1, 1)).up().see(order(DrillKind.MAINTENANCE, WORKER))
    life.exits(WORKER, 0, stopped=True).places(WORKER, "c").up()
    hit = only(life)
    assert hit.ruling is not None
    assert hit.ruling.rule == "replica_lost"
    assert hit.ended > hit.drill.fired
    assert hit.incarnation == 2


@pytest.mark.parametrize(
    ("progress", "why", "advice"),
    [
        (Progress(), "the log tells no step", "let the program print its step"),
        (steps(None, 12, 5), "too far back", "it was at 12"),
        (steps(1, 12, None), "the job ended before a line of workerpool0-0", "an earlier moment"),
        (replace(steps(1, 12, 5), ascending=False), "fall as well as rise", "give a stepPattern"),
    ],
)
def test_what_the_log_does_not_say_is_unknown_and_why(
    progress: Progress, why: str, advice: str
) -> None:
    finding = found(progress)
    assert (finding.outcome, finding.lost) == (Outcome.UNKNOWN, None)
    assert why in finding.why
    assert finding.why in finding.advice
    assert advice in finding.advice


def test_a_fault_that_ends_the_job_is_unknown_with_the_rule() -> None:
    """spec/failures#out-of-memory: out of memory fails the job by default."""
    life = Life(job(1)).up().see(order(DrillKind.OOM)).exits(signal=9, oom=True).up()
    hit = only(life)
    finding = find(hit, steps(1, 5, None), UNSEEN, 0, over=True)
    assert finding.outcome is Outcome.UNKNOWN
    assert "out_of_memory" in finding.why
    assert (finding.down, finding.silent) == (-1, -1)
    assert "docs/failure-table.md" in finding.advice


def test_a_fault_under_way_is_unknown_for_now() -> None:
    life = Life(job(1, 1)).up().see(order(DrillKind.KILL))
    finding = find(only(life), steps(1, 5, None), UNSEEN, 0, over=False)
    assert finding.why == "the fault has shown no effect yet"
    life.exits(PRIMARY, signal=9)
    finding = find(only(life), steps(1, 5, None), UNSEEN, 0, over=False)
    assert finding.why == "it is not up again yet"
    finding = find(only(life.up()), steps(1, 5, None), UNSEEN, 0, over=False)
    assert finding.why == "no line of workerpool0-0 has told a step since the restart"


def test_one_that_started_over_fails_the_report() -> None:
    good, bad, unknown = found(steps(1, 5, 5)), found(steps(1, 5, 1)), found(Progress())
    assert result((good,)) is Result.PASS
    assert result((good, bad, unknown)) is Result.FAIL
    assert result((good, unknown)) is Result.UNKNOWN
    assert result(()) is Result.UNKNOWN


def access(uri: str, at: int, *, write: bool, size: int = 10) -> Access:
    return Access(at, at + SECOND, write, f"{OUTPUT}/{uri}", size)


def test_files_written_before_and_read_after_are_told() -> None:
    """spec/operations#resume-report: which checkpoint files were written and read."""
    hit = only(killed())
    fault, restart = hit.drill.fired, hit.restarted
    seen = Traffic(
        (
            access("5", fault - 9 * SECOND, write=True),
            access("10", fault - 5 * SECOND, write=True),
            access("10", fault - 2 * SECOND, write=False),
            access("15", fault, write=True),
            access("10", restart + 1, write=False, size=6),
            access("10", restart + 2, write=False, size=4),
            access("data", restart + 3, write=False),
            access("5", restart + 5 * SECOND, write=False),
        )
    )
    progress = replace(steps(1, 12, 11), after=Step(11, restart + 4 * SECOND))
    finding = found(progress, seen, hit=hit)
    assert [(f.uri, f.bytes) for f in finding.written] == [
        (f"{OUTPUT}/10", 10),
        (f"{OUTPUT}/5", 10),
    ], "the newest first; what was not finished at the fault is no checkpoint"
    assert [(f.uri, f.bytes, f.at) for f in finding.read] == [(f"{OUTPUT}/10", 10, restart + 1)]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Traffic(), "no checkpoint was written before the fault"),
        (Traffic((access("5", 0, write=True),)), "no checkpoint was read after the restart"),
        (UNSEEN, "nobody looked"),
        (traffic(job(), (), CREATED, 0), "write checkpoints to a bucket"),
    ],
)
def test_the_advice_names_the_likely_cause(seen: Traffic, said: str) -> None:
    assert said in found(steps(1, 5, 1), seen).advice


def test_a_checkpoint_that_was_read_in_vain_is_named() -> None:
    hit = only(killed())
    seen = Traffic((access("5", 0, write=True), access("5", hit.restarted + 1, write=False)))
    progress = replace(steps(1, 5, 1), after=Step(1, hit.restarted + SECOND))
    assert f"{OUTPUT}/5 was read" in found(progress, seen, hit=hit).advice


def test_files_of_a_datasets_splits_are_no_checkpoints() -> None:
    name = DatasetName("p", "us-central1", "7")
    directory = f"{OUTPUT}/dataset-7"
    plan = SplitPlan(name, DatasetKind.TABULAR, (), SplitRule(), directory)
    mine = job(output=OUTPUT)
    mine = replace(mine, spec=replace(mine.spec, data=plan))
    split = access("dataset-7/training-00000.csv", CREATED + 5, write=True)
    read = access("dataset-7/training-00000.csv", CREATED + 9, write=False)
    wrote = access("5", CREATED + 7, write=True)
    seen = traffic(mine, (split, read, wrote), CREATED, split.ended)
    assert (seen.accesses, seen.unseen) == ((wrote,), "")
    # Nothing else was written there, unless it was written later than they were.
    assert traffic(mine, (split, read), CREATED, split.ended - 1).unseen == ""
    assert "/gcs" in traffic(mine, (split, read), CREATED, split.ended + 1).unseen


@pytest.mark.parametrize(
    ("mine", "since", "files", "said"),
    [
        (job(), CREATED, 0, "names no place in a bucket"),
        (job(output=OUTPUT), CREATED + 1, 0, "does not go back"),
        (job(output=OUTPUT), CREATED, CREATED + 1, "/gcs"),
        (job(output=OUTPUT), CREATED, None, "/gcs"),
    ],
)
def test_accesses_are_unknown_where_it_did_not(
    mine: Job, since: int, files: int | None, said: str
) -> None:
    """spec/operations#resume-report: `unknown` where it cannot see."""
    assert said in traffic(mine, (), since, files).unseen


def test_checkpoints_are_looked_for_where_the_job_says() -> None:
    mine = job(output=OUTPUT + "/")
    pool = mine.spec.pools[0]
    arguments = Program(
        pool.program.runtime,
        module="m",
        args=("--to=gs://other/ckpt", f"--model={OUTPUT}/model", "--name", "x"),
        env=(("FROM", "gs://third/data"),),
    )
    spec = replace(mine.spec, pools=(replace(pool, program=arguments),))
    mine = replace(mine, spec=spec)
    assert folders(mine) == (f"{OUTPUT}/",)
    assert prefixes(mine) == (f"{OUTPUT}/", "gs://other/ckpt", "gs://third/data")
