"""The life of a tuning job, step by step (spec/tuning#trials, facts/tuning#failing-trials): the jobs of its
trials determine its next state."""

import re

import pytest

from tests.sim.tuning_jobs import METRIC, tuning
from tests.sim.tuning_play import SimulatedTuning
from tests.unit.jobs import CREATED, SECOND
from trainshed.core.job import Scheduling
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api
from trainshed.core.study.records import TrialState
from trainshed.core.tuning import machine
from trainshed.core.tuning.records import SeenSummaries

S = JobState


def play(trials: int = 6, parallel: int = 3, failed: int = 0, **how: object) -> SimulatedTuning:
    """Return a tuning job whose first trials have started."""
    job = tuning(trials=trials, parallel=parallel, failed=failed, **how)  # pyright: ignore[reportArgumentType] # by name
    return SimulatedTuning(job).run_step()


def ends(subject: SimulatedTuning, *values: float | None) -> SimulatedTuning:
    """End the trials one after the other with these values, and run a step after each. None: the program
    fails."""
    for number, value in enumerate(values, 1):
        if value is None:
            subject.becomes(number, S.FAILED, "exited with a non-zero status of 1")
        else:
            subject.succeeds(number, value)
        subject.run_step()
        assert not subject.wrong()
    return subject


# --- states ---


def test_state_of_a_tuning_job_is_the_furthest_state_of_any_trial() -> None:
    """spec/lifecycle: the job is PREPARING when a trial has capacity, and RUNNING when a trial runs. Its
    start time is that of the trial."""
    subject = play()
    assert subject.job.state is S.QUEUED
    assert subject.becomes(2, S.PREPARING).run_step().job.state is S.PREPARING
    subject.becomes(2, S.RUNNING)
    at = subject.now
    assert subject.run_step().job.state is S.RUNNING
    assert (subject.job.started, subject.trials[2].started) == (at, at)
    assert subject.becomes(2, S.PREPARING).run_step().job.state is S.RUNNING


# --- trials without a result ---


@pytest.mark.parametrize(
    ("api", "tags", "reason"),
    [
        (Api.ML, None, "hypertune"),
        (Api.ML, ("a_1", "b"), f"'a_1' and 'b', but hyperparameterMetricTag is '{METRIC}'"),
        (Api.VERTEX, ("a_1", "b"), f"'a_1' and 'b', but metricId is '{METRIC}'"),
        (Api.ML, (), "hypertune.* as a TensorFlow summary below gs://b/job/1"),
        (Api.ML, (METRIC,), f"^its program measured no finite value of the metric '{METRIC}', only"),
        (Api.ML, tuple(f"layer_{n}" for n in range(1000)), "'layer_19' and 980 more, but"),
    ],
    ids=["no-reports", "ml-other-tags", "vertex-other-tags", "no-summaries", "no-finite-value", "many-tags"],
)  # fmt: skip
def test_infeasible_trial_reason_lists_the_reported_metrics(
    api: Api, tags: tuple[str, ...] | None, reason: str
) -> None:
    """`tags` are the tags of the trial's summaries. None: the trial has no summary directory."""
    subject = play(failed=6, api=api)
    if tags is not None:
        subject.summaries[1] = SeenSummaries("gs://b/job/1", tags)
    trial = subject.becomes(1, S.SUCCEEDED).run_step().trials[1]
    assert re.search(reason, trial.infeasible_reason), trial.infeasible_reason


@pytest.mark.parametrize("ending", ["cancelled", "deleted"])
def test_manually_cancelled_or_deleted_trial_is_not_a_failure(ending: str) -> None:
    subject = play()
    if ending == "cancelled":
        subject.becomes(1, S.CANCELLED, "The job was cancelled by the user.").run_step()
    else:
        subject.is_deleted(1).run_step()
    assert subject.trials[1].state is TrialState.INFEASIBLE
    assert (subject.job.infeasible, subject.job.failed) == (1, 0)
    assert subject.job.outcome is None
    assert sorted(subject.trials) == [1, 2, 3, 4]
    assert not subject.wrong()


def test_tuning_job_without_any_trial_result_fails() -> None:
    subject = play(trials=2, parallel=2).is_deleted(1).is_deleted(2).run_step()
    assert subject.job.state is S.FAILED
    assert subject.job.error is not None
    assert "None of the 2 trials has a result" in subject.job.error.message
    assert not subject.wrong()
    error = SimulatedTuning(tuning(), points=0).run_step().job.error
    assert error is not None and "earlier jobs tried" in error.message


# --- too many failures ---


