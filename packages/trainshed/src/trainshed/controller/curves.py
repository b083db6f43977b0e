"""Reads the TensorFlow summaries that programs log, and stores them as curves of their jobs (docs/adr/0034).

A job's log directory is read repeatedly in a thread while its programs run. Without new points, the intervals
increase. Points are stored before the reading position of their file. After a crash, some points are
therefore read and stored again, but count only once.
"""

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Final

from msgspec import Struct, field

from trainshed.core.curves import MAX_SERIES, CurveSeries, CurveWriter, Point, point
from trainshed.core.environment import service_account
from trainshed.core.errors import RequestError
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.tuning.records import SeenSummaries
from trainshed.core.units import Nanos
from trainshed.eventloop.background import begin, cancel_all, keep
from trainshed.store.points import PointFiles
from trainshed.store.sqlite.jobs import Intake
from trainshed.store.sqlite.reader import Reader
from trainshed.store.sqlite.resources import Curves
from trainshed.summaries.reading import Directory, FileProgress, Piece, read_new_data, run_of
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_READ_INTERVAL: Final = 0.5
"""Seconds after which a directory with new points is read again. The interval doubles each time no new points
are found."""
_MAX_READ_INTERVAL: Final = 30.0
_IDLE_FACTOR: Final = 10
"""After each read, the pause is at least this many times as long as the read."""
_MAX_CONCURRENT_READS: Final = 2
"""Maximum number of jobs whose files are read at the same time, because other tasks need threads as well."""
_END_TIMEOUT: Final = 5.0
"""Maximum seconds for which the end of a job is delayed until its last points were read. After that, the
remaining points are read later."""
_LATE_TIMEOUT: Final = 600.0
"""Maximum seconds for which the late reading of one job's files delays the reading of other jobs' files. Some
files grow forever."""

_EVALUATION: Final = re.compile(r"(eval|evaluation|validation|valid|val|test)(?![a-z])", re.I)


class CurveStores(Struct, frozen=True):
    """The sources and the store of curves."""

    curves: Curves
    points: PointFiles
    reader: Reader
    intake: Intake
    #: Returns the directory of a URI, or None if no program of the project may read it with the service
    #: account. Blocks.
    directory: Callable[[str, str, str], Directory | None]
    #: Returns a writer for the job's tensorboard, or None for a job without a tensorboard.
    board: Callable[[Job], CurveWriter | None]
    #: Returns a new uid, ascending with time.
    new_uid: Callable[[], JobUid]
    #: Returns the present time in nanoseconds since the epoch.
    now: Callable[[], Nanos]


def _ignore(_uid: JobUid) -> None:
    """Ignore a notification about new points."""


class _Followed(Struct):
    """A running job whose log directory is read repeatedly."""

    job: Job
    files: dict[str, FileProgress] = field(default_factory=dict[str, FileProgress])
    series: dict[tuple[str, str], CurveSeries] = field(default_factory=dict[tuple[str, str], CurveSeries])
    #: The Tensorboard that also receives the job's curves, or None.
    board: CurveWriter | None = None
    #: Set when the job has finished, so that its files are read for the last time.
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    #: Whether the job's timeline has an entry about too many tags.
    has_tag_notice: bool = False
    task: "asyncio.Task[None] | None" = None


