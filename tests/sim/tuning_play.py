"""Plays the controller for one tuning job, without a store: its trials, jobs and measurements are plain
values.

It only makes changes that the controller and a store can make, so that any error is the machine's.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from tests.sim.tuning_jobs import METRIC
from tests.unit.jobs import SECOND
from trainshed.core.failure.messages import INVALID_ARGUMENT
from trainshed.core.job import JobError
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.study.records import Measurement, Trial, TrialState
from trainshed.core.study.spec import Goal
from trainshed.core.tuning import machine
from trainshed.core.tuning.machine import Sight, Transition
from trainshed.core.tuning.records import SeenSummaries, TuningJob
from trainshed.core.tuning.trial_jobs import start_trials


@dataclass
class SimulatedTuning:
    """A tuning job with its trials, without a store. `points`: total number of points; None: unlimited. A
    deleted job is None in `jobs`."""

    job: TuningJob
    points: int | None = None
    trials: dict[int, Trial] = field(default_factory=dict[int, Trial])
    jobs: dict[int, Job | None] = field(default_factory=dict[int, Job | None])
    measurements: dict[int, tuple[Measurement, ...]] = field(
        default_factory=dict[int, tuple[Measurement, ...]]
    )
    stored_measurements: dict[int, tuple[Measurement, ...]] = field(
        default_factory=dict[int, tuple[Measurement, ...]]
    )
    summaries: dict[int, SeenSummaries] = field(default_factory=dict[int, SeenSummaries])
    timeline: list[TimelineEntry] = field(default_factory=list[TimelineEntry])
    now: int = 0

    def __post_init__(self) -> None:
        self.now = max(self.now, self.job.updated)

    def run_step(self, *, cancel: CancelCause | None = None, stop: tuple[int, ...] = ()) -> "SimulatedTuning":
        """Run one transition of the tuning job. `stop` lists trials to be stopped early."""
        self.now += SECOND
        before = self.job
        transition = Transition(self.job, self.now)
        machine.observe(transition, [self._sight(trial.number) for trial in before.running])
        if cancel is not None:
            machine.cancel(transition, CancelRequested(cancel, self.now))
        for number in stop:
            machine.stop_trial(transition, self.trials[number], "it lags behind")
        self._begin(transition)
        step = transition.step()
        self.job = step.job
        self.trials |= transition.trials
        self.timeline += step.timeline
        for number, measurement in transition.measurements:
            self.stored_measurements[number] = (*self.stored_measurements.get(number, ()), measurement)
        return self

    def _sight(self, number: int) -> Sight:
        measured = self.measurements.get(number, ())
        tags = tuple({name: None for point in measured for name, _ in point.metrics})
        return Sight(
            self.trials[number],
            self.jobs[number],
            tuple(point for point in measured if point.value(METRIC) is not None),
            self.stored_measurements.get(number, ()),
            tags,
            self.summaries.get(number),
        )

    def _begin(self, transition: Transition) -> None:
        count = machine.startable_trials(transition.job)
        if count == 0:
            return
        last = transition.job.started_trials
        number = count if self.points is None else min(count, self.points - last)
        uids = itertools.count(transition.job.uid + transition.job.next_trial)
        proposals = [((("x", (last + 1 + n) / 10),), JobUid(next(uids))) for n in range(number)]
        for job, _ in start_trials(transition, proposals, exhausted=number < count):
            assert job.parent is not None
            assert job.parent.trial not in self.trials, "a trial started twice"
            self.jobs[job.parent.trial] = job

    # --- jobs of trials ---

    def reports(self, number: int, *values: float, tag: str = METRIC) -> "SimulatedTuning":
        """Add measurements of the program, at steps 1, 2, …"""
        before = self.measurements.get(number, ())
        steps = itertools.count(len(before) + 1)
        new = (Measurement(((tag, value),), next(steps)) for value in values)
        self.measurements[number] = (*before, *new)
        return self

    def becomes(self, number: int, state: JobState, message: str = "") -> "SimulatedTuning":
        """Move the trial's job to a state through all states before it."""
        self.now += SECOND
        job = self.jobs[number]
        assert job is not None
        started = job.started or (self.now if state is not JobState.QUEUED else 0)
        if state is JobState.PREPARING:
            started = job.started
        error = None
        if message or state in (JobState.FAILED, JobState.CANCELLED):
            error = JobError(INVALID_ARGUMENT, message or f"It is {state}.", cause="exit")
        self.jobs[number] = replace(
            job,
            state=state,
            attempt=max(1, job.attempt),
            started=started,
            ended=self.now if state.is_final else 0,
            error=error,
        )
        return self

    def succeeds(self, number: int, *values: float) -> "SimulatedTuning":
        """Add measurements and a success, which the next poll reads."""
        return self.reports(number, *values).becomes(number, JobState.SUCCEEDED)

    def is_deleted(self, number: int) -> "SimulatedTuning":
        self.jobs[number] = None
        return self

    def execute_cancels(self) -> "SimulatedTuning":
        """Cancel the jobs that must be cancelled."""
        for uid, _ in machine.to_cancel(self.job):
            for number, job in self.jobs.items():
                if job is not None and job.uid == uid and not job.state.is_final:
                    self.becomes(number, JobState.CANCELLED)
        return self

    # --- invariants after every poll ---

    @property
    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.timeline]

    def wrong(self) -> list[str]:
        return list(disagreements(self.job, tuple(self.trials.values())))


