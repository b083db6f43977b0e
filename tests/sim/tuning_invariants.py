"""Invariants of tuning jobs and pipelines at every commit of a simulated service (spec/tuning,
docs/adr/0017).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.inline_store import run_inline
from tests.sim.engine.streams import Notebooks
from tests.sim.tuning_jobs import METRIC
from tests.sim.tuning_play import disagreements
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid, ModelName
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import ModelVersion, Pipeline
from trainshed.core.study.records import Trial
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.port import Commit
from trainshed.store.sqlite.database import Store

Family = TuningJob | Pipeline | PipelineJob


@dataclass(slots=True)
class Families:
    """The stored tuning jobs and pipelines of a simulation, and the violations found.

    `works`: tuning jobs and pipelines as last committed. `trials`: rows at that commit. `jobs`: jobs of
    works, as last committed. `models`: registered versions, in order.
    """

    store: Store | None = None
    notebooks: Notebooks | None = None
    works: dict[JobUid, Family] = field(default_factory=dict[JobUid, Family])
    trials: dict[JobUid, tuple[Trial, ...]] = field(default_factory=dict[JobUid, tuple[Trial, ...]])
    jobs: dict[JobUid, Job] = field(default_factory=dict[JobUid, Job])
    models: list[ModelVersion] = field(default_factory=list[ModelVersion])
    wrong: list[str] = field(default_factory=list[str])

    def record_creation(self, work: Work) -> None:
        if not isinstance(work, Job):
            self.works[work.uid] = work
        elif work.parent is not None:
            self.jobs[work.uid] = work

    def check_commit(self, commit: Commit) -> None:
        """Check a stored step against its rows."""
        work = commit.job
        if isinstance(work, Job):
            if work.uid in self.jobs:
                self.jobs[work.uid] = work
            return
        before = self.works[work.uid]
        if before.state.is_final:
            self._wrong(work, f"it was {before.state} and is {work.state}")
        self.works[work.uid] = work
        if commit.model is not None:
            self.models.append(commit.model)
        match work:
            case TuningJob():
                if commit.consumed_intents and work.outcome is None:
                    self._wrong(work, "a cancel was taken in, and nothing came of it")
                for fault in self._of_tuning(work, before):
                    self._wrong(work, fault)
            case Pipeline():
                if commit.consumed_intents and work.outcome is None and not work.state.is_final:
                    self._wrong(work, "a cancel was taken in, and nothing came of it")
                for fault in self._of_pipeline(work, commit):
                    self._wrong(work, fault)
            case PipelineJob():
                pass  # Pipeline jobs have tests of their own.

    def trial_of(self, uid: JobUid) -> Parent | None:
        """Return the trial that a job evaluates, or None."""
        job = self.jobs.get(uid)
        return job.parent if job and job.parent and job.parent.trial else None

    def trial_job(self, tuning: JobUid, number: int) -> Job | None:
        """Return the job of a trial, if it has started."""
        wanted = (tuning, number)
        trial = (j for j in self.jobs.values() if j.parent and (j.parent.uid, j.parent.trial) == wanted)
        return next(trial, None)

    def alive(self) -> list[JobUid]:
        return [uid for uid, work in self.works.items() if not work.state.is_final]

    async def of_cancel(self, work: Family, at: int) -> list[str]:
        """spec/lifecycle#cancel: a cancelled work is CANCELLED, unless it ended before its jobs were
        cancelled.
        """
        if not isinstance(work, TuningJob) or work.state in (JobState.CANCELLED, JobState.FAILED):
            return []
        if work.exhausted or work.started_trials == work.spec.max_trials:
            return []  # No points were left.
        return [f"{work.name} was cancelled at {at} and is {work.state}"]

    async def broken(self) -> list[str]:
        """Return the invariants of tuning jobs and pipelines that are violated at the end."""
        assert self.store is not None and self.notebooks is not None
        faults: list[str] = []
        for work in self.works.values():
            children = [j for j in self.jobs.values() if j.parent and j.parent.uid == work.uid]
            faults += [f"{j.uid} of {work.name} is {j.state}" for j in children if not j.state.is_final]
            if isinstance(work, TuningJob):
                faults += await self._of_measurements(work)
        return faults

    async def _of_measurements(self, work: TuningJob) -> list[str]:
        """Return measurements of running trials that were lost (spec/invariants#durability)."""
        assert self.store is not None and self.notebooks is not None
        stored = await self.store.studies.measurements(work.study)
        faults: list[str] = []
        for trial in await self.store.studies.history((work.study,)):
            kept = {(m.step, m.value(METRIC)) for m in stored.get(trial.number, ())}
            made = {
                (m.step, m.value(METRIC))
                for m in self.notebooks.measurements(trial.job)
                if m.value(METRIC) is not None
            }
            if made - kept:
                faults.append(f"trial {trial.number} of {work.uid} measured {made}; stored {kept}")
        return faults

    # --- at each commit ---

    def _of_tuning(self, work: TuningJob, before: Family) -> Iterator[str]:
        assert self.store is not None and isinstance(before, TuningJob)
        rows = run_inline(self.store.studies.history((work.study,)))
        yield from disagreements(work, rows)
        for old, new in zip(self.trials.get(work.uid, ()), rows, strict=False):
            if old.state.is_over and old != new:
                yield f"trial {old.number} was over and has changed: {old}, {new}"
            if (old.parameters, old.job, old.created) != (new.parameters, new.job, new.created):
                yield f"trial {old.number} is another one: {old}, {new}"
        self.trials[work.uid] = rows
        if before.outcome is not None and work.next_trial != before.next_trial:
            yield f"trial {before.next_trial} began though the end was decided"
        children = run_inline(self.store.reader.children(work.uid))
        jobs = {child.parent.trial: child for child in children if isinstance(child, Job) and child.parent}
        if len(jobs) != len(children) or {n: job.uid for n, job in jobs.items()} != {
            trial.number: trial.job for trial in rows
        }:
            yield f"its jobs are {[child.uid for child in children]}, its trials' {rows}"
        alive = [child for child in children if not child.state.is_final]
        if len(alive) > work.spec.parallel_trials:
            yield f"{len(alive)} jobs of trials live"
        if work.state.is_final and alive:
            yield f"it is {work.state} while {[child.uid for child in alive]} live"

    def _of_pipeline(self, work: Pipeline, commit: Commit) -> Iterator[str]:
        assert self.store is not None
        backing, _ = run_inline(self.store.reader.job_by_uid(work.job))
        if work.state.is_final and not backing.state.is_final:
            yield f"it is {work.state} while {backing.name} is {backing.state}"
        if bool(work.model) != (commit.model is not None):
            yield f"it left {work.model!r}; registered was {commit.model}"
        if work.model:
            versions = run_inline(self.store.models.versions(_model(work)))
            own = [version for version in versions if version.pipeline == str(work.name)]
            if [f"{model.name}@{model.version}" for model in own] != [work.model]:
                yield f"it left {work.model}; there are {own}"
            if sum("default" in version.aliases for version in versions) != 1:
                yield f"of the versions not exactly one is the default: {versions}"
        if isinstance(backing, TuningJob) and work.state is JobState.SUCCEEDED:
            best = run_inline(self.store.studies.trial(backing.study, backing.best))
            if work.best_job != best.job:
                yield f"its best job is {work.best_job}, that of the best trial {best.job}"

    def _wrong(self, work: Family, what: str) -> None:
        self.wrong.append(f"{type(work).__name__} {work.uid}: {what}")


def _model(work: Pipeline) -> ModelName:
    draft = work.spec.model
    assert draft is not None
    return ModelName(work.name.project_id, work.name.location, draft.model_id)
