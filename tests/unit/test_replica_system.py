"""The system calls that Python lacks, made by children of this process."""

import subprocess
import sys

import pytest

_HELPED = """
import os, sys
from trainshed.replica.system import kernel
parent_lives = sys.argv[1] == "True"
gone_read, gone_write = os.pipe()
above = os.getpid()
if os.fork() == 0:
    os.close(gone_write)
    if not parent_lives:
        os.read(gone_read, 1)  # Its parent's end closes with it.
        while os.getppid() == above:
            os.sched_yield()
    kernel.become_helper(above)
    os.write(1, b"goes on")
    os._exit(0)
if parent_lives:
    os.wait()
os._exit(0)
"""


@pytest.mark.parametrize("parent_lives", [True, False])
def test_a_helper_whose_parent_died_before_it_could_ask_ends_at_once(parent_lives: bool) -> None:
    """The kernel tells of a parent's death only who asked for it before."""
    # Its output ends when the helper does.
    done = subprocess.run(
        [sys.executable, "-c", _HELPED, str(parent_lives)], stdout=subprocess.PIPE, check=True
    )
    assert done.stdout == (b"goes on" if parent_lives else b"")
