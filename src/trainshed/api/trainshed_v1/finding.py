"""Finds what a path of ours names: a job, a tuning job, a pipeline."""

from trainshed.api.jobs import read_job_name
from trainshed.core.errors import FailedPrecondition, NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.pipelines.records import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.port import Reader

_UID_DIGITS = 19


async def find_work(reader: Reader, target: str) -> tuple[Work, str]:
    """The work and its etag by full name, by uid, or by job id (the newest of that id). Raises NotFound."""
    if "/" in target:
        return await reader.job(read_job_name(target, field="job"))
    if target.isdecimal() and len(target) <= _UID_DIGITS:
        try:
            return await reader.job_by_uid(JobUid(int(target)))
        except (NotFound, OverflowError):
            pass
    return await reader.find(target)


async def find_job(reader: Reader, target: str) -> tuple[Job, str]:
    """The same for what only a job with replicas of its own has; a pipeline stands for its job. Raises NotFound, and
    FailedPrecondition for a tuning job, which says of which job to ask instead."""
    work, etag = await find_work(reader, target)
    if isinstance(work, Pipeline):
        try:
            work, etag = await reader.job_by_uid(work.job)
        except NotFound:
            raise FailedPrecondition(
                f"{work.name} has no job: it has begun none yet, or that was deleted."
            ) from None
    if isinstance(work, Job):
        return work, etag
    assert isinstance(work, TuningJob), "the job of a pipeline is no pipeline"
    raise FailedPrecondition(
        f"{work.name} is a tuning job, and only its trials' jobs have replicas. {await _advice(reader, work)}"
    )


async def _advice(reader: Reader, work: TuningJob) -> str:
    """Names a job that has replicas: of trials one that runs, else the newest."""
    jobs = await _with_replicas(reader, work.uid)
    if not jobs:
        return "It has begun none yet; ask again when it has."
    running = [job for job in jobs if not job.state.is_final]
    chosen = (running or jobs)[0 if running else -1]
    trial = (
        f", the job of trial {chosen.parent.trial}" if chosen.parent and chosen.parent.trial else ""
    )
    return f"Name that one: {chosen.name}{trial}."


async def _with_replicas(reader: Reader, uid: JobUid) -> list[Job]:
    found: list[Job] = []
    for child in await reader.children(uid):
        found += [child] if isinstance(child, Job) else await _with_replicas(reader, child.uid)
    return found
