"""Follows scalars in a directory of event files as it grows: what every run in it has measured, read once.

What was read of a file that is gone is kept.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from trainshed.summaries.reading import Directory, FileProgress, Met, read_on, run_of, unwatched

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
    """Follows some tags in a directory. `since` (seconds since the epoch): what was written before is
    another program's and does not count. For one thread at a time."""

    def __init__(self, directory: Directory, wanted: Collection[str], since: float = 0.0) -> None:
        self._directory = directory
        self._wanted = frozenset(wanted)
        self._since = since
        self._files: dict[str, FileProgress] = {}
        #: By file and tag.
        self._points: dict[str, dict[str, dict[int, Point]]] = {}
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
                if scalar.tag in self._wanted:
                    self._take(path, scalar.tag, scalar.step, Point(scalar.at, scalar.value))
            left -= len(piece.scalars)
            if left <= 0:
                return False
        return True

    def runs(self, tag: str) -> dict[str, Points]:
        """Return what each run, a directory with event files, has measured under the tag. Of several values
        of a step the last one written counts: a program that goes back to a checkpoint opens another file."""
        points: dict[str, dict[int, Point]] = {}
        for path, by_tag in sorted(self._points.items()):
            for step, point in by_tag.get(tag, {}).items():
                steps = points.setdefault(run_of(path), {})
                before = steps.get(step)
                if before is None or before.at <= point.at:
                    steps[step] = point
        return dict(points)

    def _take(self, path: str, tag: str, step: int, point: Point) -> None:
        by_tag = self._points[path]
        points = by_tag.setdefault(tag, {})
        before = points.get(step)
        if before is None or before.at <= point.at:
            points[step] = point
        if len(points) > 2 * _MOST_POINTS:
            last = max(points)
            by_tag[tag] = {step: points[step] for step in sorted(points)[::2]} | {
                last: points[last]
            }


def representative(runs: Mapping[str, Points]) -> str | None:
    """Return the run that represents the model if several have measured under one tag: an evaluation's (a
    directory such as `eval`, `eval_holdout`, `validation`) before training's, then the one that measured
    last. None if there is none."""

    def rank(run: str) -> tuple[bool, float, str]:
        evaluates = any(_EVALUATION.match(name) for name in run.split("/"))
        return evaluates, max(point.at for point in runs[run].values()), run

    return max(runs, key=rank, default=None)
