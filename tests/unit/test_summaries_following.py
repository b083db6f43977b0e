"""Directories of event files that grow, are rewritten, and are somebody else's to damage."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.e2e.programs.event_writer import EventWriter
from tests.unit.summaries import Clock, Follower
from trainshed.summaries.directories import LocalDirectory
from trainshed.summaries.reading import EventFile, Met


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / "3"


@pytest.fixture
def directory(tmp_path: Path) -> LocalDirectory:
    return LocalDirectory(tmp_path, ("jobs", "3"))


@pytest.fixture
def follower(directory: LocalDirectory) -> Follower:
    return Follower(directory)


def event_file(directory: Path) -> Path:
    (path,) = directory.glob("*tfevents*")
    return path


def test_what_was_there_before_is_somebody_elses(place: Path, directory: LocalDirectory) -> None:
    """The same job directory as that of an earlier job."""
    EventWriter(place, Clock(500)).scalar("acc", 0.25, 1)
    follower = Follower(directory, since=1000.0)
    assert follower.look() == {}
    EventWriter(place / "eval", Clock(1000)).scalar("acc", 0.5, 1)
    assert follower.look() == {"eval:acc": {1: 0.5}}


def test_nothing_but_plain_files_below_the_directory_is_read(
    place: Path, tmp_path: Path, follower: Follower, clock: Clock
) -> None:
    """A program can put anything there: links out of it, pipes, other names of other files."""
    EventWriter(tmp_path / "secret", clock).scalar("acc", 0.25, 1)
    secret = event_file(tmp_path / "secret")
    place.mkdir(parents=True)
    (place / "linked").symlink_to(secret.parent)
    (place / "a.tfevents").symlink_to(secret)
    os.link(secret, place / "b.tfevents")
    os.mkfifo(place / "c.tfevents")
    (place / "d.tfevents").mkdir()
    assert follower.look() == {}


def test_a_link_in_the_place_of_the_directory_is_not_followed(
    tmp_path: Path, place: Path, follower: Follower, clock: Clock
) -> None:
    EventWriter(tmp_path / "secret", clock).scalar("acc", 0.25, 1)
    place.parent.mkdir()
    place.symlink_to(tmp_path / "secret")
    assert follower.look() == {}


def test_depth_is_bounded(place: Path, follower: Follower, clock: Clock) -> None:
    EventWriter(place / "/".join("d" * 20), clock).scalar("acc", 0.5, 1)
    EventWriter(place / "/".join("e" * 21), clock).scalar("acc", 0.5, 1)
    assert list(follower.look()) == ["/".join("d" * 20) + ":acc"]


class Vanishing:
    """Files that are gone before they can be read."""

    def files(self, met: Met) -> Iterator[EventFile]:
        del met
        yield EventFile("a.tfevents", "1")
        yield EventFile("b.tfevents", "2")

    def open(self, file: EventFile) -> BinaryIO:
        if file.path.startswith("a"):
            raise FileNotFoundError(file.path)
        return io.BytesIO(b"no records at all, and long enough")


def test_files_that_vanish_or_are_no_event_files() -> None:
    assert Follower(Vanishing()).look() == {}
