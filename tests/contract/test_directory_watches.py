"""The kernel's own word of what changes in directories."""

import asyncio
import os
from pathlib import Path

from tests.contract.test_job_curves import clock
from tests.e2e.programs.event_writer import EventWriter
from trainshed.controller.directory_watches import DirectoryWatches


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


def test_a_program_that_goes_on_writing_keeps_nobody_hearing(tmp_path: Path) -> None:
    """Issue: the event loop stood still for as long as a program wrote to its event files."""

    async def play() -> int:
        woken: list[str] = []

        def changed(key: str) -> None:
            woken.append(key)
            if len(woken) < 9:
                (tmp_path / f"tfevents.{len(woken)}").touch()

        watches = DirectoryWatches[str]("tfevents", changed)
        watches.begin()
        handle = os.open(tmp_path, os.O_RDONLY)
        watches.watch(handle, "job")
        os.close(handle)
        changed("job")
        watches.hear()
        watches.close()
        return len(woken)

    assert asyncio.run(play()) == 2
