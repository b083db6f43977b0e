"""Reads what the programs of trials write as TensorFlow summaries below each trial's own directory, while
they run.

A cache over the event files: all of it can be lost, and is then read again. A trial's directory is read when
something in it has changed, and for the last time once the trial's job is over. Where changes are not
reported (a bucket in a remote store, a user who has no inotify watches left) it is read now and then.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct, field

from trainshed.controller.directory_watches import DirectoryWatches
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, JobUid
from trainshed.summaries.directories import Follower, Point, Points, representative
from trainshed.summaries.reading import MARK, Directory
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_SPAN: Final = 0.5
"""Seconds for which changes of one trial's files are gathered."""
_SHARE: Final = 10
"""Reading is followed by a pause that is this many times as long as it took."""
_UNWATCHED: Final = 30.0
"""Seconds between two reads of a directory that cannot be watched."""
_LAST_LOOKS: Final = 4
"""Reads of a directory whose trial is over, at most; each covers as much as one read does."""


class SummaryPlaces(Protocol):
    """Finds the directories of summaries (`serve.bucket_adapters`)."""

    def directory(self, uri: str, project: str) -> Directory | None:
        """Return the directory of a URI; None if no program of the project may read it. Blocks."""
        ...


class Summaries(Struct, frozen=True):
    """What a trial's programs have written into its directory so far."""

    #: The URI of the directory.
    uri: str
    #: The tags of all scalars in it.
    tags: tuple[str, ...] = ()
    #: The points of the requested tag, in the run that represents the trial.
    points: Points = field(default_factory=dict[int, Point])


class _Trial(Struct):
    """A trial whose directory is followed."""

    #: The tuning job that is woken.
    parent: JobUid
    #: None: no program of the project may read the directory.
    follower: Follower | None
    summaries: Summaries
    #: Whether there may be something new.
    is_due: bool = True
    #: Seconds that the last read took.
    took: float = 0.0
    #: Numbers of the watches on its directories.
    watches: set[int] = field(default_factory=set[int])
    #: Whether these report all changes.
    is_watched: bool = False
    alarm: asyncio.TimerHandle | None = None


class TrialSummaries:
    """Follows the directories of trials. `wake`: has a tuning job looked at, because one of its trials has
    written something."""

    def __init__(
        self, places: SummaryPlaces, now: Callable[[], int], wake: Callable[[JobUid], None]
    ) -> None:
        self._places = places
        self._now = now
        self._wake = wake
        self._trials: dict[JobUid, _Trial] = {}
        self._watches: DirectoryWatches[JobUid] = DirectoryWatches(MARK, self._changed)

    def close(self) -> None:
        """Stop following all directories."""
        for uid in tuple(self._trials):
            self.forget(uid)
        self._watches.close()

    def forget(self, uid: JobUid) -> None:
        """Stop following the directory of a trial whose job is over."""
        trial = self._trials.pop(uid, None)
        if trial is not None:
            self._watches.release(uid, trial.watches)
            if trial.alarm is not None:
                trial.alarm.cancel()

    async def of(self, parent: JobUid, job: Job, tag: str) -> Summaries | None:
        """Return what the trial that `job` evaluates has written so far; None if it has no directory of its
        own."""
        uri = directory_of(job)
        if not uri:
            return None
        trial = self._trials.get(job.uid)
        if trial is None:
            place = await asyncio.to_thread(self._places.directory, uri, job.name.project_id)
            # Files of earlier jobs in that directory are older than this job.
            follower = Follower(place, tag, job.created / 1e9) if place is not None else None
            trial = self._trials[job.uid] = _Trial(parent, follower, Summaries(uri))
        if trial.follower is not None and (trial.is_due or job.state.is_final):
            self._watches.begin()
            trial.is_due = False
            is_all = await asyncio.to_thread(self._look, job, trial, trial.follower)
            if not job.state.is_final and not (is_all and trial.is_watched):
                pause = trial.took * _SHARE
                self._set_alarm(job.uid, trial, max(_UNWATCHED if is_all else _SPAN, pause))
        return trial.summaries

    def _look(self, job: Job, trial: _Trial, follower: Follower) -> bool:
        """Read what is new. Return whether everything was read."""
        begun = self._now()
        watches: set[int] = set()
        is_watched, is_all = True, False

        def met(directory: int, awaited: str) -> None:
            nonlocal is_watched
            number = self._watches.watch(directory, job.uid, awaited)
            if number is None:
                is_watched = False
            else:
                watches.add(number)

        try:
            for _ in range(_LAST_LOOKS if job.state.is_final else 1):
                if is_all := follower.look(met):
                    break
        except OSError as failure:
            where = trial.summaries.uri
            about(log, job.uid).warning("summaries in %s not read: %s", where, failure)
            is_watched, is_all = False, True  # They are tried again in a while.
        self._watches.release(job.uid, trial.watches - watches)
        trial.watches, trial.is_watched = watches, is_watched and bool(watches)
        trial.took = (self._now() - begun) / 1e9
        runs = follower.runs()
        run = representative(runs)
        points: Points = {} if run is None else runs[run]
        trial.summaries = Summaries(trial.summaries.uri, tuple(sorted(follower.tags)), points)
        return is_all

    def _changed(self, uid: JobUid) -> None:
        trial = self._trials.get(uid)
        if trial is not None:
            self._set_alarm(uid, trial, max(_SPAN, trial.took * _SHARE))

    def _set_alarm(self, uid: JobUid, trial: _Trial, seconds: float) -> None:
        """Set the trial's alarm, unless an earlier one is set."""
        loop = asyncio.get_running_loop()
        if trial.alarm is not None:
            if trial.alarm.when() <= loop.time() + seconds:
                return
            trial.alarm.cancel()
        trial.alarm = loop.call_later(seconds, self._is_due, uid)

    def _is_due(self, uid: JobUid) -> None:
        trial = self._trials.get(uid)
        if trial is not None:
            trial.alarm = None
            trial.is_due = True
            self._wake(trial.parent)


def directory_of(job: Job) -> str:
    """Return the URI of the directory that a trial's program writes to, which is the trial's own; "" if it
    was given none."""
    spec = job.spec
    return spec.job_dir if spec.api is Api.ML else spec.base_output_directory
