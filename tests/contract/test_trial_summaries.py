"""Summaries of running trials, over a real directory and the kernel's own word of what changes in it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.contract.test_job_curves import clock
from tests.e2e.programs.event_writer import EventWriter
from tests.unit.jobs import CREATED, job
from trainshed.controller import trial_summaries
from trainshed.controller.directory_watches import DirectoryWatches
from trainshed.controller.trial_summaries import TrialSummaries
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.replica.system import kernel
from trainshed.summaries.directories import LocalDirectory
from trainshed.summaries.reading import Directory

PARENT = JobUid(1)
TRIAL = replace(job(output="gs://b/out/3"), attempt=1)
OVER = replace(TRIAL, state=JobState.SUCCEEDED)


class Places:
    """One place, whatever is asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.asked: list[tuple[str, str]] = []

    def directory(self, uri: str, project: str) -> Directory | None:
        self.asked.append((uri, project))
        return LocalDirectory(self._root, ("out", "3"))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_summaries, "_SPAN", 0.0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out" / "3"


class Following:
    """The summaries of one trial, and who waits to be woken."""

    def __init__(self, root: Path) -> None:
        self.woken = asyncio.Event()
        self.places = Places(root)
        self.summaries = TrialSummaries(self.places, lambda: CREATED, self._wake)

    def _wake(self, uid: JobUid) -> None:
        assert uid == PARENT
        self.woken.set()

    async def look(self, job: Job = TRIAL) -> dict[int, float]:
        """The values of `acc`, by step."""
        curves = await self.summaries.of(PARENT, job, "acc")
        assert curves is not None
        return {step: point.value for step, point in curves.points.items()}

    async def news(self) -> dict[int, float]:
        """The same once it is woken."""
        await asyncio.wait_for(self.woken.wait(), 30)
        self.woken.clear()
        return await self.look()


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Following]:
    yield Following(tmp_path)


async def test_every_write_wakes(following: Following, place: Path) -> None:
    """From before the directory is there, in directories that appear, by appending and by putting another in
    its place."""
    assert await following.look() == {}
    writer = EventWriter(place / "deep" / "eval", clock)
    news = await following.news()
    writer.scalar("acc", 0.25, 1)
    while news != {1: 0.25}:
        news = await following.news()
    (path,) = (place / "deep" / "eval").iterdir()
    other = EventWriter(place.parents[1] / "staging", clock)
    other.scalar("acc", 0.5, 2)
    (staged,) = (place.parents[1] / "staging").iterdir()
    staged.replace(path)
    while news != {2: 0.5}:
        news = await following.news()
    following.summaries.close()
    assert following.places.asked == [("gs://b/out/3", "demo")]


def test_other_files_wake_nobody(tmp_path: Path) -> None:
    """A program that writes checkpoints all the time costs nothing."""

    async def play() -> list[str]:
        woken: list[str] = []
        last = asyncio.Event()

        def changed(key: str) -> None:
            woken.append(key)
            if key == "events":
                last.set()

        watches = DirectoryWatches[str]("tfevents", changed)
        watches.begin()
        for name in ("checkpoints", "events"):
            (tmp_path / name).mkdir()
            handle = os.open(tmp_path / name, os.O_RDONLY)
            assert watches.watch(handle, name) is not None
            os.close(handle)
        (tmp_path / "checkpoints" / "model.ckpt-1").write_bytes(b"weights")
        EventWriter(tmp_path / "events", clock)
        # What the kernel has to say of the first is said before this.
        await asyncio.wait_for(last.wait(), 30)
        watches.close()
        return woken

    assert set(asyncio.run(play())) == {"events"}


async def test_a_trial_that_is_over_is_looked_at_for_the_last_time(
    following: Following, place: Path
) -> None:
    """Whoever was woken or not: all is read that there is when its job has ended."""
    assert await following.look() == {}
    EventWriter(place, clock).scalar("acc", 0.25, 1)
    assert await following.look(OVER) == {1: 0.25}
    following.summaries.forget(TRIAL.uid)
    following.summaries.close()


async def test_where_nobody_says_what_changes_it_is_looked_at_now_and_then(
    following: Following, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may have only so many watches."""

    def refuse(*_: object) -> int:
        raise OSError("no inotify left")

    monkeypatch.setattr(kernel, "inotify_handle", refuse)
    monkeypatch.setattr(trial_summaries, "_UNWATCHED", 0.01)
    assert await following.look() == {}
    EventWriter(place, clock).scalar("acc", 0.25, 1)
    values: dict[int, float] = {}
    while values != {1: 0.25}:
        values = await following.news()
    following.summaries.close()


async def test_a_place_that_cannot_be_read_is_tried_again(
    following: Following, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store elsewhere that does not answer, for a while."""
    monkeypatch.setattr(trial_summaries, "_UNWATCHED", 0.01)
    root = place.parents[1]
    away = root.rename(root.with_name("away"))
    assert await following.look() == {}
    away.rename(root)
    EventWriter(place, clock).scalar("acc", 0.25, 1)
    values: dict[int, float] = {}
    while values != {1: 0.25}:
        values = await following.news()
    following.summaries.close()


async def test_what_is_left_open_is_nothing(following: Following, place: Path) -> None:
    before = set(kernel.open_handles())
    EventWriter(place, clock).file.close()
    await following.look()
    following.summaries.close()
    assert len(set(kernel.open_handles()) - before) <= 1, "the listing itself"


async def test_a_trial_without_a_directory_has_no_summaries(following: Following) -> None:
    assert await following.summaries.of(PARENT, job(), "acc") is None
    assert following.places.asked == []


def test_on_the_way_to_a_place_only_its_own_directory_counts(tmp_path: Path) -> None:
    """Others may come and go in the bucket: who waits is not woken by them."""

    async def play() -> list[str]:
        woken: list[str] = []
        watches = DirectoryWatches[str]("tfevents", woken.append)
        watches.begin()
        handle = os.open(tmp_path, os.O_RDONLY)
        assert watches.watch(handle, "job 1", "logs-1") is not None
        assert watches.watch(handle, "job 2", "logs-2") is not None
        os.close(handle)
        (tmp_path / "logs-3").mkdir()
        (tmp_path / "tfevents").touch()
        (tmp_path / "logs-2").mkdir()
        watches.hear()
        watches.close()
        return woken

    assert asyncio.run(play()) == ["job 2"]
