"""Reconciles training pipelines: shows the machine what the backing job did, and finds the model that it
left."""

import asyncio
from collections.abc import Sequence

from trainshed.controller.parents import Next, ParentStores, consumed, intents
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.events import CancelCause, Event, TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid, ModelName
from trainshed.core.pipelines import machine
from trainshed.core.pipelines.records import ModelVersion, Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.port import Commit, LiveJob


class PipelineReconciler:
    """`controller.parents.Reconciler` of training pipelines."""

    def __init__(self, stores: ParentStores) -> None:
        self._stores = stores

    async def reconcile(self, live: LiveJob[Work], events: Sequence[Event]) -> Next:
        pipeline = live.job
        assert isinstance(pipeline, Pipeline)
        told: list[TimelineEntry] = []
        for cancel_request in intents(live, events):
            pipeline, more = machine.cancelled(pipeline, cancel_request)
            told.extend(more)
        now = self._stores.now()
        backing = await self._stores.work(pipeline.job)
        assert not isinstance(backing, Pipeline)
        pipeline, more = machine.observed(pipeline, backing, now)
        told.extend(more)
        model = None
        if backing is not None and backing.state is JobState.SUCCEEDED:
            pipeline, more, model = await self._succeeded(pipeline, backing, now)
            told.extend(more)
        commit = None
        if pipeline != live.job or live.intents:
            commit = Commit(pipeline, live.generation, tuple(told), consumed(live), model=model)
        cancels = pipeline.cancelled and not pipeline.state.is_final
        cancel = ((pipeline.job, CancelCause.PARENT),) if cancels else ()
        return Next(pipeline, commit, cancel)

    async def _succeeded(
        self, pipeline: Pipeline, backing: Job | TuningJob, now: int
    ) -> tuple[Pipeline, machine.Told, ModelVersion | None]:
        best, best_job = 0, JobUid(0)
        if isinstance(backing, TuningJob):
            best = backing.best
            best_job = (await self._stores.studies.trial(backing.study, best)).trial.job
        draft = pipeline.spec.model
        if draft is None:
            return *machine.succeeded(pipeline, None, best_job, now), None
        uri = machine.artifacts(pipeline, best)
        if await asyncio.to_thread(self._stores.buckets.last_written, uri) == 0:
            return *machine.model_missing(pipeline, uri, now), None
        name = ModelName(pipeline.name.project_id, pipeline.name.location, draft.model_id)
        try:
            versions = await self._stores.models.versions(name)
        except NotFound:
            versions = ()
        if draft.is_new_version and not versions:
            return *machine.parent_model_missing(pipeline, name, now), None
        if versions and not draft.is_new_version:
            return *machine.model_taken(pipeline, name, now), None
        version = machine.model_version(pipeline, uri, versions, now)
        return *machine.succeeded(pipeline, version, best_job, now), version
