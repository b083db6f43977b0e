"""Tuning jobs and pipelines through the real controller, store and scheduler over virtual time.

The service is killed at each of their commits (spec/tuning, spec/invariants#durability, docs/adr/0017).
`tuning_invariants` checks the invariants at every commit.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from tests.inline_store import InlineStore
from tests.sim.engine.programs import Life, Reports, Script
from tests.sim.parents import CountingAdvisor, LearningAdvisor
from tests.sim.scenario import MINUTE, Cancel, Character, Scenario
from tests.sim.simulation import Simulation, simulate
from tests.sim.tuning_jobs import METRIC, OUTPUT, trial_spec, tuning
from tests.sim.tuning_scenarios import one_family_scenario, stopping, with_custom_job, with_tuning_job
from tests.soaks import SOAKS
from tests.unit.jobs import CREATED, SECOND
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.pipelines import Pipeline
from trainshed.core.study.records import Parameters, Trial, TrialState
from trainshed.core.study.spec import Algorithm, StudySpec
from trainshed.core.tuning.records import TuningJob
from trainshed.store.port import Commit
from trainshed.studies.port import AdvisorFailed, Proposals, TrialData

PARTS = 12 if SOAKS else 5
"""Starts within an incarnation at which it is cancelled."""


def simulate_crashes(world: Scenario, every: int = 1) -> Iterator[Simulation]:
    """Repeat a history for each of its commits, with a service that is killed just before or just after it.
    `./dev test-all` does both for each commit.
    """
    commits = simulate(world).tally["commits"]
    assert commits > 5
    for turn, number in enumerate(range(1, commits + 1, every)):
        for stored in (False, True) if SOAKS else (turn % 2 == 1,):
            made = simulate(world, (number, stored))
            assert made.tally["crashes"] == 1
            yield made


def the_tuning_job(made: Simulation) -> TuningJob:
    return next(w for w in made.books.families.works.values() if isinstance(w, TuningJob))


def the_pipeline(made: Simulation) -> Pipeline:
    return next(w for w in made.books.families.works.values() if isinstance(w, Pipeline))


def trials(made: Simulation) -> tuple[Trial, ...]:
    return made.books.families.trials[the_tuning_job(made).uid]


def points(made: Simulation) -> list[Parameters]:
    return [trial.parameters for trial in trials(made)]


class Counting(Simulation):
    """A simulation whose suggestions only depend on the number of the trial, not on the order of results."""

    def _advisor(self) -> CountingAdvisor:
        return CountingAdvisor()


# --- tuning jobs ---


def test_tuning_job_survives_a_kill_at_every_commit() -> None:
    """spec/invariants#durability: no trial is lost or duplicated, and the points are the same."""
    world = one_family_scenario(tuning(trials=6, parallel=3))
    wanted = points(Counting(world).run())
    assert wanted == [(("x", n / 1000),) for n in range(1, 7)]
    commits = simulate(world).tally["commits"]
    # Without soaks: 1, 4, 7 ..., alternating before and after.
    for number in range(1, commits + 1, 1 if SOAKS else 3):
        made = simulate(world, (number, number % 2 == 0), simulation_class=Counting)
        assert points(made) == wanted
        assert the_tuning_job(made).succeeded == 6


def test_suggested_trial_parameters_are_the_same_with_and_without_crashes() -> None:
    """spec/tuning#reproducible: reproducible from stored data. Trials run one after the other, and each point
    depends on all results before it.
    """
    world = one_family_scenario(tuning(trials=4, parallel=1))
    plain = simulate(world)
    assert len(set(points(plain))) == 4
    for made in simulate_crashes(world, every=2):
        assert points(made) == points(plain)
        assert [trial.final for trial in trials(made)] == [trial.final for trial in trials(plain)]


