"""Tests of the notes about a replica's disk (spec/machines#disk), with simulated sizes and times."""

from collections.abc import Callable

import pytest

from trainshed.replica import protocol
from trainshed.replica.observe import notes
from trainshed.replica.observe.disk import NEARLY_FULL, NO_ROOM, ROOM_AGAIN, Disk
from trainshed.replica.observe.growing_files import DiskRetries
from trainshed.replica.system import loop, trees

GB = 1 << 30
EVERY = 10.0


class Clock(loop.Loop):
    """A simulated event loop, whose timers run when the test calls `next`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, Callable[[], None]]] = []

    def after(self, seconds: float, handler: Callable[[], None]) -> None:
        self.asked.append((seconds, handler))

    def next(self) -> float:
        """Run the only scheduled timer, and return its delay."""
        ((seconds, handler),) = self.asked
        self.asked.clear()
        handler()
        return seconds


class Tree:
    """A simulated `TreeSize` with a fixed size, which needs several measurements."""

    def __init__(self, size: int, moments: int) -> None:
        self.found = 0
        self._size, self._moments = size, moments

    def measure(self, seconds: float) -> bool:
        assert seconds < 0.03, "the program's output, or its end, waits"
        self._moments -= 1
        self.found = self._size if self._moments <= 0 else self.found + 1
        return self._moments <= 0

    def close(self) -> None: ...


class World:
    """A replica with a disk of 100 GB on a file system of 1,000 GB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int = 100 * GB) -> None:
        self.size, self.moments, self.free, self.total = 0, 1, 500 * GB, 1000 * GB
        self.trees: list[Tree] = []
        self.notes: list[tuple[str, str, str]] = []
        self.clock = Clock()
        monkeypatch.setattr(trees, "TreeSize", self._tree)
        self.disk = Disk(
            "files",
            limit=limit,
            every=EVERY,
            events=self.clock,
            note=self._note,
            free_space=lambda path: (self.free, self.total),
        )
        self.disk.start()

    def _tree(self, top: str) -> Tree:
        assert top == "files"
        self.trees.append(Tree(self.size, self.moments))
        return self.trees[-1]

    def _note(self, name: str, severity: str, text: str) -> None:
        self.notes.append((name, severity, text))

    def measure(self, size: int = 0, *, free: int = 500 * GB) -> list[str]:
        """Run the next measurement with these sizes, and return the names of the new notes."""
        self.size, self.free = size, free
        self.notes.clear()
        self.clock.next()
        return [name for name, _, _ in self.notes]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_note_about_90_percent_disk_use_is_written_once(world: World) -> None:
    assert world.measure(89 * GB) == []
    assert world.measure(int(90.5 * GB)) == [NEARLY_FULL]
    ((_, severity, text),) = world.notes
    assert severity == "WARNING" and "bootDiskSizeGb" in text
    assert text.startswith("its files use 90.5 GB of the 100 GB of its disk. ")
    assert "On the public service, writes fail when it is full" in text
    assert [world.measure(size * GB) for size in (120, 50, 91, 110)] == [[], [], [], []]


def test_low_disk_space_is_noted_once_and_again_after_space_was_free(world: World) -> None:
    assert world.measure(free=60 * GB) == []
    assert world.measure(free=49 * GB) == [NO_ROOM]
    assert "49 GB free of 1000 GB" in world.notes[0][2]
    assert 'fail with "No space left on device"' in world.notes[0][2]
    # Changes around the limit cause no further notes.
    assert [world.measure(free=free * GB) for free in (55, 20, 51)] == [[], [], []]
    assert world.measure(free=100 * GB) == [ROOM_AGAIN]
    assert world.notes[0][1] == "INFO"
    assert world.measure(free=2 * GB) == [NO_ROOM]


def test_repeated_disk_notes_are_limited_in_number() -> None:
    kept: list[protocol.Message] = []
    retries = DiskRetries(loop.Loop(), lambda _: None)
    notebook = notes.Notes(kept.append, lambda _: None, retries)
    for _ in range(100):
        notebook.add(NO_ROOM, notes.WARNING, "it is full")
        notebook.add(ROOM_AGAIN, notes.INFO, "it is not")
    assert len(kept) == 20


def test_measuring_many_files_uses_one_percent_of_a_processor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement uses at most a hundredth of a processor: each step is followed by a pause of a hundred
    times its length."""
    now = iter(range(10**6))
    monkeypatch.setattr("time.process_time", lambda: next(now) * 0.002)
    # A slow measurement, as on a busy machine, is followed by a longer pause.
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    world.moments = 5
    assert world.measure(7 * GB) == []
    rests = [world.clock.next() for _ in range(4)]
    assert rests == [pytest.approx(0.2, rel=0.01)] * 4
    assert world.disk.used == 7 * GB
    assert world.clock.next() == EVERY


def test_disk_is_measured_when_a_program_ends(world: World) -> None:
    """A program may fill its disk and fail immediately. The note about the full disk precedes the end of the
    program."""
    world.size, world.free = 105 * GB, 0
    world.disk.end()
    assert [name for name, _, _ in world.notes] == [NO_ROOM, NEARLY_FULL]
    assert world.disk.used == 105 * GB
    world.clock.next()
    assert world.clock.asked == [], "nobody looks any more"
