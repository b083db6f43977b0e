"""Event files that are read on by what is stored of them alone (facts/experiments#curves)."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.programs.event_writer import EventWriter, field, framed
from tests.summary_writers import GOLDEN, WRITERS
from tests.unit.summaries import Clock, Counted
from trainshed.summaries import reading
from trainshed.summaries.reading import FileProgress, read_on, run_of

BEGUN = 1000.0


def ignore(handle: int, awaited: str) -> None:
    """Nobody watches."""


class Reader:
    """What a service that is killed now and then has of a directory."""

    def __init__(self, place: Path) -> None:
        self.directory = Counted(place, ())
        self.known: dict[str, FileProgress] = {}
        #: Run, tag, step and value, in the order in which they were read.
        self.points: list[tuple[str, str, int, float]] = []

    def read(self, pieces: int = 2**30, since: float = BEGUN) -> list[tuple[str, int, float]]:
        """Of the new points tag, step and value. `pieces`: it is killed after so many."""
        before = len(self.points)
        for number, piece in enumerate(read_on(self.directory, self.known, since, ignore)):
            if number == pieces:
                break
            run = run_of(piece.progress.path)
            self.points += [
                (run, scalar.tag, scalar.step, scalar.value) for scalar in piece.scalars
            ]
            self.known[piece.progress.path] = piece.progress
        return [point[1:] for point in self.points[before:]]


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


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
        reader = Reader(Path(place))
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


def test_a_file_that_became_shorter_is_read_anew(
    tmp_path: Path, reader: Reader, clock: Clock
) -> None:
    writer = EventWriter(tmp_path, clock)
    writer.scalar("acc", 1, 1)
    kept = event_file(tmp_path).read_bytes()
    writer.scalar("acc", 2, 2)
    assert len(reader.read()) == 2
    event_file(tmp_path).write_bytes(kept)
    assert reader.read() == [("acc", 1, 1)]


def test_a_kill_between_two_pieces_loses_and_doubles_nothing(
    tmp_path: Path, reader: Reader, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_AT_ONCE", 3)
    writer = EventWriter(tmp_path, clock)
    for step in range(10):
        writer.scalar("acc", step, step)
    while reader.read(1):
        pass
    assert [step for _, _, step, _ in reader.points] == list(range(10))


def test_what_others_left_there_is_not_read(tmp_path: Path, reader: Reader) -> None:
    old = EventWriter(tmp_path / "old", Clock(10.0))
    old.scalar("acc", 1, 1)
    os.utime(event_file(tmp_path / "old"), (20.0, 20.0))
    live = EventWriter(tmp_path / "live", Clock(BEGUN - 4))
    for step in range(1, 6):
        live.scalar("acc", step, step)
    assert reader.read() == [("acc", step, step) for step in (2, 3, 4, 5)]
    assert reader.directory.opened == 1, "nobody has written to the first since then"


def test_names_that_are_no_text_and_files_beyond_the_limit_are_passed_over(
    tmp_path: Path, reader: Reader, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("b", "c", "d"):
        EventWriter(tmp_path / run, clock).scalar("acc", 1, 1)
    (tmp_path / "b").rename(tmp_path / os.fsdecode(b"\xff"))
    monkeypatch.setattr(reading, "MOST_FILES", 1)
    assert len(reader.read()) == 1
    assert [point[0] for point in reader.points] == ["c"]


@pytest.mark.parametrize("name", WRITERS)
def test_what_the_libraries_write(tmp_path: Path, reader: Reader, name: str) -> None:
    """Histograms, texts and graphs beside it are passed over."""
    (tmp_path / f"{name}.tfevents").write_bytes((GOLDEN / f"{name}.tfevents").read_bytes())
    points: dict[str, dict[int, float]] = {}
    for tag, step, value in reader.read(since=0.0):
        points.setdefault(tag, {})[step] = value
    expected = WRITERS[name].scalars
    assert {tag: points[tag] for tag in expected} == expected
    assert not {"weights", "said", "vector"} & points.keys()


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
