"""Finds and opens event files in a directory of this machine, which programs write to at the same time.

Nothing in it is trusted: each step down is taken from an open directory and follows no link, only plain files
are read, and the number of entries looked at is bounded. Blocks.

`Follower` follows the scalars in it as it grows: what every run has measured, read once. What was read of a
file that is gone is kept.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from trainshed.summaries.reading import (
    MARK,
    Directory,
    EventFile,
    FileProgress,
    Met,
    read_on,
    run_of,
    unwatched,
)


class LogDirectory(Struct, frozen=True):
    """A directory with event files of a job."""

    #: A name that differs from those shown with it: letters, digits, `.`, `_` and `-`; "" if it is the only
    #: one.
    label: str
    #: `gs://BUCKET/PATH`.
    uri: str
    #: The project whose programs wrote it.
    project: str


_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe must not wait for its writer.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEEPEST: Final = 20
_MOST_DIRECTORIES: Final = 1000
_MOST_ENTRIES: Final = 50_000


class LocalDirectory:
    """Implements `reading.Directory`. `base` is the service's directory; `below`, the names of the
    directories from there on, are a program's."""

    def __init__(self, base: Path, below: tuple[str, ...]) -> None:
        self._base = base
        self._below = below

    def files(self, met: Met) -> Iterator[EventFile]:
        """Do as the port says, in the order of the directories' names."""
        handle = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in self._below:
            try:
                met(handle, name)
                below = _opened(handle, name)
            finally:
                os.close(handle)
            if below is None:
                return  # It is not there yet.
            handle = below
        walk = _Walk(met)
        try:
            yield from walk.directory(handle, "", 0)
        finally:
            os.close(handle)

    def open(self, file: EventFile) -> BinaryIO:
        """Do as the port says."""
        *directories, leaf = file.path.split("/")
        handle = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in (*self._below, *directories):
            try:
                below = os.open(name, _DIRECTORY, dir_fd=handle)
            finally:
                os.close(handle)
            handle = below
        try:
            opened = os.open(leaf, _FILE, dir_fd=handle)
        finally:
            os.close(handle)
        status = os.fstat(opened)
        # A file that has a second name may be one that the program itself must not read.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(opened)
            raise FileNotFoundError(f"{file.path} is no plain file")
        return os.fdopen(opened, "rb", buffering=1 << 18)


class _Walk:
    def __init__(self, met: Met) -> None:
        self._met = met
        self._directories = 0
        self._entries = 0

    def directory(self, handle: int, path: str, depth: int) -> Iterator[EventFile]:
        self._directories += 1
        self._met(handle, "")
        below: list[str] = []
        names: list[str] = []
        with os.scandir(handle) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > _MOST_ENTRIES:
                    break
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                elif MARK in entry.name and entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
        for name in sorted(names):
            with suppress(OSError):
                status = os.stat(name, dir_fd=handle, follow_symlinks=False)
                identity = f"{status.st_dev}-{status.st_ino}"
                stamp = f"{identity}-{status.st_size}-{status.st_mtime_ns}"
                yield EventFile(path + name, stamp, status.st_mtime)
        for name in sorted(below):
            if depth == _DEEPEST or self._directories >= _MOST_DIRECTORIES:
                return
            inner = _opened(handle, name)
            if inner is None:
                continue
            try:
                yield from self.directory(inner, f"{path}{name}/", depth + 1)
            finally:
                os.close(inner)


def _opened(handle: int, name: str) -> int | None:
    """Open a directory that is in another one; None if it cannot be, or is a link."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=handle)
    except OSError:
        return None


_MOST_SCALARS: Final = 2_000_000
"""Scalars after which a look ends; the next one goes on."""
_MOST_TAGS: Final = 1000
_MOST_POINTS: Final = 50_000
"""Points of one tag in one file. With twice as many, every second one is forgotten, but never the last."""
_EVALUATION: Final = re.compile(r"(eval|evaluation|validation|valid|val|test)(?![a-z])", re.I)


class Point(Struct, frozen=True):
    """One value of a scalar."""

    #: Seconds since the epoch, by the clock of the program that wrote it.
    at: float
    value: float


Points = Mapping[int, Point]
"""Points by step."""


class Follower:
    """Follows a tag in a directory. `since` (seconds since the epoch): what was written before is another
    program's and does not count. For one thread at a time."""

    def __init__(self, directory: Directory, tag: str, since: float = 0.0) -> None:
        self._directory = directory
        self._tag = tag
        self._since = since
        self._files: dict[str, FileProgress] = {}
        self._points: dict[str, dict[int, Point]] = {}
        #: All tags of scalars that were seen.
        self.tags: set[str] = set()

    def look(self, met: Met = unwatched) -> bool:
        """Read what is new; `met` as in `Directory.files`. Returns False if there is more to read than one
        look reads. Raises OSError."""
        left = _MOST_SCALARS
        for piece in read_on(self._directory, self._files, self._since, met):
            path = piece.progress.path
            if piece.is_anew:
                self._points[path] = {}
            self._files[path] = piece.progress
            for scalar in piece.scalars:
                if len(self.tags) < _MOST_TAGS:
                    self.tags.add(scalar.tag)
                if scalar.tag == self._tag:
                    _put(self._points[path], scalar.step, Point(scalar.at, scalar.value))
            points = self._points[path]
            if len(points) > 2 * _MOST_POINTS:
                last = max(points)
                kept = {step: points[step] for step in sorted(points)[::2]}
                self._points[path] = kept | {last: points[last]}
            left -= len(piece.scalars)
            if left <= 0:
                return False
        return True

    def runs(self) -> dict[str, Points]:
        """Return what each run, a directory with event files, has measured under the tag. Of several values
        of a step the last one written counts: a program that goes back to a checkpoint opens another file."""
        runs: dict[str, dict[int, Point]] = {}
        for path, points in sorted(self._points.items()):
            for step, point in points.items():
                _put(runs.setdefault(run_of(path), {}), step, point)
        return dict(runs)


def _put(points: dict[int, Point], step: int, point: Point) -> None:
    before = points.get(step)
    if before is None or before.at <= point.at:
        points[step] = point


def representative(runs: Mapping[str, Points]) -> str | None:
    """Return the run that represents the model if several have measured under one tag: an evaluation's (a
    directory such as `eval`, `eval_holdout`, `validation`) before training's, then the one that measured
    last. None if there is none."""

    def rank(run: str) -> tuple[bool, float, str]:
        evaluates = any(_EVALUATION.match(name) for name in run.split("/"))
        return evaluates, max(point.at for point in runs[run].values()), run

    return max(runs, key=rank, default=None)
