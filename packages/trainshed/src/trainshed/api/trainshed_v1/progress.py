"""Tells how far a job is, for how long it will still run, and in one line what it does at the moment."""

from typing import Final, assert_never

from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import find_work
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.describing import seen, waits_of
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.pipelines.records import Pipeline
from trainshed.core.progress import Estimate
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.wire.trainshed_v1 import jobs as records

NOT_KNOWN: Final = Estimate(None, "")
_LONGEST: Final = 300
"""Most characters of a last line."""


async def progress(call: JsonCall) -> records.Progress:
    """`GET /trainshed/v1/jobs/{job}/progress`: return how far a running job is. A tuning job's
    progress counts its trials."""
    work, _ = await find_work(call.services.reader, call.target)
    return await progress_of(call.services, work) or records.Progress()


async def progress_of(services: Services, work: Work) -> records.Progress | None:
    """Return the progress of a work; None if nothing is known."""
    if isinstance(work, TuningJob):
        done, total = work.succeeded + work.infeasible, work.spec.max_trials
        return records.Progress(
            done=done / total if total else None, text=f"{done} of {total} trials", source="trials"
        )
    if isinstance(work, Pipeline):
        return None
    if work.state is not JobState.RUNNING:
        return None
    known = await services.progress.look(services.logs, work)
    estimate = known.taker.estimate(services.now() / 1e9)
    if estimate is None:
        return None
    return records.Progress(
        done=estimate.done,
        text=estimate.text,
        remaining_seconds=seconds(estimate.remaining),
        source="output",
    )


def seconds(value: float | None) -> float | None:
    """Round to as many decimals as are shown."""
    return None if value is None else round(value, 1)


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
    known = await services.progress.look(services.logs, job)
    estimate = known.taker.estimate(services.now() / 1e9) or NOT_KNOWN
    return records.Glance(
        waits=waits,
        last_line=known.last_line[:_LONGEST],
        done=estimate.done,
        progress=estimate.text,
        remaining_seconds=seconds(estimate.remaining),
    )


def _of_trials(work: TuningJob, waits: str) -> records.Glance:
    done, total = work.succeeded + work.infeasible, work.spec.max_trials
    return records.Glance(
        waits=waits, done=done / total if total else None, progress=f"{done} of {total} trials"
    )
