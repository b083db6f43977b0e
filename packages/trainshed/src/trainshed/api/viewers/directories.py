"""Finds the log directories of a view's jobs, and gives them names that tell them apart."""

import re
from collections.abc import Sequence
from typing import Final

from trainshed.api.resources.jobs import jobs_below
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.pipelines.records import Pipeline
from trainshed.core.tensorboards.log_directories import log_directory
from trainshed.store.port import Reader
from trainshed.summaries.places import LogDirectory

MOST_DIRECTORIES: Final = 100
"""Most directories that a view shows; of a tuning job those of the newest trials."""
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 60


async def directories_of(reader: Reader, uids: Sequence[JobUid]) -> tuple[LogDirectory, ...]:
    """Return the log directories of these jobs, and of the jobs that they have made. Raises NotFound if one
    of them was deleted."""
    jobs: list[tuple[str, Job]] = []
    for uid in uids:
        try:
            work, _ = await reader.job_by_uid(uid)
        except NotFound:
            raise NotFound(f"The job {uid} of this link has been deleted.") from None
        if isinstance(work, Job):
            jobs.append((_name(work, ""), work))
            continue
        if isinstance(work, Pipeline):
            jobs += [(_name(job, ""), job) for job in await jobs_below(reader, work.uid)]
            continue
        title = _title(work.display_name or work.name.job_id) if len(uids) > 1 else ""
        jobs += [(_name(job, title), job) for job in await jobs_below(reader, work.uid)]
    written = [(name, job, log_directory(job.spec)) for name, job in jobs]
    shown = [entry for entry in written if entry[2]][-MOST_DIRECTORIES:]
    if len(shown) == 1:
        return (LogDirectory("", shown[0][2], shown[0][1].name.project_id),)
    names = [name for name, _, _ in shown]
    return tuple(
        LogDirectory(
            name if names.count(name) == 1 else f"{name}-{job.uid}", uri, job.name.project_id
        )
        for name, job, uri in shown
    )


def _name(job: Job, parent: str) -> str:
    if job.parent is not None and job.parent.trial:
        trial = f"trial-{job.parent.trial}"
        return f"{parent}-{trial}" if parent else trial
    return _title(job.display_name or job.name.job_id)


def _title(text: str) -> str:
    """Return `text` as a directory's name; never one that is hidden or leads up."""
    return _ODD.sub("-", text)[:_LONGEST].strip("-.") or "job"
