"""What is told of a pull, from what podman and docker show of it on a terminal (spec/runtimes#builds:
progress is visible)."""

import pytest

from trainshed.runtimes.images.pull_policy import PullProgress
from trainshed.runtimes.images.tool import ToolFailed

SECOND = 10**9
NAME = "registry.example.org/team/trainer:1"
BASE, CODE = "b3a6c834484e", "90236e47e342"


class Listener:
    """Hears a pull, with a clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 0
        self.told: list[str] = []
        self.progress = PullProgress(NAME, self.told.append, lambda: self.now)

    def hear(self, *lines: str, after: float = 0) -> None:
        self.now += round(after * SECOND)
        for line in lines:
            self.progress.hear(line)


def test_podman_is_told_in_bytes_layers_and_seconds() -> None:
    """spec/runtimes#packages."""
    listener = Listener()
    listener.hear(
        f"Trying to pull {NAME}...",
        "Getting image source signatures",
        f"Copying blob {BASE} [=>------] 1.5MiB / 2.5MiB",
        f"Copying blob {CODE} [--------] 0.0b / 28.6MiB",
    )
    assert listener.told == []
    listener.hear(f"Copying blob {BASE} done  ", after=1)
    # podman 5 shows the speed as well.
    listener.hear(f"Copying blob {CODE} [==>-----] 14.3MiB / 28.6MiB | 4.0 MiB/s", after=3)
    assert listener.told == [f"Pulling {NAME}: 18 MB of 33 MB, 1 of 2 layers, 4 s, 4.4 MB/s."]
    listener.hear(f"Copying blob {CODE} done  ", "Copying config 8031860eaa done", after=1)
    assert listener.progress.summary() == f"{NAME} is pulled: 33 MB in 2 layers, 5.0 s."


def test_docker_is_told_in_the_same_words() -> None:
    """spec/runtimes#images."""
    listener = Listener()
    listener.hear("1: Pulling from team/trainer", f"{BASE}: Already exists")
    listener.hear(f"{CODE}: Pulling fs layer", f"{CODE}: Downloading [==>   ]  15MB/30MB")
    listener.hear(f"{CODE}: Downloading [===>  ]  25MB/30MB", after=4)
    assert listener.told == [f"Pulling {NAME}: 25 MB of 30 MB, 1 of 2 layers, 4 s, 6.2 MB/s."]
    listener.hear(f"{CODE}: Download complete", f"{CODE}: Extracting [=>    ]  1MB/30MB")
    listener.hear("Status: Downloaded newer image", after=1)
    said = f"{NAME} is pulled: 30 MB in 1 layer, 1 layer was here already, 5.0 s."
    assert listener.progress.summary() == said


def test_it_is_told_ever_more_seldom() -> None:
    """spec/runtimes#builds: an hour's pull is a page of the log, not a book."""
    listener = Listener()
    for megabytes in range(3600):
        listener.hear(f"Copying blob {BASE} [--] {megabytes}MB / 3600MB", after=1)
    assert 10 < len(listener.told) < 60
    assert "of 3.6 GB, 0 of 1 layer" in listener.told[-1]


def test_a_standstill_is_told_and_a_long_one_ends_the_pull() -> None:
    """spec/runtimes#builds: a registry that hangs is the service's trouble, which is tried again."""
    listener = Listener()
    listener.hear(f"Copying blob {BASE} [--] 5MB / 10MB")
    for _ in range(20):
        # The tool draws what it has again and again.
        listener.hear(f"Copying blob {BASE} [--] 5MB / 10MB", "", after=1)
    assert listener.told[-1].endswith(
        "5 MB of 10 MB, 0 of 1 layer, 20 s, nothing has come for 20 s."
    )
    with pytest.raises(ToolFailed, match="nothing has come from the registry for 301 seconds"):
        listener.hear("", after=281)


def test_layers_that_are_written_to_the_store_may_take_their_time() -> None:
    """spec/runtimes#builds: a slow disk is no registry that hangs."""
    listener = Listener()
    listener.hear(f"Copying blob {BASE} [--] 5MB / 10MB")
    listener.hear(f"Copying blob {BASE} done", after=5)
    listener.hear("", after=5)
    assert listener.told[-1].endswith(
        "10 MB of 10 MB, 1 of 1 layer, 10 s, being written to the store."
    )
    listener.hear("", after=1000)
