"""What a look at a tuning job comes to where its trials repeat themselves, its advisor fails, or time runs
out (spec/tuning#trials)."""

import asyncio
import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.inline_store import open_inline
from tests.sim.parents import CountingAdvisor, MadeUpMetrics, parent_stores
from tests.sim.tuning_jobs import METRIC, study_spec, tuning
from trainshed.controller.parents import Next
from trainshed.controller.tuning import TuningReconciler
from trainshed.core.curves import Point
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.study.records import Measurement, StudyUid, Trial, TrialState
from trainshed.core.study.spec import Selection, StudySpec
from trainshed.core.tuning.records import SeenSummaries, TuningJob
from trainshed.store.port import Commit, NewWork
from trainshed.studies.port import AdvisorFailed, Proposals, TrialData

SECOND = 10**9


class Advisor(CountingAdvisor):
    """`fails`: whether it can say what to try next."""

    fails = False

    async def suggest(
        self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int
    ) -> Proposals:
        if self.fails:
            raise AdvisorFailed("its process ended")
        return await super().suggest(spec, trials, count, seed)


class House:
    """A store with one tuning job, and a clock that a test sets."""

    def __init__(self, job: TuningJob, advisor: Advisor | None = None) -> None:
        self.store = open_inline()
        self.now = job.created
        self.advisor, self.metrics = advisor or Advisor(), MadeUpMetrics()
        self.uid = job.uid
        self._stores = parent_stores(
            self.store,
            lambda: self.now,
            advisor=self.advisor,
            reported=self.metrics.measurements,
            printed=self._print,
            logged=self._logged,
        )
        #: What the program of a trial has printed, by the time.
        self.printed: list[tuple[int, str]] = []
        #: What it has logged: the points by tag.
        self.logs: dict[str, list[Point]] = {}
        self.woken = False
        self.reconciler = TuningReconciler(self._stores, self._wake)
        self._epoch = asyncio.run(self._create(job))

    async def _print(self, _: object) -> Sequence[tuple[int, str]]:
        return self.printed

    async def _logged(self, _: Job, tag: str) -> tuple[SeenSummaries, list[Point]]:
        return SeenSummaries("gs://b/logs", tuple(self.logs)), self.logs.get(tag, [])

    def writes(self, points: dict[int, float]) -> None:
        """Has the program of the trial log them, ten seconds from now."""
        self.logs[METRIC] = [Point(s, self.now + 10 * SECOND, v) for s, v in points.items()]

    def restart(self) -> None:
        """Forget all that is not stored."""
        self.reconciler = TuningReconciler(self._stores, self._wake)

    def _wake(self, uid: JobUid) -> None:
        assert uid == self.uid
        self.woken = True

    async def _create(self, job: TuningJob) -> int:
        await self.store.intake.create(NewWork(job))
        return await self.store.ledger.acquire("test")

    def look(self) -> Next:
        """Look at the job, and again as soon as there is a suggestion, and store what comes of it."""
        return asyncio.run(self._looks())

    async def _looks(self) -> Next:
        outcome = await self.look_once()
        await asyncio.sleep(0)
        while self.woken:
            self.woken = False
            outcome = await self.look_once()
            await asyncio.sleep(0)
        return outcome

    async def look_once(self) -> Next:
        live = await self.store.ledger.load(self.uid)
        assert live is not None
        outcome = await self.reconciler.reconcile(live, ())
        if outcome.commit is not None:
            await self.store.ledger.commit(self._epoch, outcome.commit)
        return outcome

    def is_seen(self, number: int, state: JobState) -> None:
        """The job of a trial is in that state from now on."""
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

    def measured(self, number: int) -> tuple[Measurement, ...]:
        measurements = asyncio.run(self.store.studies.measurements(StudyUid(self.uid), (number,)))
        return measurements.get(number, ())

    def reports(self, number: int, *measurements: Measurement) -> None:
        self.metrics.of[self.trial(number).job] = measurements


def at(step: int, value: float, elapsed: int) -> Measurement:
    return Measurement(((METRIC, value),), step, elapsed * SECOND)


