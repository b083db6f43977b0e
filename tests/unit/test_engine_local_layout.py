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


def test_an_attempt_that_is_gone_takes_no_other_with_it(layout: Layout) -> None:
    layout.write(JOB, 2, ())
    layout.discard(JOB, 1)
    layout.discard(JobUid(8), 1)
    assert list(layout.attempts()) == [(JOB, 2)]
    assert not list(layout.trash.iterdir())


def test_jobs_lie_apart_on_a_file_system_that_can_be_told_so(tmp_path: Path) -> None:
    """ext4 looks past all that was deleted nearby for each new file: short jobs would pay for each other."""
    layout = Layout(tmp_path / "data")
    layout.make()
    layout.make()  # Once more changes nothing.
    asked = ["lsattr", "-d", str(layout.slots), str(layout.logs)]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    if told.returncode != 0 or "e" not in told.stdout.split()[0]:
        pytest.skip("not on ext4, which tells of its extents")
    assert [line.split()[0].count("T") for line in told.stdout.splitlines()] == [1, 1]


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
