"""The store's port for the curves of jobs: which series there are, and how far each event file was read.

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
        """Store how far a file was read, and some series of it, each replacing what is stored of it, in one
        transaction. From then on the job may have files that were not read to their ends. Returns False if
        the job was deleted; then nothing is stored."""
        ...

    async def files(self, job: JobUid) -> tuple[FileProgress, ...]:
        """Return the files by path; none for a job that does not exist."""
        ...

    async def series(self, job: JobUid) -> tuple[CurveSeries, ...]:
        """Return the series by run and tag; none for a job that does not exist."""
        ...

    async def finish(self, job: JobUid) -> None:
        """Record that a job is over and its files were read to their ends."""
        ...

    async def unfinished(self) -> tuple[JobUid, ...]:
        """Return the jobs that are over and have files that may not have been read to their ends."""
        ...