@pytest.mark.parametrize(("selection", "step"), [(Selection.LAST, 9_998), (Selection.BEST, 4_321)])
def test_a_trial_that_reports_all_the_time_is_thinned(selection: Selection, step: int) -> None:
    """spec/tuning#measurements: last or best measurement, of all that there were; what is stored stays within
    bounds."""
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
    house.look()
    assert house.trial(1).state is TrialState.SUCCEEDED
    house.advisor.fails = False
    outcome = house.look()
    assert isinstance(outcome.job, TuningJob)
    assert [trial.number for trial in outcome.job.running] == [2]


def test_a_trial_whose_job_cannot_be_read_ends_alone() -> None:
    house = House(tuning(trials=2, parallel=1))
    house.look()
    spoil = f"UPDATE jobs SET record = x'00' WHERE uid = {house.trial(1).job}"
    house.store.here(lambda connection: connection.execute(spoil))
    outcome = house.look()
    assert isinstance(outcome.job, TuningJob)
    assert [trial.number for trial in outcome.job.running] == [2]
    assert house.trial(1).state is TrialState.INFEASIBLE


# --- summaries ---


def running_trial() -> House:
    house = House(tuning(trials=1, parallel=1))
    house.look()
    house.is_seen(1, JobState.RUNNING)
    return house


def test_a_trial_is_measured_by_its_summaries() -> None:
    house = running_trial()
    house.writes({1: 0.25, 2: 0.5})
    house.look()
    assert house.measured(1) == (at(1, 0.25, 10), at(2, 0.5, 10))
    house.writes({1: 0.25, 2: 0.75, 3: 0.5, 4: math.nan})
    house.is_seen(1, JobState.SUCCEEDED)
    house.look()
    assert house.measured(1) == (at(1, 0.25, 10), at(2, 0.75, 10), at(3, 0.5, 10))
    assert house.trial(1).final == at(3, 0.5, 10)


def test_what_is_reported_counts_before_summaries() -> None:
    house = running_trial()
    house.printed = [(house.now, f"{METRIC}: 0.1")]
    house.writes({1: 0.25, 100: 0.5})
    house.look()
    house.reports(1, at(2, 0.75, 20))
    house.is_seen(1, JobState.SUCCEEDED)
    house.look()
    assert house.trial(1).final == at(2, 0.75, 20)


def test_a_trial_that_reports_nothing_is_measured_by_what_it_has_printed() -> None:
    house = running_trial()
    house.printed = [(house.now, "seed 7"), (house.now + SECOND, f"{METRIC}: 0.5 {METRIC}=0.25")]
    house.look()
    assert house.measured(1) == (), "its end is awaited, since it may report until then"
    house.is_seen(1, JobState.SUCCEEDED)
    house.look()
    assert house.measured(1) == (at(1, 0.5, 1), at(2, 0.25, 1))


def test_a_restarted_service_reads_the_same_and_stores_it_once() -> None:
    house = running_trial()
    house.writes({1: 0.25})
    house.look()
    house.restart()
    assert house.look().commit is None
    assert house.measured(1) == (at(1, 0.25, 10),)


# --- early stopping ---


def test_trials_that_end_while_a_suggestion_is_worked_out_are_followed_too() -> None:
    """spec/tuning#trials, parallel trials: who asked for one and wants two by then asks again at once."""
    house = House(tuning(trials=6, parallel=2))
    house.look()
    for number in (1, 2):
        house.is_seen(number, JobState.RUNNING)
        house.reports(number, at(1, 0.5, 10))
    house.is_seen(1, JobState.SUCCEEDED)
    asyncio.run(_both_end(house))
    outcome = house.look()
    assert isinstance(outcome.job, TuningJob)
    assert [trial.number for trial in outcome.job.running] == [3, 4]


async def _both_end(house: House) -> None:
    """The second trial ends after the look that asked for the first one's successor."""
    await house.look_once()
    await house.move(2, JobState.SUCCEEDED)
    await asyncio.sleep(0)
    await house.look_once()
    assert house.woken