class JobCurves:
    """Reads the log directories of all running jobs. Used on the event loop."""

    def __init__(self, stores: CurveStores) -> None:
        self._stores = stores
        self._followed: dict[JobUid, _Followed] = {}
        self._resuming: asyncio.Task[None] | None = None
        self._written: Callable[[JobUid], None] = _ignore
        self._reading = asyncio.Semaphore(_MAX_CONCURRENT_READS)

    def start(self, written: Callable[[JobUid], None] = _ignore) -> None:
        """Continue with finished jobs whose files were not read completely. `written`: called with each job
        that has new points."""
        self._written = written
        self._resuming = begin(self._resume(), "reading the curves of finished jobs")

    def follow(self, job: Job) -> None:
        """Start reading the log directory of a job whose programs run, or will run. May be called
        repeatedly."""
        if job.uid in self._followed or job.state.is_final:
            return
        if (job.attempt and job.spec.log_directory) or job.spec.tensorboard:
            self._begin(job)

    async def finish(self, job: Job) -> None:
        """Read the last points of a job whose programs have ended, before the end is stored. Waits at most
        `_END_TIMEOUT` seconds."""
        followed = self._followed.get(job.uid)
        if followed is None or followed.task is None:
            return
        followed.job = job
        followed.ended.set()
        done, _ = await asyncio.wait([followed.task], timeout=_END_TIMEOUT)
        if not done:
            about(log, job.uid).info("curves not read to their ends yet; the job ends anyway")

    async def read_points(self, job: Job, tag: str) -> tuple[SeenSummaries, Sequence[Point]] | None:
        """Return the points of a job that were read so far, or all points of a finished job.

        The result contains the job's tags, and the points of one tag, ascending by step. Return None for a
        job without a log directory.
        """
        uri = job.spec.log_directory
        if not uri:
            return None
        if job.state.is_final:
            followed = self._followed.get(job.uid)
            tasks = [self._resuming, followed.task if followed is not None else None]
            if reading := [task for task in tasks if task is not None]:
                await asyncio.wait(reading)
        known = await self._stores.curves.series(job.uid)
        chosen = representative([series for series in known if series.tag == tag])
        points: Sequence[Point] = ()
        if chosen is not None:
            points = (await self._stores.points.read(job.uid, [chosen.uid]))[chosen.uid]
        return SeenSummaries(uri, tuple(sorted({series.tag for series in known}))), points

    async def close(self) -> None:
        """Stop reading. The next start of the service continues."""
        tasks = [followed.task for followed in self._followed.values() if followed.task]
        if self._resuming is not None:
            tasks.append(self._resuming)
        await cancel_all(tasks)

    async def _resume(self) -> None:
        for uid in await self._stores.curves.unfinished_jobs():
            # Skip a job that was deleted or whose record is unreadable.
            with contextlib.suppress(RequestError):
                work, _ = await self._stores.reader.job_by_uid(uid)
                if isinstance(work, Job) and (task := self._begin(work).task) is not None:
                    # Read the jobs one after the other, because no caller waits for them.
                    self._followed[uid].ended.set()
                    await asyncio.wait([task], timeout=_LATE_TIMEOUT)

    def _begin(self, job: Job) -> _Followed:
        followed = self._followed[job.uid] = _Followed(job)
        followed.task = keep(partial(self._follow, followed), f"job {job.uid}: reading its curves")
        return followed

    # --- reading one job's files

    async def _follow(self, followed: _Followed) -> None:
        job, curves = followed.job, self._stores.curves
        followed.board = self._stores.board(job)
        if followed.board is not None:
            await followed.board.prepare()
        followed.files = {file.path: file for file in await curves.files(job.uid)}
        if followed.files:
            followed.series = {(series.run, series.tag): series for series in await curves.series(job.uid)}
        directory = None
        if uri := job.spec.log_directory:
            project = job.name.project_id
            account = service_account(project, job.spec)
            directory = await asyncio.to_thread(self._stores.directory, uri, project, account)
        if directory is None:
            await followed.ended.wait()
        else:
            await self._read_until_ended(followed, directory)
        if followed.files:
            await curves.finish(job.uid)
        del self._followed[job.uid]

    async def _read_until_ended(self, followed: _Followed, directory: Directory) -> None:
        loop, pause = asyncio.get_running_loop(), _READ_INTERVAL
        while True:
            is_last, begun = followed.ended.is_set(), loop.time()
            has_news = await self._read(followed, directory)
            if is_last:
                return
            pause = _READ_INTERVAL if has_news else 2 * pause
            rest = min(max(pause, (loop.time() - begun) * _IDLE_FACTOR), _MAX_READ_INTERVAL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await followed.ended.wait()

    async def _read(self, followed: _Followed, directory: Directory) -> bool:
        """Read the directory once, and return whether it contained new points."""
        has_news = False
        # Read only files that are newer than the job. Older files in the directory belong to earlier jobs.
        pieces = read_new_data(directory, followed.files, followed.job.created / 1e9)
        try:
            while True:
                async with self._reading:
                    piece = await asyncio.to_thread(_next_piece, pieces)
                if piece is None or not await self._store_points(followed, *piece):
                    break
                has_news = True
        except OSError as failure:
            where = followed.job.spec.log_directory
            about(log, followed.job.uid).warning("event files in %s not read: %s", where, failure)
        return has_news

    async def _store_points(
        self, followed: _Followed, progress: FileProgress, points: Mapping[str, list[Point]]
    ) -> bool:
        """Store the points from a file and the reading position. Return False if the job was deleted."""
        uid, run = followed.job.uid, run_of(progress.path)
        fresh: dict[tuple[str, str], CurveSeries] = {}
        for tag, some in points.items():
            if (series := self._series(followed, run, tag, fresh.keys())) is not None:
                fresh[run, tag] = _with(series, some)
        kept = [(series.uid, points[tag]) for (_, tag), series in fresh.items()]
        files = self._stores.points
        await files.append(uid, kept, thins=True)
        if followed.board is not None:
            await followed.board.write(run, {tag: points[tag] for _, tag in fresh})
        if not await self._stores.curves.put(uid, progress, tuple(fresh.values())):
            await files.forget([uid])
            return False
        if len(fresh) < len(points) and not followed.has_tag_notice:
            followed.has_tag_notice = True
            text = (
                f"The job logs scalars under more than {MAX_SERIES} tags, counted in each "
                "directory. The service keeps no curves for further tags. The event files "
                "contain all of them."
            )
            entry = TimelineEntry(self._stores.now(), "curves_limited", text)
            await self._stores.intake.add_timeline_entry((uid,), entry)
        followed.files[progress.path] = progress
        followed.series |= fresh
        if fresh:
            self._written(uid)
        return True

    def _series(
        self, followed: _Followed, run: str, tag: str, fresh: Set[tuple[str, str]]
    ) -> CurveSeries | None:
        """Return the existing series, or a new one. Return None if the job has too many series."""
        known = followed.series.get((run, tag))
        if known is None and len(followed.series.keys() | fresh) < MAX_SERIES:
            return CurveSeries(
                uid=self._stores.new_uid(), run=run, tag=tag, step=0, at=0, value=None, count=0
            )
        return known


def representative(curves: Iterable[CurveSeries]) -> CurveSeries | None:
    """Return the most important of several directories' curves for one tag.

    Evaluation curves (directories such as `eval`, `eval_holdout`, `validation`) have priority over training
    curves. Among several evaluation curves, or several training curves, the curve with the latest measurement
    is returned. Return None if `curves` is empty.
    """

    def rank(series: CurveSeries) -> tuple[bool, int, str]:
        evaluates = any(_EVALUATION.match(name) for name in series.run.split("/"))
        return evaluates, series.at, series.run

    return max(curves, key=rank, default=None)


def _next_piece(pieces: Iterator[Piece]) -> tuple[FileProgress, dict[str, list[Point]]] | None:
    """Return the next piece: the reading position of its file, and its points by tag. Return None at the end.
    Blocks."""
    piece = next(pieces, None)
    if piece is None:
        return None
    points: dict[str, list[Point]] = {}
    for scalar in piece.scalars:
        points.setdefault(scalar.tag, []).append(point(scalar.step, scalar.at, scalar.value))
    return piece.progress, points


def _with(series: CurveSeries, points: list[Point]) -> CurveSeries:
    last = points[-1]
    assert isinstance(last.value, float)
    return CurveSeries(
        uid=series.uid,
        run=series.run,
        tag=series.tag,
        step=last.step,
        at=last.at,
        value=last.value if math.isfinite(last.value) else None,
        count=series.count + len(points),
    )