def disagreements(job: TuningJob, trials: tuple[Trial, ...]) -> Iterator[str]:
    """Return violations of a stored tuning job and its trials (spec/tuning#trials, docs/adr/0017)."""
    spec = job.spec
    numbers = [trial.number for trial in trials]
    if numbers != list(range(spec.first_trial, job.next_trial)):
        yield f"trials {numbers}; the next one is to be {job.next_trial}"
    if job.started_trials > spec.max_trials:
        yield f"{job.started_trials} trials of at most {spec.max_trials}"
    if len(job.running) > spec.parallel_trials:
        yield f"{len(job.running)} trials run of at most {spec.parallel_trials}"
    alive = {(trial.number, trial.job) for trial in trials if not trial.state.is_over}
    running = {(trial.number, trial.job) for trial in job.running}
    if running != alive or len(alive) != len(job.running):
        yield f"running {job.running}; of the trials {alive} are not over"
    done = [trial for trial in trials if trial.state is TrialState.SUCCEEDED]
    infeasible = [trial for trial in trials if trial.state is TrialState.INFEASIBLE]
    if (job.succeeded, job.infeasible) != (len(done), len(infeasible)):
        yield f"counts {job.succeeded}, {job.infeasible}; rows {len(done)}, {len(infeasible)}"
    if job.failed > job.infeasible:
        yield f"{job.failed} of {job.infeasible} infeasible trials failed"
    values = {trial.number: trial.final.value(METRIC) for trial in done if trial.final is not None}
    finals = {number: value for number, value in values.items() if value is not None}
    if len(finals) != len(done):
        yield f"trials that succeeded without a value: {values}"
    if finals:
        aim = max if spec.study.metrics[0].goal is Goal.MAXIMIZE else min
        if job.best_value != aim(finals.values()) or finals.get(job.best) != job.best_value:
            yield f"best {job.best} with {job.best_value} of {finals}"
    elif job.best:
        yield f"best {job.best}, though no trial succeeded"
    for trial in infeasible:
        if not trial.infeasible_reason or trial.final is not None:
            yield f"infeasible without a reason: {trial}"
    for trial in trials:
        if trial.state.is_over != bool(trial.ended):
            yield f"times of {trial}"
    yield from _of_the_end(job)


def _of_the_end(job: TuningJob) -> Iterator[str]:
    if not job.state.is_final:
        if job.ended or job.error:
            yield f"it is {job.state}, and {job.error} at {job.ended}"
        return
    if job.running:
        yield f"it is {job.state} while {job.running} run"
    if job.outcome is None or job.outcome.state is not job.state:
        yield f"it is {job.state}; decided was {job.outcome}"
    elif job.error != job.outcome.error or (job.error is None) != (job.state is JobState.SUCCEEDED):
        yield f"it is {job.state} with {job.error}; decided was {job.outcome}"
    if not job.ended:
        yield "it is over since no time"
    if job.state is JobState.SUCCEEDED and not job.succeeded:
        yield "it succeeded without a trial that did"
