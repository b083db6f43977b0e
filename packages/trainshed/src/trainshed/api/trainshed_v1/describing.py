"""Describes the current state of a job, tuning job or pipeline, once or at each change."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final, assert_never

from msgspec import Struct, structs
from msgspec.structs import replace

from trainshed.access.principals import Principal
from trainshed.api import ml_v1 as ml
from trainshed.api.aiplatform_v1 import views as vertex
from trainshed.api.calls.services import Services
from trainshed.api.calls.streams import Pace
from trainshed.api.resources.jobs import find_work, links_of, pages_of, queue_position, with_link
from trainshed.api.trainshed_v1 import views
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.streams import SIGN_OF_LIFE, line
from trainshed.api.trainshed_v1.views import pipeline_view, trial_view, tuning_view
from trainshed.core.capacity import Waiting, WaitReason
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, JobUid
from trainshed.core.pipelines import Pipeline
from trainshed.core.study.records import Trial
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.wire import json as wire_json
from trainshed.wire.trainshed_v1 import jobs as records

_STARTING: Final = frozenset({JobState.QUEUED, JobState.PREPARING})


class Seen(Struct, frozen=True):
    """A work, with what its record does not say."""

    work: Work
    #: Why it waits for capacity, or the first trial of a search does; None if it does not.
    waiting: Waiting | None = None
    #: The jobs of running trials, or a pipeline's job, as they were seen with it.
    below: tuple["Seen", ...] = ()

    @property
    def uids(self) -> frozenset[JobUid]:
        """The jobs whose notices may mean a change."""
        return frozenset({self.work.uid}).union(*(seen.uids for seen in self.below))


async def look(services: Services, uid: JobUid) -> Seen:
    """Look at a work. Raises NotFound."""
    work, _ = await services.reader.job_by_uid(uid)
    return await seen(services, work)


async def seen(services: Services, work: Work) -> Seen:
    """Look at a work that was read a moment ago."""
    work = with_link(services, work)
    match work:
        case Job():
            waiting = None if work.state.is_final else services.capacity.why(work.uid)
            return Seen(work, waiting)
        case TuningJob():
            below = [trial.job for trial in work.running]
        case Pipeline():
            below = [work.job]
        case _:
            assert_never(work)
    looks: list[Seen] = []
    for uid in below:
        try:
            looks.append(await look(services, uid))
        except NotFound:
            continue
    waiting = None
    if isinstance(work, Pipeline) or not work.started:
        waiting = next((child.waiting for child in looks if child.waiting), None)
    return Seen(work, waiting, tuple(looks))


async def described(
    services: Services, principal: Principal, sight: Seen
) -> records.JobDescription:
    """Return the description, for `principal`, without the public resource (`resource_of`)."""
    work = sight.work
    match work:
        case Job():
            sight = replace(sight, waiting=await _with_cause(services, work, sight.waiting))
            links = links_of(services, principal, work)
            view = await _common(services, sight)
            pages = pages_of(services, principal, work)
            kept = services.shells.autopsies(work.uid)
            return views.with_replicas(view, work, kept, links, pages)
        case TuningJob():
            trials = await _trials(services, work)
            view = await _common(services, sight)
            return structs.replace(
                view,
                substitutions=work.spec.trial.substitutions,
                tuning=tuning_view(work),
                trials=tuple(trials),
            )
        case Pipeline():
            child = sight.below[0] if sight.below else None
            name, state = (str(child.work.name), child.work.state) if child else ("", None)
            return structs.replace(
                await _common(services, sight),
                pipeline=pipeline_view(work, name, state),
                child=await described(services, principal, child) if child else None,
            )
        case _:
            assert_never(work)


async def _with_cause(services: Services, job: Job, waiting: Waiting | None) -> Waiting | None:
    """Add to a job that waits out its back-off why it has to be tried again."""
    if waiting is None or waiting.reason is not WaitReason.BACK_OFF or waiting.hint:
        return waiting
    timeline = await services.reader.timeline(job.uid)
    verdicts = [entry.message for entry in timeline if entry.kind == "verdict"]
    return replace(waiting, hint=verdicts[-1]) if verdicts else waiting


async def _common(services: Services, sight: Seen) -> records.JobDescription:
    work = sight.work
    position = queue_position(services.capacity, work)
    waits = await waits_of(services, sight)
    return views.description(work, sight.waiting, position, waits)


async def waits_of(services: Services, sight: Seen) -> list[str]:
    """Return what a work waits for; a tuning job, what the first of its trials that does not run yet waits
    for."""
    work = sight.work
    match work:
        case Job():
            if work.state not in _STARTING or sight.waiting is not None:
                return views.job_waits(work, (), sight.waiting)
            timeline = await services.reader.timeline(work.uid)
            return views.job_waits(work, timeline, None)
        case TuningJob():
            for child in sight.below:
                if child.work.state in _STARTING and (texts := await waits_of(services, child)):
                    parent = child.work.parent if isinstance(child.work, Job) else None
                    return [f"Trial {parent.trial}: {texts[0]}", *texts[1:]] if parent else texts
            if not sight.below and not work.state.is_final and work.outcome is None:
                return ["Waiting for the next trial suggestion."]
            return []
        case Pipeline():
            if work.state.is_final or not sight.below:
                return []
            return await waits_of(services, sight.below[0])
        case _:
            assert_never(work)


async def _trials(services: Services, job: TuningJob) -> list[records.Trial]:
    """Return the views of the trials. Measurements are read after the trials, so that a finished trial is
    shown with all of its own."""
    trials = await services.studies.history((job.study,))
    measured = await services.studies.measurements(job.study)
    states = {child.uid: child.state for child in await services.reader.children(job.uid)}
    return [
        trial_view(job, trial, measured.get(trial.number, ()), states.get(trial.job))
        for trial in trials
    ]


async def resource_of(services: Services, work: Work, etag: str) -> dict[str, Any]:
    """Return what the work's own API shows of it."""
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
            measured = await services.studies.measurements(work.study)
            # Takes a second for a thousand trials; other requests go on meanwhile.
            return await asyncio.to_thread(
                lambda: wire_json.to_public(vertex.tuning_job(work, trials, measured))
            )
        case Pipeline():
            return wire_json.to_public(vertex.training_pipeline(work))
        case _:
            assert_never(work)


