"""Where slots lie, and how they go out of sight."""

import subprocess
from pathlib import Path

import pytest

from trainshed.core.names import JobUid
from trainshed.engines.local.layout import Layout
from trainshed.replica.system import kernel

JOB = JobUid(7)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.make()
    return made


def test_a_job_goes_out_of_sight_with_its_last_attempt(layout: Layout) -> None:
    for attempt in (1, 2):
        layout.write(JOB, attempt, ())
    layout.discard(JOB, 1)
    assert list(layout.attempts()) == [(JOB, 2)]
    layout.discard(JOB, 2)
    assert not (layout.slots / str(JOB)).exists()
    # All of it is to be deleted later: each in one piece.
    assert len(list(layout.trash.iterdir())) == 2


def test_nothing_is_started_on_a_disk_that_is_read_only(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    try:
        kernel.mount("tmpfs", str(place), "tmpfs", 0, "size=4m")
    except OSError as error:
        pytest.skip(f"this user may not mount anything: {error}")
    try:
        layout = Layout(place)
        layout.make()
        layout.require_room()
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, timeout=20)
        with pytest.raises(OSError, match="Read-only"):
            layout.require_room()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=20)
