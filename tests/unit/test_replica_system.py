"""Tests of system calls that Python lacks, made by child processes."""

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
def test_helper_process_exits_if_the_parent_died_before_the_death_signal_was_set(parent_lives: bool) -> None:
    """The kernel sends the death signal only if the parent dies after the helper has requested the signal."""
    # The output ends when the helper exits.
    done = subprocess.run(
        [sys.executable, "-c", _HELPED, str(parent_lives)], stdout=subprocess.PIPE, check=True
    )
    assert done.stdout == (b"goes on" if parent_lives else b"")
