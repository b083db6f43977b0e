"""What the tests of summaries share: a clock, and a directory that counts."""

from typing import BinaryIO

from trainshed.summaries.directories import LocalDirectory
from trainshed.summaries.reading import EventFile


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
