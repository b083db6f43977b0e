"""Describes the current state of a job, tuning job or pipeline: once, or after each change."""

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import islice
from typing import Any, Final, assert_never

from msgspec import Struct, structs
from msgspec.structs import replace

from trainshed.access.principals import Principal
from trainshed.api import ml_v1 as ml
from trainshed.api.aiplatform_v1 import views as vertex
from trainshed.api.calls.services import Services
from trainshed.api.calls.streams import Pace
from trainshed.api.resources.jobs import find_work, links_of, page_addresses, queue_position, with_link
from trainshed.api.trainshed_v1 import views
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.streams import KEEP_ALIVE_LINE, line
from trainshed.api.trainshed_v1.views import pipeline_view, trial_view, tuning_view
from trainshed.core.capacity import Waiting, WaitReason
from trainshed.core.dependencies import explain_dependencies
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, JobUid
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.study.records import Trial
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.wire import json as wire_json
from trainshed.wire.trainshed_v1 import jobs as records

_STARTING: Final = frozenset({JobState.QUEUED, JobState.PREPARING})
_MAX_CHILDREN: Final = 20
"""Maximum number of unfinished jobs of a pipeline job whose states are read for its description."""


class WorkState(Struct, frozen=True):
    """A job, tuning job or pipeline, and the parts of its current state that its stored record does not
    contain."""

    work: Work
    #: The reason why the job waits for capacity; None if it does not wait. For a pipeline, or a
    #: tuning job that has not started: the reason of the first of its jobs that waits.
    waiting: Waiting | None = None
    #: The states of the jobs of running trials, or of the job of a pipeline. They are read together with this
    #: state.
    children: tuple["WorkState", ...] = ()

    @property
    def uids(self) -> frozenset[JobUid]:
        """UIDs of the jobs whose notices may announce a change of this state."""
        return frozenset({self.work.uid}).union(*(state_of.uids for state_of in self.children))


async def read_state(services: Services, uid: JobUid) -> WorkState:
    """Read the current state of a job, tuning job or pipeline. Raises NotFound."""
    work, _ = await services.reader.job_by_uid(uid)
    return await state_of(services, work)


async def state_of(services: Services, work: Work) -> WorkState:
    """Return the current state of a job, tuning job or pipeline whose record was just read."""
    work = with_link(services, work)
    if work.is_held:
        return WorkState(work, explain_dependencies(work.dependencies))
    match work:
        case Job():
            waiting = None if work.state.is_final else services.capacity.explain_wait(work.uid)
            return WorkState(work, waiting)
        case TuningJob():
            children = [trial.job for trial in work.running]
        case Pipeline():
            children = [work.job]
        case PipelineJob():
            states = await services.reader.child_states(work.uid)
            live = (uid for uid, state in states.items() if not state.is_final)
            children = list(islice(live, _MAX_CHILDREN))
        case _:
            assert_never(work)
    child_states: list[WorkState] = []
    for uid in children:
        try:
            child_states.append(await read_state(services, uid))
        except NotFound:
            continue
    waiting = None
    if isinstance(work, Pipeline | PipelineJob) or not work.started:
        waiting = next((child.waiting for child in child_states if child.waiting), None)
    return WorkState(work, waiting, tuple(child_states))


async def describe_work(
    services: Services, principal: Principal, work_state: WorkState
) -> records.JobDescription:
    """Return the description of a job, tuning job or pipeline for `principal`. It does not contain the public
    resource (`resource_of`)."""
    work = work_state.work
    match work:
        case Job():
            work_state = replace(
                work_state, waiting=await _with_retry_reason(services, work, work_state.waiting)
            )
            links = links_of(services, principal, work)
            view = await _common(services, work_state)
            pages = page_addresses(services, principal, work)
            autopsies = services.shells.autopsies(work.uid)
            return views.with_replicas(view, work, autopsies, links, pages)
        case TuningJob():
            trials = await _trials(services, work)
            view = await _common(services, work_state)
            return structs.replace(
                view,
                substitutions=work.spec.trial.substitutions,
                tuning=tuning_view(work),
                trials=tuple(trials),
            )
        case Pipeline():
            child = work_state.children[0] if work_state.children else None
            name, state = (str(child.work.name), child.work.state) if child else ("", None)
            return structs.replace(
                await _common(services, work_state),
                pipeline=pipeline_view(work, name, state),
                child=await describe_work(services, principal, child) if child else None,
            )
        case PipelineJob():
            return structs.replace(
                await _common(services, work_state), pipeline_job=views.pipeline_job_view(work)
            )
        case _:
            assert_never(work)


async def _with_retry_reason(services: Services, job: Job, waiting: Waiting | None) -> Waiting | None:
    """If a job waits before a retry, add the reason for the retry."""
    if waiting is None or waiting.reason is not WaitReason.BACK_OFF or waiting.hint:
        return waiting
    timeline = await services.reader.timeline(job.uid)
    verdicts = [entry.message for entry in timeline if entry.kind == "verdict"]
    return replace(waiting, hint=verdicts[-1]) if verdicts else waiting