def test_failed_and_stopped_trials_survive_every_crash() -> None:
    """facts/tuning#failing-trials, spec/tuning#early-stopping: for any crash time, the records agree and the
    job ends.
    """
    world = dataclasses.replace(
        one_family_scenario(
            stopping(tuning(trials=6, parallel=3, failed=6)),
            character=Character(10 * MINUTE, exit=0.3, mute=0.3, measures=4),
        ),
        bar=0.5,
        seed=4,
    )
    plain = trials(simulate(world))
    assert any(trial.stopped_early for trial in plain)
    assert any(trial.state is TrialState.INFEASIBLE for trial in plain)
    for made in simulate_crashes(world, every=4):
        assert the_tuning_job(made).state.is_final


def test_primary_that_ends_before_its_workers_start_keeps_its_measurements() -> None:
    """spec/lifecycle#success: the primary's end is the job's. None of its measurements is lost."""

    class Swift(Simulation):
        def _script(self, life: Life) -> Script:
            report = Reports(1, METRIC, 0.5, 1)
            return replace(super()._script(life), runs=2, reports=(report,))

    job = tuning(trials=6, parallel=3)
    world = one_family_scenario(replace(job, spec=replace(job.spec, trial=trial_spec(workers=2))))
    assert the_tuning_job(simulate(world, simulation_class=Swift)).succeeded == 6


# --- advisors that fail ---


class Stuck(Simulation):
    """A simulation whose suggestion algorithm always fails. `timeline` contains all entries to be stored."""

    def __init__(self, scenario: Scenario) -> None:
        self.timeline: list[TimelineEntry] = []
        super().__init__(scenario)

    def _advisor(self) -> CountingAdvisor:
        return _Stuck()

    def _now_committing(self, commit: Commit | None) -> None:
        super()._now_committing(commit)
        self.timeline += commit.timeline if commit else ()


class _Stuck(LearningAdvisor):
    failure: Exception = AdvisorFailed("LinAlgError: it is singular")

    async def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        if spec.algorithm is Algorithm.DEFAULT:
            raise self.failure
        return await super().suggest(spec, trials, count, seed)


