"""Steps of a tuning job with repeated measurements, a failing advisor, or expired time limits
(spec/tuning#trials)."""

import asyncio
import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.inline_store import open_inline
from tests.sim.parents import CountingAdvisor, FakeMetrics, parent_stores
from tests.sim.tuning_jobs import METRIC, study_spec, tuning
from trainshed.controller.tuning import TuningReconciler
from trainshed.core.curves import Point
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.study.records import Measurement, StudyUid, Trial, TrialState
from trainshed.core.study.spec import Selection, StudySpec
from trainshed.core.tuning.records import SeenSummaries, TuningJob
from trainshed.store.port import Commit, NewWork
from trainshed.store.steps import Next
from trainshed.studies.port import AdvisorFailed, Proposals, TrialData

SECOND = 10**9


class Advisor(CountingAdvisor):
    """An advisor that cannot suggest trials while `fails` is set."""

    fails = False

    async def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        if self.fails:
            raise AdvisorFailed("its process ended")
        return await super().suggest(spec, trials, count, seed)


class TuningHouse:
    """A store with one tuning job, and a clock that the test sets."""

    def __init__(self, job: TuningJob, advisor: Advisor | None = None) -> None:
        self.store = open_inline()
        self.now = job.created
        self.advisor, self.metrics = advisor or Advisor(), FakeMetrics()
        self.uid = job.uid
        self._stores = parent_stores(
            self.store,
            lambda: self.now,
            advisor=self.advisor,
            reported=self.metrics.measurements,
            printed=self._print,
            logged=self._logged,
        )
        #: Lines that the program of a trial has printed, with their times.
        self.printed: list[tuple[int, str]] = []
        #: Summary points that the program has logged, by tag.
        self.logs: dict[str, list[Point]] = {}
        self.woken = False
        self.reconciler = TuningReconciler(self._stores, self._wake)
        self._epoch = asyncio.run(self._create(job))

    async def _print(self, _: object) -> Sequence[tuple[int, str]]:
        return self.printed

    async def _logged(self, _: Job, tag: str) -> tuple[SeenSummaries, list[Point]]:
        return SeenSummaries("gs://b/logs", tuple(self.logs)), self.logs.get(tag, [])

    def logs_summaries(self, points: dict[int, float]) -> None:
        """Make the program of the trial log these points in ten seconds."""
        self.logs[METRIC] = [Point(s, self.now + 10 * SECOND, v) for s, v in points.items()]

    def restart(self) -> None:
        """Discard all state that is not stored, as a restart of the service does."""
        self.reconciler = TuningReconciler(self._stores, self._wake)

    def _wake(self, uid: JobUid) -> None:
        assert uid == self.uid
        self.woken = True

    async def _create(self, job: TuningJob) -> int:
        await self.store.intake.create(NewWork(job))
        return await self.store.ledger.acquire("test")

    def run_step(self) -> Next:
        """Run a step of the tuning job, and another one after its suggestions arrive. Store the results."""
        return asyncio.run(self._run_steps())

    async def _run_steps(self) -> Next:
        outcome = await self.run_step_once()
        await asyncio.sleep(0)
        while self.woken:
            self.woken = False
            outcome = await self.run_step_once()
            await asyncio.sleep(0)
        return outcome

    async def run_step_once(self) -> Next:
        live = await self.store.ledger.load(self.uid)
        assert live is not None
        outcome = await self.reconciler.reconcile(live, ())
        if outcome.commit is not None:
            await self.store.ledger.commit(self._epoch, outcome.commit)
        return outcome

    def set_trial_state(self, number: int, state: JobState) -> None:
        """Set the state of the job of a trial."""
        asyncio.run(self.move(number, state))

    async def move(self, number: int, state: JobState) -> None:
        trial = await self.store.studies.trial(StudyUid(self.uid), number)
        live = await self.store.ledger.load(trial.job)
        assert live is not None and isinstance(live.job, Job)
        ended = self.now if state.is_final else 0
        started = live.job.started or self.now
        moved = replace(live.job, state=state, attempt=1, started=started, ended=ended)
        await self.store.ledger.commit(self._epoch, Commit(moved, live.generation, (), 0))

    def trial(self, number: int) -> Trial:
        return asyncio.run(self.store.studies.trial(StudyUid(self.uid), number))

    def measurements_of(self, number: int) -> tuple[Measurement, ...]:
        measurements = asyncio.run(self.store.studies.measurements(StudyUid(self.uid), (number,)))
        return measurements.get(number, ())

    def reports(self, number: int, *measurements: Measurement) -> None:
        self.metrics.of[self.trial(number).job] = measurements


def measurement_at(step: int, value: float, elapsed: int) -> Measurement:
    return Measurement(((METRIC, value),), step, elapsed * SECOND)


