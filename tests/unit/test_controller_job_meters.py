"""Metrics of the service that the steps of a job update."""

from msgspec.structs import replace

from tests.unit.jobs import SECOND, exit_record, job
from trainshed.controller.steps import count_step
from trainshed.core.lifecycle.records import Job, Outcome, Replica
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.names import ReplicaId
from trainshed.telemetry.meters import Histogram, Meters


def place(waiting: Job) -> Job:
    replica = Replica(ReplicaId(0, 0), node="n1")
    return replace(waiting, attempt=1, phase=AttemptState.PREPARING, replicas=(replica,))


def count(histogram: Histogram, *labels: str) -> tuple[int, float]:
    series = histogram.series[labels]
    return sum(series.counts), series.total


def test_metrics_count_each_finished_job_restart_and_log_line_once() -> None:
    meters = Meters()
    running = replace(place(job()), state=JobState.RUNNING, phase=AttemptState.RUNNING)
    (replica,) = running.replicas
    restarted = replace(running, replicas=(replace(replica, restarts=(("replica_lost", 2),), incarnation=3),))
    count_step(meters, running, restarted, 0)
    count_step(meters, restarted, restarted, 0)
    ended = replace(replica, state=ReplicaState.EXITED, exit=replace(exit_record(1), log_lines=7))
    stopping = replace(restarted, replicas=(ended,), retries=(("internal_error", 1),))
    count_step(meters, restarted, stopping, 0)
    over = replace(
        stopping, state=JobState.FAILED, outcome=Outcome(JobState.FAILED, "user_code_failed", at=0)
    )
    count_step(meters, stopping, over, 0)
    count_step(meters, over, over, 0)
    assert meters.restarts == {("replica_lost",): 2}
    assert meters.retries == {("internal_error",): 1}
    assert meters.ends == {("vertex", "FAILED", "user_code_failed"): 1}
    assert meters.lines == 7


def test_service_metrics_contain_waiting_and_starting_times_of_jobs() -> None:
    meters, waiting = Meters(), job()
    admitted = place(waiting)
    count_step(meters, waiting, admitted, waiting.created + 3 * SECOND)
    running = replace(
        admitted, state=JobState.RUNNING, phase=AttemptState.RUNNING, started=waiting.created + 5 * SECOND
    )
    count_step(meters, admitted, running, waiting.created + 6 * SECOND)
    count_step(meters, running, running, waiting.created + 7 * SECOND)
    assert count(meters.waits, "vertex") == (1, 3.0)
    assert count(meters.starts, "vertex") == (1, 5.0)
