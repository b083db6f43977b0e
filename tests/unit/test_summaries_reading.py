"""Incremental reading of event files in untrusted directories (facts/experiments#curves)."""

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

from tests.e2e.programs.event_writer import EventWriter, field, frame_record
from tests.summary_writers import GOLDEN, WRITERS
from trainshed.summaries import reading
from trainshed.summaries.directories import LocalDirectory
from trainshed.summaries.reading import Directory, EventFile, FileProgress, read_new_data, run_of

BEGUN = 1000.0


class TickingClock:
    """A clock that advances by one second per reading."""

    def __init__(self, at: float = BEGUN) -> None:
        self.at = at

    def __call__(self) -> float:
        self.at += 1
        return self.at


class CountingDirectory(LocalDirectory):
    """Counts the files that are opened."""

    opened = 0

    def open(self, file: EventFile) -> BinaryIO:
        self.opened += 1
        return super().open(file)


class StoredReader:
    """The stored progress and points of a directory."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.known: dict[str, FileProgress] = {}
        #: Run, tag, step and value, in reading order.
        self.points: list[tuple[str, str, int, float]] = []

    def read(self, since: float = BEGUN) -> list[tuple[str, int, float]]:
        """Return tag, step and value of the new points."""
        before = len(self.points)
        for piece in read_new_data(self.directory, self.known, since):
            run = run_of(piece.progress.path)
            self.points += [(run, scalar.tag, scalar.step, scalar.value) for scalar in piece.scalars]
            self.known[piece.progress.path] = piece.progress
        return [point[1:] for point in self.points[before:]]

    def curves(self) -> dict[str, dict[int, float]]:
        """Return all values read so far, by run and tag, then by step."""
        curves: dict[str, dict[int, float]] = {}
        for run, tag, step, value in self.points:
            curves.setdefault(f"{run}:{tag}", {})[step] = value
        return curves


@pytest.fixture
def directory(tmp_path: Path) -> CountingDirectory:
    return CountingDirectory(tmp_path, ())


@pytest.fixture
def reader(directory: CountingDirectory) -> StoredReader:
    return StoredReader(directory)


@pytest.fixture
def clock() -> TickingClock:
    return TickingClock()


def event_file(directory: Path) -> Path:
    (path,) = directory.glob("*tfevents*")
    return path


@given(cuts=st.lists(st.integers(0, 400), max_size=6).map(sorted))
def test_event_file_is_read_correctly_if_it_ends_at_any_byte_during_a_write(
    cuts: list[int], complete_file: bytes
) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "events.out.tfevents.1"
        reader = StoredReader(LocalDirectory(Path(place), ()))
        for cut in [*cuts, len(complete_file)]:
            path.write_bytes(complete_file[:cut])
            reader.read()
        assert [point[1:] for point in reader.points] == [("acc", n, n / 8) for n in range(4)]


@pytest.fixture(scope="module")
def complete_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("whole")
    writer = EventWriter(place, TickingClock())
    for step in range(4):
        writer.scalar("acc", step / 8, step)
    return event_file(place).read_bytes()


def test_replaced_event_file_and_all_later_files_are_read_again(
    tmp_path: Path, reader: StoredReader, clock: TickingClock
) -> None:
    """The newest value of a step wins, so values of later files must be read after the values of the replaced
    file."""
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


def test_shortened_event_file_is_read_from_the_start(
    tmp_path: Path, reader: StoredReader, clock: TickingClock
) -> None:
    writer = EventWriter(tmp_path, clock)
    writer.scalar("acc", 1, 1)
    kept = event_file(tmp_path).read_bytes()
    writer.scalar("acc", 2, 2)
    assert len(reader.read()) == 2
    event_file(tmp_path).write_bytes(kept)
    assert reader.read() == [("acc", 1, 1)]


def test_event_files_of_earlier_programs_are_not_read(
    tmp_path: Path, directory: CountingDirectory, reader: StoredReader
) -> None:
    old = EventWriter(tmp_path / "old", TickingClock(10.0))
    old.scalar("acc", 1, 1)
    os.utime(event_file(tmp_path / "old"), (20.0, 20.0))
    live = EventWriter(tmp_path / "live", TickingClock(BEGUN - 4))
    for step in range(1, 6):
        live.scalar("acc", step, step)
    assert reader.read() == [("acc", step, step) for step in (2, 3, 4, 5)]
    assert directory.opened == 1, "nobody has written to the first since then"


def test_event_files_with_undecodable_names_or_above_the_file_limit_are_skipped(
    tmp_path: Path, reader: StoredReader, clock: TickingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("b", "c", "d"):
        EventWriter(tmp_path / run, clock).scalar("acc", 1, 1)
    (tmp_path / "b").rename(tmp_path / os.fsdecode(b"\xff"))
    monkeypatch.setattr(reading, "MAX_FILES", 1)
    assert len(reader.read()) == 1
    assert [point[0] for point in reader.points] == ["c"]


@pytest.mark.parametrize("name", WRITERS)
def test_scalars_in_event_files_of_common_libraries_are_read(
    tmp_path: Path, reader: StoredReader, name: str
) -> None:
    """Histograms, texts and graphs in the same files are skipped."""
    (tmp_path / f"{name}.tfevents").write_bytes((GOLDEN / f"{name}.tfevents").read_bytes())
    reader.read(since=0.0)
    curves = reader.curves()
    expected = {f":{tag}": values for tag, values in WRITERS[name].scalars.items()}
    assert {curve: curves[curve] for curve in expected} == expected
    assert not {":weights", ":said", ":vector"} & curves.keys()


def test_reading_stops_at_a_damaged_record_and_continues_after_its_repair(
    tmp_path: Path, reader: StoredReader, clock: TickingClock
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


def test_oversized_event_records_are_skipped(
    tmp_path: Path, reader: StoredReader, clock: TickingClock
) -> None:
    EventWriter(tmp_path, clock).scalar("acc", 1, 1)
    with event_file(tmp_path).open("ab") as file:
        value = field(1, field(1, b"a") + b"\x15\0\0\0\0")
        file.write(frame_record(b"\x09" + b"\0" * 8 + field(5, value * 150_000)))
    EventWriter(tmp_path / "b", clock).scalar("acc", 2, 2)
    assert reader.read() == [("acc", 1, 1), ("acc", 2, 2)]


def test_links_and_special_files_are_not_read_as_event_files(tmp_path: Path, clock: TickingClock) -> None:
    """A program can create anything there: links out of the directory (path traversal), pipes, hard links."""
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
        assert StoredReader(LocalDirectory(tmp_path, ("jobs", job))).read() == []


def test_event_files_deeper_than_the_depth_limit_are_not_read(
    tmp_path: Path, reader: StoredReader, clock: TickingClock
) -> None:
    for name, depth in (("d", 20), ("e", 21)):
        EventWriter(tmp_path / "/".join(name * depth), clock).scalar("acc", 0.5, 1)
    reader.read()
    assert [point[0] for point in reader.points] == ["/".join("d" * 20)]


def test_unreadable_event_file_does_not_hide_values_of_readable_files(
    tmp_path: Path, reader: StoredReader, clock: TickingClock
) -> None:
    for run in ("a", "b"):
        EventWriter(tmp_path / run, clock).scalar("acc", 0.5, 1)
    opens = [PermissionError("a"), event_file(tmp_path / "b").open("rb")]
    with patch.object(CountingDirectory, "open", side_effect=opens), pytest.raises(PermissionError):
        reader.read()
    assert reader.curves() == {"b:acc": {1: 0.5}}
    reader.read()
    assert reader.curves() == {"b:acc": {1: 0.5}, "a:acc": {1: 0.5}}


class VanishingFiles:
    """A directory whose files are deleted before they can be read."""

    def files(self) -> Iterator[EventFile]:
        yield EventFile("a.tfevents", "1", 1.0)
        yield EventFile("b.tfevents", "2", 2.0)

    def open(self, file: EventFile) -> BinaryIO:
        if file.path.startswith("a"):
            raise FileNotFoundError(file.path)
        return io.BytesIO(b"no records at all, and long enough")


def test_deleted_event_files_and_files_of_unsupported_types_are_skipped() -> None:
    assert StoredReader(VanishingFiles()).read() == []
