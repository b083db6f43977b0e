"""What the process table says, asked about this very process and children of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainshed.replica import protocol
from trainshed.replica.system import processes

pytestmark = pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")

TREE = """
import os, sys, time
kept = b'x' * (20 << 20)
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
print('up', flush=True)
os.read(0, 1)
"""


@pytest.fixture
def tree() -> Iterator[int]:
    """A process that has a child, and 20 MB that it shares with it."""
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", TREE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    for child in processes.descendants(process.pid):
        processes.send(child, signal.SIGKILL)
    process.kill()
    process.communicate()


def test_families_are_found_both_ways_parents_first(tree: int) -> None:
    for find in (processes.descendants, processes.family):
        below = find(os.getpid())
        assert tree in below
        (child,) = find(tree)
        assert below.index(tree) < below.index(child)


def test_memory_is_counted_whole_at_first_and_by_shares_then(tree: int) -> None:
    sizes = processes.resident(os.getpid())
    (child,) = processes.family(tree)
    assert min(sizes[tree], sizes[child]) > 20 << 20
    own = processes.own_memory(tree) + processes.own_memory(child)
    assert 20 << 20 < own < 35 << 20


def test_handlers_names_and_death_are_seen(tree: int) -> None:
    assert processes.handles(tree, signal.SIGABRT)
    assert not processes.handles(tree, signal.SIGTERM)
    assert "python" in processes.name(tree)
    assert processes.number_inside(tree) == tree
    assert not processes.is_dying(tree)
    os.kill(tree, signal.SIGKILL)
    os.waitid(os.P_PID, tree, os.WEXITED | os.WNOWAIT)
    assert processes.is_dying(tree)
    assert protocol.process_start(tree) == 0, "a zombie runs nothing"


def test_what_a_child_used_stays_counted_after_its_end() -> None:
    before, _ = processes.used(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    after, _ = processes.used(os.getpid())
    assert after - before > 0.05
