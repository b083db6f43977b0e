"""Tells how far a job is, and for how long it will still run."""

from typing import Final

from trainshed.api.calls.progress import Known, reported
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import text_micros
from trainshed.api.resources.jobs import find_work
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.pipelines.records import Pipeline
from trainshed.core.progress.estimate import Estimate
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.wire.trainshed_v1 import jobs as records

NOT_KNOWN: Final = Estimate(None, "")


async def progress(call: JsonCall) -> records.Progress:
    """`GET /trainshed/v1/jobs/{job}/progress`: return how far a job is; for an ended job what its program
    reported last. A tuning job's progress counts its trials."""
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
    known = await _known(services, work)
    return None if known is None or not known.source else _record(known)


async def _known(services: Services, job: Job) -> Known | None:
    if job.state is JobState.RUNNING:
        return await services.progress.look(services.logs, job, services.now())
    return reported(services.logs, job, services.now()) if job.state.is_final else None


def _record(known: Known) -> records.Progress:
    estimate = known.estimate or NOT_KNOWN
    return records.Progress(
        done=estimate.done,
        text=estimate.text,
        remaining_seconds=seconds(estimate.remaining),
        margin_seconds=seconds(estimate.margin),
        source=known.source,
        update_time=text_micros(known.at),
        metrics=dict(known.metrics),
    )


def seconds(value: float | None) -> float | None:
    """Round to as many decimals as are shown."""
    return None if value is None else round(value, 1)