@pytest.mark.parametrize(("selection", "step"), [(Selection.LAST, 9_998), (Selection.BEST, 4_321)])
def test_stored_measurements_of_a_trial_are_limited(selection: Selection, step: int) -> None:
    """spec/tuning#measurements: the last or best of all measurements counts, and the number of stored ones is
    limited."""
    house = TuningHouse(tuning(trials=1, parallel=1, spec=study_spec(selection=selection)))
    house.run_step()
    house.set_trial_state(1, JobState.RUNNING)
    every = [measurement_at(step, 9.0 if step == 4_321 else 0.5, step) for step in range(9_999)]
    for seen in range(900, 9_900, 900):
        house.reports(1, *every[:seen])
        house.run_step()
    house.reports(1, *every)
    house.set_trial_state(1, JobState.SUCCEEDED)
    house.run_step()
    assert house.trial(1).final == every[step]
    assert every[step] in house.measurements_of(1)
    assert 1_000 < len(house.measurements_of(1)) < 4_000


def test_trial_results_are_stored_while_the_advisor_fails() -> None:
    house = TuningHouse(tuning(trials=3, parallel=1))
    house.run_step()
    house.set_trial_state(1, JobState.RUNNING)
    house.reports(1, measurement_at(1, 0.5, 10))
    house.set_trial_state(1, JobState.SUCCEEDED)
    house.advisor.fails = True
    house.run_step()
    assert house.trial(1).state is TrialState.SUCCEEDED
    house.advisor.fails = False
    outcome = house.run_step()
    assert isinstance(outcome.job, TuningJob)
    assert [trial.number for trial in outcome.job.running] == [2]


def test_unreadable_job_record_of_a_trial_ends_only_that_trial() -> None:
    house = TuningHouse(tuning(trials=2, parallel=1))
    house.run_step()
    spoil = f"UPDATE jobs SET record = x'00' WHERE uid = {house.trial(1).job}"
    house.store.read_now(lambda connection: connection.execute(spoil))
    outcome = house.run_step()
    assert isinstance(outcome.job, TuningJob)
    assert [trial.number for trial in outcome.job.running] == [2]
    assert house.trial(1).state is TrialState.INFEASIBLE


# --- summaries ---


def running_trial() -> TuningHouse:
    house = TuningHouse(tuning(trials=1, parallel=1))
    house.run_step()
    house.set_trial_state(1, JobState.RUNNING)
    return house


def test_trial_measurements_are_read_from_the_event_files_of_the_trial() -> None:
    house = running_trial()
    house.logs_summaries({1: 0.25, 2: 0.5})
    house.run_step()
    assert house.measurements_of(1) == (measurement_at(1, 0.25, 10), measurement_at(2, 0.5, 10))
    house.logs_summaries({1: 0.25, 2: 0.75, 3: 0.5, 4: math.nan})
    house.set_trial_state(1, JobState.SUCCEEDED)
    house.run_step()
    assert house.measurements_of(1) == (
        measurement_at(1, 0.25, 10),
        measurement_at(2, 0.75, 10),
        measurement_at(3, 0.5, 10),
    )
    assert house.trial(1).final == measurement_at(3, 0.5, 10)


def test_measurements_reported_by_a_trial_take_precedence_over_its_event_files() -> None:
    house = running_trial()
    house.printed = [(house.now, f"{METRIC}: 0.1")]
    house.logs_summaries({1: 0.25, 100: 0.5})
    house.run_step()
    house.reports(1, measurement_at(2, 0.75, 20))
    house.set_trial_state(1, JobState.SUCCEEDED)
    house.run_step()
    assert house.trial(1).final == measurement_at(2, 0.75, 20)


def test_measurements_printed_by_a_trial_are_used_if_the_trial_reports_none() -> None:
    house = running_trial()
    house.printed = [(house.now, "seed 7"), (house.now + SECOND, f"{METRIC}: 0.5 {METRIC}=0.25")]
    house.run_step()
    assert house.measurements_of(1) == (), "the trial may still report measurements until it ends"
    house.set_trial_state(1, JobState.SUCCEEDED)
    house.run_step()
    assert house.measurements_of(1) == (measurement_at(1, 0.5, 1), measurement_at(2, 0.25, 1))


def test_restarted_service_does_not_store_event_file_values_twice() -> None:
    house = running_trial()
    house.logs_summaries({1: 0.25})
    house.run_step()
    house.restart()
    assert house.run_step().commit is None
    assert house.measurements_of(1) == (measurement_at(1, 0.25, 10),)


# --- early stopping ---


def test_trials_that_end_while_a_suggestion_is_computed_are_replaced_by_new_trials() -> None:
    """spec/tuning#trials: if a second trial ends while a suggestion for the first is computed, the job
    immediately requests another suggestion."""
    house = TuningHouse(tuning(trials=6, parallel=2))
    house.run_step()
    for number in (1, 2):
        house.set_trial_state(number, JobState.RUNNING)
        house.reports(number, measurement_at(1, 0.5, 10))
    house.set_trial_state(1, JobState.SUCCEEDED)
    asyncio.run(_end_both_trials(house))
    outcome = house.run_step()
    assert isinstance(outcome.job, TuningJob)
    assert [trial.number for trial in outcome.job.running] == [3, 4]


async def _end_both_trials(house: TuningHouse) -> None:
    """End the second trial after the step that requested a successor of the first one."""
    await house.run_step_once()
    await house.move(2, JobState.SUCCEEDED)
    await asyncio.sleep(0)
    await house.run_step_once()
    assert house.woken
