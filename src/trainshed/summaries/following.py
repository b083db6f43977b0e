"""A directory of event files, followed as it grows: what every run in it has measured, read once.

A file goes on where its last whole record ended. One that was replaced, as storage clients replace an object
whenever they flush, is read anew, and so is one that does not hold any more what was read of it. What was
read of a file that is gone stays.
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
"""That one look reads; the next one goes on."""
_MOST_TAGS: Final = 1000
_MOST_POINTS: Final = 50_000
"""Of one tag in one file. Of more, every second one is forgotten, but never the last."""
_TAIL: Final = 256
_EVALUATION: Final = re.compile(r"(eval|evaluation|validation|valid|val|test)(?![a-z])", re.I)


class EventFile(Struct, frozen=True):
    """An event file as it was met."""

    #: Below the directory that is followed.
    path: str
    #: Another one says that it was replaced by another file.
    version: str
    #: Another one says that it may have changed in any way.
    stamp: str
    #: When it was written last (seconds since the epoch); 0 = nobody says.
    written: float = 0.0


Met = Callable[[int, str], None]


def unwatched(handle: int, awaited: str) -> None:
    """`Met` of who watches nothing."""


class Directory(Protocol):
    """A place with event files in it. Blocks."""

    def files(self, met: Met) -> Iterator[EventFile]:
        """All below it. `met`: called with a handle of every directory before it is read, where there are
        directories, and ""; also of each of those above, with the name of the one that leads to the place.
        Raises OSError."""
        ...

    def open(self, file: EventFile) -> BinaryIO:
        """For reading, from its beginning. Raises OSError."""
        ...


class Point(Struct, frozen=True):
    """One value of a scalar."""

    #: Seconds since the epoch, by the clock of the program that wrote it.
    at: float
    value: float


Points = Mapping[int, Point]
"""By step."""


class Follower:
    """Follows a directory for the sake of some tags. `since`: what was written before (seconds since the
    epoch) is somebody else's and does not count. For one thread at a time."""

    def __init__(self, directory: Directory, wanted: Collection[str], since: float = 0.0) -> None:
        self._directory = directory
        self._wanted = frozenset(wanted)
        self._since = since
        self._files: dict[str, _File] = {}
        #: All tags of scalars that were seen.
        self.tags: set[str] = set()

    def look(self, met: Met = unwatched) -> bool:
        """Take in what is new; `met` as in `Directory.files`. False: there is more to read than one look
        takes. Raises OSError."""
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
        """What each run, a directory with event files, has measured under the tag. Of several values of a
        step the one that was written last counts: who goes back to a checkpoint opens another file."""
        found: dict[str, dict[int, Point]] = {}
        for path, file in sorted(self._files.items()):
            for step, point in file.points.get(tag, {}).items():
                steps = found.setdefault(path.rpartition("/")[0], {})
                before = steps.get(step)
                if before is None or before.at <= point.at:
                    steps[step] = point
        return dict(found)

    def _read(self, file: "_File", opened: BinaryIO, most: int) -> int:
        """Bytes that were read."""
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
            pass  # What came before counts; a file that is repaired is another one.
        file.remember(opened)
        return read


class _File(Struct):
    """How far an event file was read."""

    version: str
    stamp: str = ""
    #: Bytes: behind the last record that was read.
    offset: int = 0
    #: The bytes before the offset.
    tail: bytes = b""
    points: dict[str, dict[int, Point]] = field(default_factory=dict[str, dict[int, Point]])

    def goes_on(self, opened: BinaryIO) -> bool:
        """Whether it still holds what was read of it."""
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
    """The run that speaks for the model where several have measured under one tag: one of an evaluation (a
    directory such as `eval`, `eval_holdout`, `validation`) before those of training, then the one that
    measured last. None of none."""

    def rank(run: str) -> tuple[bool, float, str]:
        evaluates = any(_EVALUATION.match(name) for name in run.split("/"))
        return evaluates, max(point.at for point in runs[run].values()), run

    return max(runs, key=rank, default=None)