@pytest.mark.parametrize(
    "failure",
    [AdvisorFailed("LinAlgError: it is singular"), RuntimeError("the pipe of it is singular")],
    ids=["reported", "unexpected"],
)
def test_failing_algorithm_is_replaced_by_random_search(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job waits forever after any failure, and its timeline contains the failure (docs/adr/0018, 0042)."""
    monkeypatch.setattr(_Stuck, "failure", failure)
    made = Stuck(one_family_scenario(tuning(trials=4, parallel=2)))
    made.run()
    assert not made.wrong, made.wrong[0]
    assert (the_tuning_job(made).state, the_tuning_job(made).succeeded) == (JobState.SUCCEEDED, 4)
    messages = [entry.message for entry in made.timeline if entry.kind == "warning"]
    assert messages
    assert "drawn at random" in messages[0]
    assert "it is singular" in messages[0]


# --- cancels ---


@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
def test_tuning_job_can_be_cancelled_at_any_time(stored: bool) -> None:
    """spec/lifecycle#cancel: CANCELLED, no processes remain, no trial starts. The service is killed at the
    next commit.
    """
    world = one_family_scenario(tuning(trials=4, parallel=2), character=Character(10 * MINUTE, measures=2))
    whole = simulate(world)
    lasts = the_tuning_job(whole).ended - CREATED
    for part in range(PARTS):
        at = CREATED + lasts * part // PARTS
        cancelled = dataclasses.replace(world, requests=(*world.requests, Cancel(at, JobUid(7000))))
        made = simulate(cancelled)
        assert the_tuning_job(made).state is JobState.CANCELLED
        assert the_tuning_job(made).ended < at + SECOND, "the trials were not notified"
        first = _commit_of_cancel(made)
        for number in (first, first + 1, first + 2):
            again = simulate(dataclasses.replace(cancelled, downs=(SECOND,)), (number, stored))
            assert the_tuning_job(again).state is JobState.CANCELLED


def _commit_of_cancel(made: Simulation) -> int:
    """Return the number of the commit that published the cancel."""
    return next(n for n, what in enumerate(made.written, 1) if what == "request_cancel")


# --- pipelines ---


def test_pipeline_registers_one_model_version_despite_kills() -> None:
    """facts/resources#pipelines; docs/adr/0017: registered in the commit of its end."""
    world = one_family_scenario(*with_custom_job())
    for made in simulate_crashes(world):
        pipeline = the_pipeline(made)
        assert pipeline.state is JobState.SUCCEEDED
        assert str(pipeline.model).endswith("/models/m@1")


def test_pipeline_with_a_tuning_job_registers_the_best_trials_model() -> None:
    """facts/resources#pipelines, bestTrialBackingCustomJob."""
    world = one_family_scenario(*with_tuning_job(trials=3))
    for made in (simulate(world), *simulate_crashes(world, every=2)):
        pipeline, job = the_pipeline(made), the_tuning_job(made)
        assert pipeline.state is JobState.SUCCEEDED
        best = trials(made)[job.best - 1]
        assert pipeline.best_job == best.job
        (version,) = made.books.families.models
        assert version.artifact_uri == f"{OUTPUT}/{job.best}/model"


def test_only_the_first_of_two_pipelines_that_register_the_same_model_succeeds() -> None:
    """facts/resources#pipelines: without parentModel no model becomes a version of another owner's model."""
    families = [with_custom_job(number) for number in (8000, 8100)]
    world = one_family_scenario(*(work for family in families for work in family))
    for made in (simulate(world), *simulate_crashes(world, every=4)):
        ended = [w for w in made.books.families.works.values() if isinstance(w, Pipeline)]
        done = [w for w in ended if w.state is JobState.SUCCEEDED]
        assert [str(w.model).rpartition("@")[2] for w in done] == ["1"]
        (failed,) = (w for w in ended if w not in done)
        assert failed.error is not None
        assert "created by another request" in failed.error.message
        assert len(made.books.families.models) == 1


def test_pipeline_without_a_model_fails() -> None:
    """facts/resources#pipelines: the existence of the artifacts is checked."""
    made = simulate(
        dataclasses.replace(one_family_scenario(*with_custom_job()), no_models=(f"{OUTPUT}/model",))
    )
    pipeline = the_pipeline(made)
    assert (pipeline.state, pipeline.model) == (JobState.FAILED, None)
    assert made.books.families.models == []


@pytest.mark.parametrize("which", ["pipeline", "job"])
def test_pipeline_or_its_job_can_be_cancelled_at_any_time(which: str) -> None:
    """spec/lifecycle#cancel: the pipeline is CANCELLED, whether it or its job is cancelled."""
    for kind in (with_custom_job, with_tuning_job):
        pipeline, backing = kind()
        # No program exits in the second without a service.
        own = Character(MINUTE, measures=1)
        world = dataclasses.replace(one_family_scenario(pipeline, backing, character=own), downs=(SECOND,))
        uid = pipeline.uid if which == "pipeline" else backing.uid
        lasts = the_pipeline(simulate(world)).ended - CREATED
        for part in range(PARTS):
            at = CREATED + lasts * part // PARTS
            cancelled = dataclasses.replace(world, requests=(*world.requests, Cancel(at, uid)))
            made = simulate(cancelled)
            assert the_pipeline(made).state is JobState.CANCELLED
            assert the_pipeline(made).ended < at + SECOND, "the backing job was not notified"
            first = _commit_of_cancel(made)
            for number in range(first, first + 4):
                again = simulate(cancelled, (number, number % 2 == 0))
                assert the_pipeline(again).state is JobState.CANCELLED


# --- the checks can fail ---


@pytest.mark.parametrize(
    ("lost", "after", "noticed"),
    [("trials WHERE number = 1", 6, "trials ["), ("measurements", -1, "measured")],
    ids=["lost-trial", "lost-measurements"],
)
def test_simulation_checks_detect_lost_store_data(lost: str, after: int, noticed: str) -> None:
    """This test proves that the checks of the simulation can fail."""

    class Forgetful(Simulation):
        def _before_commit(self, what: str) -> None:
            super()._before_commit(what)
            if self.tally["commits"] > after:
                assert isinstance(self.store, InlineStore)
                self.store.read_now(lambda c: c.execute(f"DELETE FROM {lost}"))

    assert any(noticed in wrong for wrong in Forgetful(one_family_scenario(tuning())).run().wrong)
