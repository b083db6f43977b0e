"""Event files that are read on by what is stored of them alone, and directories of them that are somebody
else's to damage (facts/experiments#curves)."""

import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.programs.event_writer import EventWriter, field, framed
from tests.summary_writers import GOLDEN, WRITERS
from trainshed.summaries import reading
from trainshed.summaries.directories import LocalDirectory
from trainshed.summaries.reading import Directory, EventFile, FileProgress, read_on, run_of

BEGUN = 1000.0


class Clock:
    """Seconds; one more at each look."""

    def __init__(self, at: float = BEGUN) -> None:
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


class Reader:
    """What a service has of a directory."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.known: dict[str, FileProgress] = {}
        #: Run, tag, step and value, in the order in which they were read.
        self.points: list[tuple[str, str, int, float]] = []

    def read(self, since: float = BEGUN) -> list[tuple[str, int, float]]:
        """Of the new points tag, step and value."""
        before = len(self.points)
        for piece in read_on(self.directory, self.known, since):
            run = run_of(piece.progress.path)
            self.points += [
                (run, scalar.tag, scalar.step, scalar.value) for scalar in piece.scalars
            ]
            self.known[piece.progress.path] = piece.progress
        return [point[1:] for point in self.points[before:]]

    def curves(self) -> dict[str, dict[int, float]]:
        """All that was read until now, by run and tag, then by step."""
        curves: dict[str, dict[int, float]] = {}
        for run, tag, step, value in self.points:
            curves.setdefault(f"{run}:{tag}", {})[step] = value
        return curves


@pytest.fixture
def directory(tmp_path: Path) -> Counted:
    return Counted(tmp_path, ())


@pytest.fixture
def reader(directory: Counted) -> Reader:
    return Reader(directory)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def event_file(directory: Path) -> Path:
    (path,) = directory.glob("*tfevents*")
    return path


@given(cuts=st.lists(st.integers(0, 400), max_size=6).map(sorted))
def test_a_file_may_end_anywhere_while_it_is_written(cuts: list[int], whole: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "events.out.tfevents.1"
        reader = Reader(LocalDirectory(Path(place), ()))
        for cut in [*cuts, len(whole)]:
            path.write_bytes(whole[:cut])
            reader.read()
        assert [point[1:] for point in reader.points] == [("acc", n, n / 8) for n in range(4)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("whole")
    writer = EventWriter(place, Clock())
    for step in range(4):
        writer.scalar("acc", step / 8, step)
    return event_file(place).read_bytes()


def test_a_file_that_begins_otherwise_is_read_anew_and_those_behind_it_too(
    tmp_path: Path, reader: Reader, clock: Clock
) -> None:
    """What was written later comes later again."""
    first = EventWriter(tmp_path, clock)
    first.scalar("acc", 1, 1)
    path = event_file(tmp_path)
    EventWriter(tmp_path / "other", clock).scalar("acc", 9, 9)
    second = tmp_path / f"{path.name}.v2"
    written = EventWriter(tmp_path / "scratch", clock)
    written.scalar("acc", 2, 1)
    event_file(tmp_path / "scratch").rename(second)
    (tmp_path / "scratch").rmdir()
    assert reader.read() == [("acc", 1, 1), ("acc", 1, 2), ("acc", 9, 9)]
    another = EventWriter(tmp_path / "scratch", clock)
    another.scalar("acc", 3, 1)
    another.scalar("acc", 3, 2)
    event_file(tmp_path / "scratch").replace(path)
    (tmp_path / "scratch").rmdir()
    assert reader.read() == [("acc", 1, 3), ("acc", 2, 3), ("acc", 1, 2)]


def test_a_file_that_got_shorter_is_read_anew(tmp_path: Path, reader: Reader, clock: Clock) -> None:
    writer = EventWriter(tmp_path, clock)
    writer.scalar("acc", 1, 1)
    kept = event_file(tmp_path).read_bytes()
    writer.scalar("acc", 2, 2)
    assert len(reader.read()) == 2
    event_file(tmp_path).write_bytes(kept)
    assert reader.read() == [("acc", 1, 1)]


def test_what_others_left_is_not_read(tmp_path: Path, directory: Counted, reader: Reader) -> None:
    old = EventWriter(tmp_path / "old", Clock(10.0))
    old.scalar("acc", 1, 1)
    os.utime(event_file(tmp_path / "old"), (20.0, 20.0))
    live = EventWriter(tmp_path / "live", Clock(BEGUN - 4))
    for step in range(1, 6):
        live.scalar("acc", step, step)
    assert reader.read() == [("acc", step, step) for step in (2, 3, 4, 5)]
    assert directory.opened == 1, "nobody has written to the first since then"


def test_names_that_are_no_text_and_files_beyond_the_limit_are_passed_over(
    tmp_path: Path, reader: Reader, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("b", "c", "d"):
        EventWriter(tmp_path / run, clock).scalar("acc", 1, 1)
    (tmp_path / "b").rename(tmp_path / os.fsdecode(b"\xff"))
    monkeypatch.setattr(reading, "MAX_FILES", 1)
    assert len(reader.read()) == 1
    assert [point[0] for point in reader.points] == ["c"]


@pytest.mark.parametrize("name", WRITERS)
def test_what_the_libraries_write(tmp_path: Path, reader: Reader, name: str) -> None:
    """Histograms, texts and graphs beside it are passed over."""
    (tmp_path / f"{name}.tfevents").write_bytes((GOLDEN / f"{name}.tfevents").read_bytes())
    reader.read(since=0.0)
    curves = reader.curves()
    expected = {f":{tag}": values for tag, values in WRITERS[name].scalars.items()}
    assert {curve: curves[curve] for curve in expected} == expected
    assert not {":weights", ":said", ":vector"} & curves.keys()


def test_damage_ends_a_file_and_its_repair_goes_on(
    tmp_path: Path, reader: Reader, clock: Clock
) -> None:
    writer = EventWriter(tmp_path, clock)
    writer.scalar("acc", 1, 1)
    path = event_file(tmp_path)
    at = path.stat().st_size
    writer.scalar("acc", 2, 2)
    right = path.read_bytes()
    path.write_bytes(right[:at] + b"\0" * (len(right) - at))
    assert reader.read() == [("acc", 1, 1)]
    path.write_bytes(right)
    assert reader.read() == [("acc", 2, 2)]


def test_records_of_more_scalars_than_can_be_held_are_passed_over(
    tmp_path: Path, reader: Reader, clock: Clock
) -> None:
    EventWriter(tmp_path, clock).scalar("acc", 1, 1)
    with event_file(tmp_path).open("ab") as file:
        value = field(1, field(1, b"a") + b"\x15\0\0\0\0")
        file.write(framed(b"\x09" + b"\0" * 8 + field(5, value * 150_000)))
    EventWriter(tmp_path / "b", clock).scalar("acc", 2, 2)
    assert reader.read() == [("acc", 1, 1), ("acc", 2, 2)]


def test_nothing_but_plain_files_below_the_directory_is_read(tmp_path: Path, clock: Clock) -> None:
    """A program can put anything there: links out of it, pipes, other names of other files."""
    EventWriter(tmp_path / "secret", clock).scalar("acc", 0.25, 1)
    secret, place = event_file(tmp_path / "secret"), tmp_path / "jobs" / "3"
    place.mkdir(parents=True)
    (place / "linked").symlink_to(secret.parent)
    (place / "a.tfevents").symlink_to(secret)
    os.link(secret, place / "b.tfevents")
    os.mkfifo(place / "c.tfevents")
    (place / "d.tfevents").mkdir()
    (tmp_path / "jobs" / "4").symlink_to(tmp_path / "secret")
    for job in ("3", "4"):
        assert Reader(LocalDirectory(tmp_path, ("jobs", job))).read() == []


def test_depth_is_bounded(tmp_path: Path, reader: Reader, clock: Clock) -> None:
    for name, depth in (("d", 20), ("e", 21)):
        EventWriter(tmp_path / "/".join(name * depth), clock).scalar("acc", 0.5, 1)
    reader.read()
    assert [point[0] for point in reader.points] == ["/".join("d" * 20)]


def test_a_file_that_cannot_be_read_now_hides_no_other(
    tmp_path: Path, reader: Reader, clock: Clock
) -> None:
    for run in ("a", "b"):
        EventWriter(tmp_path / run, clock).scalar("acc", 0.5, 1)
    opens = [PermissionError("a"), event_file(tmp_path / "b").open("rb")]
    with patch.object(Counted, "open", side_effect=opens), pytest.raises(PermissionError):
        reader.read()
    assert reader.curves() == {"b:acc": {1: 0.5}}
    reader.read()
    assert reader.curves() == {"b:acc": {1: 0.5}, "a:acc": {1: 0.5}}


class Vanishing:
    """Files that are gone before they can be read."""

    def files(self) -> Iterator[EventFile]:
        yield EventFile("a.tfevents", "1", 1.0)
        yield EventFile("b.tfevents", "2", 2.0)

    def open(self, file: EventFile) -> BinaryIO:
        if file.path.startswith("a"):
            raise FileNotFoundError(file.path)
        return io.BytesIO(b"no records at all, and long enough")


def test_files_that_vanish_or_are_no_event_files() -> None:
    assert Reader(Vanishing()).read() == []
