"""Tells in one line what a job does at the moment: what it waits for, what it printed last, how far it is."""

from typing import Final, assert_never

from trainshed.api.calls.services import Services
from trainshed.api.trainshed_v1.describing import seen, waits_of
from trainshed.api.trainshed_v1.progress import NOT_KNOWN, seconds
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.pipelines.records import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.wire.trainshed_v1 import jobs as records

_LONGEST: Final = 300


async def glance(services: Services, work: Work, etag: str) -> records.Glance:
    """Return the glance of a work. Reads nothing for an ended one."""
    if work.state.is_final:
        return _of_trials(work, "") if isinstance(work, TuningJob) else records.Glance()
    waits = await waits_of(services, await seen(services, work, etag))
    wait = waits[0] if waits else ""
    match work:
        case Job():
            return await _of_lines(services, work, wait)
        case TuningJob():
            return _of_trials(work, wait)
        case Pipeline():
            return records.Glance(waits=wait)
        case _:
            assert_never(work)


async def _of_lines(services: Services, job: Job, waits: str) -> records.Glance:
    if job.state is not JobState.RUNNING:
        return records.Glance(waits=waits)
    known = await services.progress.look(services.logs, job, services.now())
    estimate = known.estimate or NOT_KNOWN
    return records.Glance(
        waits=waits,
        last_line=known.last_line[:_LONGEST],
        done=estimate.done,
        progress=estimate.text,
        remaining_seconds=seconds(estimate.remaining),
        margin_seconds=seconds(estimate.margin),
    )


def _of_trials(work: TuningJob, waits: str) -> records.Glance:
    done, total = work.succeeded + work.infeasible, work.spec.max_trials
    return records.Glance(
        waits=waits, done=done / total if total else None, progress=f"{done} of {total} trials"
    )