async def _common(services: Services, work_state: WorkState) -> records.JobDescription:
    work = work_state.work
    position = queue_position(services.capacity, work)
    waits = await waiting_reasons(services, work_state)
    return views.description(work, work_state.waiting, position, waits)


async def waiting_reasons(services: Services, work_state: WorkState) -> list[str]:
    """Return the reasons why a job, tuning job or pipeline waits. For a tuning job, these are the reasons of
    its first trial that is not running."""
    work = work_state.work
    if work.is_held and work_state.waiting is not None:
        return [work_state.waiting.message]
    match work:
        case Job():
            if work.state not in _STARTING or work_state.waiting is not None:
                return views.waiting_texts(work, (), work_state.waiting)
            timeline = await services.reader.timeline(work.uid)
            return views.waiting_texts(work, timeline, None)
        case TuningJob() | PipelineJob():
            for child in work_state.children:
                if child.work.state in _STARTING and (texts := await waiting_reasons(services, child)):
                    parent = child.work.parent if isinstance(child.work, Job) else None
                    if parent is None or not parent.trial:
                        return [f"{child.work.display_name}: {texts[0]}", *texts[1:]]
                    return [f"Trial {parent.trial}: {texts[0]}", *texts[1:]]
            if isinstance(work, PipelineJob):
                return []
            if not work_state.children and not work.state.is_final and work.outcome is None:
                return ["Waiting for the next trial suggestion."]
            return []
        case Pipeline():
            if work.state.is_final or not work_state.children:
                return []
            return await waiting_reasons(services, work_state.children[0])
        case _:
            assert_never(work)


async def _trials(services: Services, job: TuningJob) -> list[records.Trial]:
    """Return the views of the trials. The measurements are read after the trials. Otherwise a finished trial
    could lack measurements."""
    trials = await services.studies.history((job.study,))
    measurements = await services.studies.measurements(job.study)
    states = {child.uid: child.state for child in await services.reader.children(job.uid)}
    return [
        trial_view(job, trial, measurements.get(trial.number, ()), states.get(trial.job)) for trial in trials
    ]


async def resource_of(services: Services, work: Work, etag: str) -> dict[str, Any]:
    """Return the public resource of a job, tuning job or pipeline in its own API."""
    trials: tuple[Trial, ...] = ()
    if isinstance(work, TuningJob):
        trials = await services.studies.history((work.study,))
    if work.name.api is Api.ML:
        children = await services.reader.children(work.uid) if trials else ()
        jobs = tuple(child for child in children if isinstance(child, Job))
        position = queue_position(services.capacity, work)
        return wire_json.to_public(ml.job_view(work, etag, position, ml.TrialRecords(trials, jobs)))
    match work:
        case Job():
            return wire_json.to_public(vertex.custom_job(work))
        case TuningJob():
            measurements = await services.studies.measurements(work.study)
            # Convert the trials in a thread, because the conversion of a thousand trials takes a second.
            return await asyncio.to_thread(
                lambda: wire_json.to_public(vertex.tuning_job(work, trials, measurements))
            )
        case Pipeline():
            return wire_json.to_public(vertex.training_pipeline(work))
        case PipelineJob():
            return json.loads(work.public_json) | {"name": str(work.name)}
        case _:
            assert_never(work)


async def watch(call: JsonCall) -> AsyncGenerator[bytes]:
    """`GET /trainshed/v1/jobs/{job}/watch`: stream a `JobDescription` without the public resource. The first
    is sent at once, others after each change until the job finishes. A blank line means that the job's
    timeline or log may have changed."""
    before = call.services.notices.latest
    work, _ = await find_work(call.services.reader, call.target)
    return _descriptions(call, work, before)


async def _descriptions(call: JsonCall, work: Work, before: int) -> AsyncGenerator[bytes]:
    """Yield the descriptions. `work`: the job, tuning job or pipeline as read after the notice with the
    number `before`, which was then the newest notice of all jobs."""
    services, notices, uid = call.services, call.services.notices, work.uid
    pace, sent, counts = Pace(notices), b"", {uid: before}
    await pace.start_read()
    work_state = await state_of(services, work)
    while True:
        text = line(await describe_work(services, call.principal, work_state))
        pace.finish_read()
        pace.message_sent()
        yield text if text != sent else KEEP_ALIVE_LINE
        sent = text
        if work_state.work.state.is_final:
            return
        # Wait only if the notices of all jobs were counted. For a new job without a count, notices may have
        # been missed, so the state is read again at once.
        if work_state.uids <= counts.keys():
            await pace.wait_for_news({job_uid: counts[job_uid] for job_uid in work_state.uids})
        await pace.start_read()
        counts = {job_uid: notices.count(job_uid) for job_uid in work_state.uids}
        try:
            work_state = await read_state(services, uid)
        except NotFound:
            return
