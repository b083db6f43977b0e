"""What the tests of summaries share: a clock, a directory that counts, and who reads on."""

from typing import BinaryIO

from trainshed.summaries.directories import LocalDirectory
from trainshed.summaries.reading import Directory, EventFile, FileProgress, read_on, run_of


class Clock:
    """Seconds; one more at each look."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        self.at += 1
        return self.at


class Counted(LocalDirectory):
    """Counts the files that are opened."""

    opened = 0

    def open(self, file: EventFile) -> BinaryIO:
        self.opened += 1
        return super().open(file)


def _unwatched(_handle: int, _awaited: str) -> None: ...


class Follower:
    """Reads a directory on at each look. `since` as in `read_on`."""

    def __init__(self, directory: Directory, since: float = 0.0) -> None:
        self._directory = directory
        self._since = since
        self._files: dict[str, FileProgress] = {}
        self._values: dict[str, dict[int, float]] = {}

    def look(self) -> dict[str, dict[int, float]]:
        """All values until now, by run and tag, then by step."""
        for piece in read_on(self._directory, self._files, self._since, _unwatched):
            self._files[piece.progress.path] = piece.progress
            for scalar in piece.scalars:
                name = f"{run_of(piece.progress.path)}:{scalar.tag}"
                self._values.setdefault(name, {})[scalar.step] = scalar.value
        return self._values
