"""Directories of event files that grow, are rewritten, and are somebody else's to damage."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.e2e.programs.event_writer import EventWriter
from tests.unit.summaries import Clock, Counted
from trainshed.summaries import directories
from trainshed.summaries.directories import Follower, Point
from trainshed.summaries.reading import EventFile, Met


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / "3"


@pytest.fixture
def directory(tmp_path: Path) -> Counted:
    return Counted(tmp_path, ("jobs", "3"))


@pytest.fixture
def follower(directory: Counted) -> Follower:
    return Follower(directory, "acc")


def values(follower: Follower, run: str) -> dict[int, float]:
    return {step: point.value for step, point in sorted(follower.runs().get(run, {}).items())}


def event_file(directory: Path) -> Path:
    (path,) = directory.glob("*tfevents*")
    return path


def test_what_was_there_before_is_somebody_elses(place: Path, directory: Counted) -> None:
    """The same job directory as that of an earlier job."""
    EventWriter(place, Clock(500)).scalar("acc", 0.25, 1)
    follower = Follower(directory, "acc", since=1000.0)
    follower.look()
    assert (follower.tags, follower.runs()) == (set(), {})
    EventWriter(place / "eval", Clock(1000)).scalar("acc", 0.5, 1)
    follower.look()
    assert follower.runs() == {"eval": {1: Point(1003.0, 0.5)}}


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
    follower.look()
    assert (follower.tags, follower.runs()) == (set(), {})


def test_a_link_in_the_place_of_the_directory_is_not_followed(
    tmp_path: Path, place: Path, follower: Follower, clock: Clock
) -> None:
    EventWriter(tmp_path / "secret", clock).scalar("acc", 0.25, 1)
    place.parent.mkdir()
    place.symlink_to(tmp_path / "secret")
    follower.look()
    assert follower.tags == set()


def test_depth_is_bounded(place: Path, follower: Follower, clock: Clock) -> None:
    EventWriter(place / "/".join("d" * 20), clock).scalar("acc", 0.5, 1)
    EventWriter(place / "/".join("e" * 21), clock).scalar("acc", 0.5, 1)
    follower.look()
    assert list(follower.runs()) == ["/".join("d" * 20)]


def test_one_look_reads_so_much_and_the_next_goes_on(
    place: Path, follower: Follower, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_MOST_SCALARS", 10)
    for run in ("a", "b"):
        writer = EventWriter(place / run, clock)
        for step in range(10):
            writer.scalar("acc", 0.5, step)
    assert [follower.look() for _ in range(3)] == [False, False, True]
    assert all(len(points) == 10 for points in follower.runs().values())


def test_points_are_bounded_and_the_last_is_kept(
    place: Path, follower: Follower, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_MOST_POINTS", 10)
    writer = EventWriter(place, clock)
    for step in range(200):
        writer.scalar("acc", step / 256, step)
        if step % 7 == 0:
            follower.look()
    follower.look()
    points = values(follower, "")
    assert 10 <= len(points) <= 21
    assert max(points) == 199


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
    follower = Follower(Vanishing(), "acc")
    assert follower.look()
    assert follower.tags == set()
