"""Follows a directory of event files as it grows: what every run in it has measured, read once.

A file is read on from the end of its last whole record. One that was replaced, as storage clients replace an
object whenever they flush, is read anew, and so is one that no longer contains what was read of it. What was
read of a file that is gone is kept.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import BinaryIO, Final, Protocol

from msgspec import Struct, field

from trainshed.summaries.framing import NotEvents, read_records
from trainshed.summaries.scalars import read_scalars

MARK: Final = "tfevents"
"""Part of the name of every event file."""

_MOST_FILES: Final = 1000
_MOST_BYTES: Final = 512 << 20
"""Most bytes that one look reads; the next one goes on."""
_MOST_TAGS: Final = 1000
_MOST_POINTS: Final = 50_000
"""Points of one tag in one file. With twice as many, every second one is forgotten, but never the last."""
_TAIL: Final = 256
_EVALUATION: Final = re.compile(r"(eval|evaluation|validation|valid|val|test)(?![a-z])", re.I)


class EventFile(Struct, frozen=True):
    """An event file as it was found."""

    #: Its path below the directory that is followed.
    path: str
    #: Differs if it was replaced by another file.
    version: str
    #: Differs if it may have changed in any way.
    stamp: str
    #: When it was written last (seconds since the epoch); 0 = not known.
    written: float = 0.0


Met = Callable[[int, str], None]


def unwatched(handle: int, awaited: str) -> None:
    """Do nothing: a `Met` for callers that watch nothing."""


class Directory(Protocol):
    """A place with event files in it. Blocks."""

    def files(self, met: Met) -> Iterator[EventFile]:
        """Yield all event files below it. `met`: where there are directories, called with a handle of each
        and "" before it is read; also for those above, with the name that leads on. Raises OSError."""
        ...

    def open(self, file: EventFile) -> BinaryIO:
        """Open a file for reading, from its beginning. Raises OSError."""
        ...


class Point(Struct, frozen=True):
    """One value of a scalar."""

    #: Seconds since the epoch, by the clock of the program that wrote it.
    at: float
    value: float


Points = Mapping[int, Point]
"""Points by step."""


class Follower:
    """Follows some tags in a directory. `since` (seconds since the epoch): what was written before is
    another program's and does not count. For one thread at a time."""

    def __init__(self, directory: Directory, wanted: Collection[str], since: float = 0.0) -> None:
        self._directory = directory
        self._wanted = frozenset(wanted)
        self._since = since
        self._files: dict[str, _File] = {}
        #: All tags of scalars that were seen.
        self.tags: set[str] = set()

    def look(self, met: Met = unwatched) -> bool:
        """Read what is new; `met` as in `Directory.files`. Returns False if there is more to read than one
        look reads. Raises OSError."""
        left = _MOST_BYTES
        for file in islice(self._directory.files(met), _MOST_FILES):
            known = self._files.get(file.path)
            if known is not None and known.stamp == file.stamp:
                continue
            if left <= 0:
                return False
            try:
                with self._directory.open(file) as opened:
                    if known is None or known.version != file.version or not known.goes_on(opened):
                        known = self._files[file.path] = _File(file.version)
                    left -= self._read(known, opened, left)
            except FileNotFoundError:
                continue
            known.stamp = file.stamp if left > 0 else ""
        return left > 0

    def runs(self, tag: str) -> dict[str, Points]:
        """Return what each run, a directory with event files, has measured under the tag. Of several values
        of a step the last one written counts: a program that goes back to a checkpoint opens another file."""
        points: dict[str, dict[int, Point]] = {}
        for path, file in sorted(self._files.items()):
            for step, point in file.points.get(tag, {}).items():
                steps = points.setdefault(path.rpartition("/")[0], {})
                before = steps.get(step)
                if before is None or before.at <= point.at:
                    steps[step] = point
        return dict(points)

    def _read(self, file: "_File", opened: BinaryIO, most: int) -> int:
        """Read on for about `most` bytes; return how many were read."""
        begun = file.offset
        read = 0
        try:
            for record, end in read_records(opened, begun):
                file.offset = end
                read += len(record)
                for scalar in read_scalars(record):
                    if scalar.at < self._since:
                        continue
                    if len(self.tags) < _MOST_TAGS:
                        self.tags.add(scalar.tag)
                    if scalar.tag in self._wanted:
                        file.take(scalar.tag, scalar.step, Point(scalar.at, scalar.value))
                if read >= most:
                    break
        except NotEvents:
            pass  # What came before counts; a file that is repaired counts as another one.
        file.remember(opened)
        return read


class _File(Struct):
    """How far an event file was read."""

    version: str
    stamp: str = ""
    #: The end of the last record that was read, in bytes.
    offset: int = 0
    #: The last bytes before the offset.
    tail: bytes = b""
    points: dict[str, dict[int, Point]] = field(default_factory=dict[str, dict[int, Point]])

    def goes_on(self, opened: BinaryIO) -> bool:
        """Whether it still contains what was read of it."""
        opened.seek(self.offset - len(self.tail))
        return opened.read(len(self.tail)) == self.tail

    def remember(self, opened: BinaryIO) -> None:
        opened.seek(max(0, self.offset - _TAIL))
        self.tail = opened.read(min(self.offset, _TAIL))

    def take(self, tag: str, step: int, point: Point) -> None:
        points = self.points.setdefault(tag, {})
        before = points.get(step)
        if before is None or before.at <= point.at:
            points[step] = point
        if len(points) > 2 * _MOST_POINTS:
            last = max(points)
            kept = {step: points[step] for step in sorted(points)[::2]}
            self.points[tag] = {**kept, last: points[last]}


def representative(runs: Mapping[str, Points]) -> str | None:
    """Return the run that represents the model if several have measured under one tag: an evaluation's (a
    directory such as `eval`, `eval_holdout`, `validation`) before training's, then the one that measured
    last. None if there is none."""

    def rank(run: str) -> tuple[bool, float, str]:
        evaluates = any(_EVALUATION.match(name) for name in run.split("/"))
        return evaluates, max(point.at for point in runs[run].values()), run

    return max(runs, key=rank, default=None)