async def watch(call: JsonCall) -> AsyncGenerator[bytes]:
    """`GET /trainshed/v1/jobs/{job}/watch`: stream a `JobDescription`, without the public resource, now and
    after each change, until the job is over; and a blank line whenever something else has happened that its
    timeline or its log may show."""
    before = call.services.notices.latest
    work, _ = await find_work(call.services.reader, call.target)
    return _descriptions(call, work, before)


async def _descriptions(call: JsonCall, work: Work, before: int) -> AsyncGenerator[bytes]:
    """Yield the descriptions. `work`: as it was read when `before` was the latest notice of any job."""
    services, notices, uid = call.services, call.services.notices, work.uid
    pace, sent, counts = Pace(notices), b"", {uid: before}
    await pace.start_read()
    sight = await seen(services, work)
    while True:
        text = line(await described(services, call.principal, sight))
        pace.finish_read()
        pace.message_sent()
        yield text if text != sent else SIGN_OF_LIFE
        sent = text
        if sight.work.state.is_final:
            return
        # A job that was not listened for may have had notices already: look again.
        if sight.uids <= counts.keys():
            await pace.wait_for_news({job_uid: counts[job_uid] for job_uid in sight.uids})
        await pace.start_read()
        counts = {job_uid: notices.count(job_uid) for job_uid in sight.uids}
        try:
            sight = await look(services, uid)
        except NotFound:
            return
