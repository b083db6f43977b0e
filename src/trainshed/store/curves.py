"""The store's door for the curves of jobs: which series there are, and how far each event file was read.

Their points are in the file of the job's uid (`store.points`). Contract suite: tests/contract/store.
"""

from collections.abc import Sequence
from typing import Protocol

from trainshed.core.names import JobUid
from trainshed.core.tensorboards.curves import CurveSeries
from trainshed.summaries.reading import FileProgress


class Curves(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def put(self, job: JobUid, progress: FileProgress, series: Sequence[CurveSeries]) -> bool:
        """Store how far a file was read, and series of it, each in place of what is stored of it, in one
        step; the job counts as one whose files may not have been read to their ends. False: the job was
        deleted, and nothing is stored."""
        ...

    async def files(self, job: JobUid) -> tuple[FileProgress, ...]:
        """By path; none for a job that is not there."""
        ...

    async def series(self, job: JobUid) -> tuple[CurveSeries, ...]:
        """By run and tag; none for a job that is not there."""
        ...

    async def finish(self, job: JobUid) -> None:
        """The job is over, and its files were read to their ends."""
        ...

    async def unfinished(self) -> tuple[JobUid, ...]:
        """Jobs that are over and have files which may not have been read to their ends."""
        ...
