"""The system calls that Python lacks, made by children of this process."""

import os

import pytest

from trainshed.replica.system import kernel

pytestmark = pytest.mark.skipif(not kernel.LINUX, reason="needs prctl")


@pytest.mark.parametrize("parent_lives", [True, False])
def test_a_helper_whose_parent_died_before_it_could_ask_ends_at_once(parent_lives: bool) -> None:
    """The kernel tells of a parent's death only who asked for it before."""
    gone_read, gone_write = os.pipe()
    said_read, said_write = os.pipe()
    parent = os.fork()
    if parent == 0:
        above = os.getpid()
        if os.fork() == 0:
            os.close(gone_write)
            if not parent_lives:
                os.read(gone_read, 1)  # Its parent's end closes with it.
                while os.getppid() == above:
                    os.sched_yield()
            kernel.help_parent(above)
            os.write(said_write, b"goes on")
            os._exit(0)
        os.close(said_write)
        if parent_lives:
            os.wait()
        os._exit(0)
    for handle in (gone_read, gone_write, said_write):
        os.close(handle)
    os.waitpid(parent, 0)
    with os.fdopen(said_read, "rb") as said:
        assert said.read() == (b"goes on" if parent_lives else b"")
