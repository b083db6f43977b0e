"""What an agent that is alone leaves between two attempts: nothing."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainshed.core.names import JobUid
from trainshed.engines.local.hosts_file import MachineHosts
from trainshed.engines.remote.credentials import Credential
from trainshed.engines.remote.messages import AgentDocument
from trainshed.engines.remote.scrubbing import Scrubber, Unclean


class Place:
    """A Pod's files: of its image, its agent, and what the agent was sent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("tmp", "dev/shm", "etc", "var/lib/agents/own/slots", "cache", "data"):
            (root / name).mkdir(parents=True)
        self.image = root / "etc/motd"
        self.hosts = root / "etc/hosts"
        self.own = root / "var/lib/agents/own"
        for path in (self.image, root / "tmp/of-the-image", self.own / "trust.pem"):
            path.write_text("there")
        self.hosts.write_text("10.0.0.1 pod\n")
        time.sleep(0.02)
        document = AgentDocument(
            credential=Credential("a", "h", 1, "n", "", "", ""),
            job_uid=JobUid(1),
            attempt=1,
            node="a",
            address="",
            directory=str(root / "var/lib/agents"),
            lease=1.0,
            hosts_file=str(self.hosts),
            alone=str(root),
            kept=(str(root / "cache"),),
        )
        self.scrubber = Scrubber(document, self.own, time.time())
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "pod")


def test_what_lies_where_everybody_writes_is_removed(place: Place) -> None:
    closed = place.root / "tmp/closed"
    (closed / "inside").mkdir(parents=True)
    closed.chmod(0)
    (place.root / "dev/shm/block").write_text("left")
    (place.root / "tmp/link").symlink_to(place.image)
    (place.own / "slots/7/1").mkdir(parents=True)
    (place.own / "slots/7/1/secret").write_text("left")
    MachineHosts(place.hosts).write([("peer", "10.0.0.2")])
    (place.root / "cache/sent").write_text("for others, too")
    place.scrubber.clear()
    assert [one.name for one in (place.root / "tmp").iterdir()] == ["of-the-image"]
    assert not list((place.root / "dev/shm").iterdir())
    assert not list((place.own / "slots").iterdir())
    assert place.hosts.read_text() == "10.0.0.1 pod\n"
    assert place.image.exists() and (place.root / "cache/sent").exists()
    place.scrubber.clear()


@pytest.mark.parametrize(
    "name",
    ["etc/motd", "etc/added", "data/added", "tmp/of-the-image", "var/lib/agents/own/trust.pem"],
)
def test_what_was_changed_elsewhere_makes_the_place_unclean(place: Place, name: str) -> None:
    before = place.image.stat()
    (place.root / name).write_text("left")
    os.utime(place.root / name, (before.st_atime, before.st_mtime))
    with pytest.raises(Unclean):
        place.scrubber.clear()


def test_so_does_what_is_gone(place: Place) -> None:
    place.image.unlink()
    with pytest.raises(Unclean):
        place.scrubber.clear()


def test_a_process_that_is_not_alone_ends_no_others(place: Place) -> None:
    with pytest.raises(Unclean):
        place.scrubber.end_processes()


_AS_FIRST = """
import os, sys, time
from trainshed.engines.remote.scrubbing import Scrubber
left = os.fork()
if not left:
    os.setsid()
    if os.fork():
        os._exit(0)
    while True:
        time.sleep(1)
os.waitpid(left, 0)
before = [one for one in os.listdir("/proc") if one.isdigit()]
Scrubber.end_processes(None)
print(len(before), [one for one in os.listdir("/proc") if one.isdigit()])
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="NOT TESTED: needs root"
)
def test_no_process_outlives_an_attempt() -> None:
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _AS_FIRST],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stdout == "2 ['1']\n", done.stderr