def test_tuning_job_fails_with_a_reason_if_the_first_finished_trial_fails() -> None:
    """facts/tuning#failing-trials, spec/tuning#failed-trials: maxFailedTrialCount is unset."""
    subject = ends(play(), None)
    assert subject.job.outcome is not None
    assert subject.job.state is not S.FAILED, "the other trials still run"
    assert {uid for uid, _ in machine.to_cancel(subject.job)} == {r.job for r in subject.job.running}
    assert {cause for _, cause in machine.to_cancel(subject.job)} == {CancelCause.PARENT}
    subject.execute_cancels().run_step()
    assert subject.job.state is S.FAILED
    assert subject.job.error is not None and "Trial 1 failed" in subject.job.error.message
    assert "non-zero status of 1" in subject.job.error.message
    assert sorted(subject.trials) == [1, 2, 3]
    assert not subject.wrong()


def test_trial_that_finishes_first_counts_as_first_regardless_of_the_trial_number() -> None:
    """facts/tuning#failing-trials: the job ends if the first trial that finishes has failed."""
    subject = play().becomes(3, S.FAILED, "no").run_step()
    assert subject.job.outcome is not None
    other = play().succeeds(2, 0.5).run_step().becomes(1, S.FAILED, "no").run_step()
    assert other.job.outcome is None


def test_tuning_job_fails_when_the_limit_of_failed_trials_is_reached() -> None:
    """facts/tuning#failing-trials, maxFailedTrialCount."""
    subject = ends(play(trials=9, failed=3), None, None)
    assert subject.job.outcome is None
    subject.becomes(3, S.FAILED).run_step()
    assert subject.job.outcome is not None and subject.job.outcome.state is S.FAILED
    error = subject.execute_cancels().run_step().job.error
    assert error is not None and error.message.startswith("3 trials failed (0 succeeded)")


def test_tuning_job_fails_with_more_than_twice_as_many_failures_as_results() -> None:
    """facts/tuning#failing-trials has no figures. docs/tuning.md: at least three failures, and more than
    twice the results."""
    subject = ends(play(trials=20, parallel=1), 0.5, None, None)
    assert subject.job.outcome is None
    subject.becomes(4, S.FAILED).run_step()
    assert subject.job.state is S.FAILED
    enough = ends(play(trials=20, parallel=1), 0.5, 0.5, None, None, None, None)
    assert enough.job.outcome is None
    assert enough.becomes(7, S.FAILED).run_step().job.state is S.FAILED


# --- early stopping ---


def test_early_stopped_trial_succeeds_with_the_last_measurement_as_final() -> None:
    """spec/tuning#early-stopping: the last measurement of the stopped trial is its final one."""
    subject = play().becomes(2, S.RUNNING).reports(2, 0.3, 0.4).run_step(stop=(2,))
    assert (subject.trials[2].state, subject.trials[2].stopped_early) == (TrialState.STOPPING, True)
    running = subject.job.running[1]
    assert machine.to_cancel(subject.job) == ((running.job, CancelCause.EARLY_STOP),)
    subject.execute_cancels().run_step()
    trial = subject.trials[2]
    assert (trial.state, trial.stopped_early) == (TrialState.SUCCEEDED, True)
    assert trial.final is not None and trial.final.value(METRIC) == 0.4
    assert "was stopped early" in next(e.message for e in subject.timeline if e.kind == "trial_succeeded")
    assert sorted(subject.trials) == [1, 2, 3, 4]


# --- exhausted search space ---


def test_tuning_job_ends_when_the_grid_is_exhausted() -> None:
    """spec/tuning#algorithms: the grid has fewer points than the number of trials."""
    subject = SimulatedTuning(tuning(trials=6, parallel=3), points=4).run_step()
    ends(subject, 0.1)
    assert (sorted(subject.trials), subject.job.exhausted) == ([1, 2, 3, 4], False)
    ends(subject, 0.1, 0.2)
    assert subject.job.exhausted
    subject.succeeds(3, 0.3).run_step().succeeds(4, 0.2).run_step()
    assert subject.job.state is S.SUCCEEDED
    assert (subject.job.best, subject.job.started_trials) == (3, 4)
    assert not subject.wrong()


# --- cancel and time limits ---


def test_time_limits_of_an_ml_tuning_job_apply_to_the_whole_job() -> None:
    """docs/tuning.md: maxWaitTime applies until the first trial runs, and maxRunningTime from then on."""
    limits = Scheduling(timeout=60 * SECOND, max_wait=5 * SECOND)
    subject = play(api=Api.ML, scheduling=limits)
    (wait,) = machine.deadlines(subject.job)
    assert wait.event == CancelRequested(CancelCause.MAX_WAIT, CREATED + 5 * SECOND)
    subject.becomes(1, S.RUNNING).run_step()
    (limit,) = machine.deadlines(subject.job)
    assert limit.at == subject.job.started + 60 * SECOND
    subject.run_step(cancel=CancelCause.MAX_WAIT)
    assert subject.job.outcome is None, "the maximum wait does not apply to a running job"
    subject.run_step(cancel=CancelCause.TIMEOUT)
    assert machine.deadlines(subject.job) == ()
    assert subject.execute_cancels().run_step().job.state is S.CANCELLED
