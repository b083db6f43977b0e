"""What a look at a tuning job comes to where its trials repeat themselves, its advisor fails, or time runs out (SPEC §6)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.sim.parents import CountingAdvisor, MadeUpMetrics, doors
from tests.sim.tuning_jobs import METRIC, study_spec, tuning
from tests.unit.jobs import CREATED
from trainshed.controller.parents import Next
from trainshed.controller.tuning import TuningReconciler, curve_of
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.study.limits import moments
from trainshed.core.study.spec import ConvexStopping, Limits, Selection, StudySpec
from trainshed.core.study.trials import Measurement, StudyUid, Trial, TrialState
from trainshed.core.tuning.records import TuningJob
from trainshed.store.port import Commit
from trainshed.store.sqlite.inline import open_inline
from trainshed.studies.port import AdvisorFailed, Proposals, Seen

SECOND = 10**9


class Advisor(CountingAdvisor):
    """`fails`: whether it can say what to try next."""

    fails = False

    async def suggest(
        self, spec: StudySpec, trials: Sequence[Seen], count: int, seed: int
    ) -> Proposals:
        if self.fails:
            raise AdvisorFailed("its process ended")
        return await super().suggest(spec, trials, count, seed)


class House:
    """A store with one tuning job, and a clock that a test sets."""

    def __init__(self, job: TuningJob) -> None:
        self.store = open_inline()
        self.now = job.created
        self.advisor, self.metrics = Advisor(), MadeUpMetrics()
        self.uid = job.uid
        self._doors = doors(
            self.store, lambda: self.now, advisor=self.advisor, metrics=self.metrics
        )
        self._epoch = asyncio.run(self._create(job))

    async def _create(self, job: TuningJob) -> int:
        await self.store.intake.create_job(job, ())
        return await self.store.ledger.acquire("test")

    def look(self) -> Next:
        """Look at the job, and store what comes of it."""
        return asyncio.run(self._look())

    async def _look(self) -> Next:
        live = await self.store.ledger.load(self.uid)
        assert live is not None
        found = await TuningReconciler(self._doors).reconcile(live, ())
        if found.commit is not None:
            await self.store.ledger.commit(self._epoch, found.commit)
        return found

    def is_seen(self, number: int, state: JobState) -> None:
        """The job of a trial is in that state from now on."""
        asyncio.run(self._move(number, state))

    async def _move(self, number: int, state: JobState) -> None:
        trial = (await self.store.studies.trial(StudyUid(self.uid), number)).trial
        live = await self.store.ledger.load(trial.job)
        assert live is not None and isinstance(live.job, Job)
        ended = self.now if state.is_final else 0
        started = live.job.started or self.now
        moved = replace(live.job, state=state, attempt=1, started=started, ended=ended)
        await self.store.ledger.commit(self._epoch, Commit(moved, live.generation, (), 0))

    def trial(self, number: int) -> Trial:
        return asyncio.run(self.store.studies.trial(StudyUid(self.uid), number)).trial

    def measured(self, number: int) -> tuple[Measurement, ...]:
        found = asyncio.run(self.store.studies.measurements(StudyUid(self.uid), (number,)))
        return found.get(number, ())

    def reports(self, number: int, *measurements: Measurement) -> None:
        self.metrics.of[self.trial(number).job] = measurements


def at(step: int, value: float, elapsed: int) -> Measurement:
    return Measurement(((METRIC, value),), step, elapsed * SECOND)


def test_a_step_that_is_reported_again_is_one_measurement() -> None:
    """SPEC §6: a program that went back to its checkpoint reports its steps again, and the newest value counts."""
    house = House(tuning(trials=1, parallel=1))
    house.look()
    house.is_seen(1, JobState.RUNNING)
    house.reports(1, at(1, 0.5, 10), at(2, 0.6, 20))
    house.look()
    house.reports(1, at(1, 0.5, 10), at(2, 0.7, 95))
    house.look()
    assert house.measured(1) == (at(1, 0.5, 10), at(2, 0.7, 20))


@pytest.mark.parametrize(("selection", "step"), [(Selection.LAST, 9_998), (Selection.BEST, 4_321)])
def test_a_trial_that_reports_all_the_time_is_thinned(selection: Selection, step: int) -> None:
    """SPEC §6: last or best measurement, of all that there were; what is stored stays within bounds."""
    house = House(tuning(trials=1, parallel=1, spec=study_spec(selection=selection)))
    house.look()
    house.is_seen(1, JobState.RUNNING)
    every = [at(step, 9.0 if step == 4_321 else 0.5, step) for step in range(9_999)]
    for seen in range(900, 9_900, 900):
        house.reports(1, *every[:seen])
        house.look()
    house.reports(1, *every)
    house.is_seen(1, JobState.SUCCEEDED)
    house.look()
    assert house.trial(1).final == every[step]
    assert every[step] in house.measured(1)
    assert 1_000 < len(house.measured(1)) < 4_000


def test_what_trials_came_to_is_stored_while_the_advisor_fails() -> None:
    house = House(tuning(trials=3, parallel=1))
    house.look()
    house.is_seen(1, JobState.RUNNING)
    house.reports(1, at(1, 0.5, 10))
    house.is_seen(1, JobState.SUCCEEDED)
    house.advisor.fails = True
    assert isinstance(house.look().failure, AdvisorFailed)
    assert house.trial(1).state is TrialState.SUCCEEDED
    house.advisor.fails = False
    found = house.look()
    assert found.failure is None
    assert isinstance(found.job, TuningJob)
    assert [each.number for each in found.job.running] == [2]


def test_a_limit_of_time_ends_a_job_whose_trials_all_run() -> None:
    """SPEC §6: it is looked at when its time comes, though no trial has moved."""
    limits = Limits(max_duration=100 * SECOND, stop_asap=True)
    house = House(tuning(trials=6, parallel=2, spec=study_spec(limits=limits)))
    found = house.look()
    assert [deadline.at for deadline in found.deadlines] == [CREATED + 100 * SECOND]
    house.now = CREATED + 100 * SECOND
    found = house.look()
    assert isinstance(found.job, TuningJob)
    assert found.job.exhausted
    assert [uid for uid, _ in found.cancel] == [each.job for each in found.job.running]
    assert found.deadlines == ()


def test_the_last_trials_of_a_limited_number_may_end() -> None:
    limits = Limits(max_trials=2, stop_asap=True)
    house = House(tuning(trials=6, parallel=2, spec=study_spec(limits=limits)))
    house.look()
    found = house.look()
    assert isinstance(found.job, TuningJob)
    assert len(found.job.running) == 2
    assert found.cancel == ()


def test_moments_of_limits() -> None:
    done = Trial(
        StudyUid(1), 1, TrialState.SUCCEEDED, (), 1, 1, CREATED + SECOND, final=at(1, 0.5, 1)
    )
    limits = Limits(
        min_duration=SECOND,
        max_duration=2 * SECOND,
        end_at=CREATED + 7,
        max_duration_without_progress=5 * SECOND,
    )
    spec = study_spec(limits=limits)
    assert moments(spec, (done,), CREATED) == (
        CREATED + SECOND,
        CREATED + 2 * SECOND,
        CREATED + 7,
        CREATED + 6 * SECOND,
    )
    assert moments(study_spec(), (done,), CREATED) == ()


@pytest.mark.parametrize("value", [3, 3.0])
def test_a_whole_learning_rate_counts_as_one(value: float) -> None:
    """SPEC §6: the convex rule's learning rate may be any numeric parameter, an INTEGER one, too."""
    trial = Trial(StudyUid(1), 1, TrialState.ACTIVE, (("x", value),), 1, job=JobUid(1))
    assert curve_of(ConvexStopping(learning_rate="x"), trial, ()).learning_rate == 3.0
