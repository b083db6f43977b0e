"""Forks of one process copy ahead what the first of them wrote to (docs/adr/0089)."""

import mmap
import os
import resource
from collections.abc import Callable

import pytest

from trainshed.replica.system import kernel, touched_pages
from trainshed.replica.system.touched_pages import GUARDIAN, SHIM, TouchedPages

PAGES = 400

pytestmark = pytest.mark.skipif(
    not kernel.can_populate(), reason="this system copies no pages ahead"
)


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def write_all(memory: mmap.mmap) -> None:
    for page in range(PAGES):
        memory[page * mmap.PAGESIZE] = 1


def in_fork(work: Callable[[], int]) -> int:
    """What `work` returns in a fork."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, b"%d" % work())
        finally:
            os._exit(0)
    os.close(write)
    answer = os.read(read, 32)
    os.close(read)
    os.waitpid(child, 0)
    return int(answer)


@pytest.fixture
def memory() -> mmap.mmap:
    """Pages that forks share with this process until they write to them."""
    private = mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    write_all(private)
    return private


def faults_of_a_start(pages: TouchedPages, kind: int, memory: mmap.mmap) -> int:
    """How many a fork of that kind takes to write to the memory, when it has waited."""

    def start() -> int:
        note = pages.ready(kind)
        before = faults()
        write_all(memory)
        found = faults() - before
        note()
        return found

    pages.look()
    return in_fork(start)


def test_what_the_first_start_wrote_to_the_next_one_has_copied(memory: mmap.mmap) -> None:
    pages = TouchedPages()
    assert faults_of_a_start(pages, SHIM, memory) >= PAGES
    assert faults_of_a_start(pages, SHIM, memory) < PAGES // 10
    # Another kind of process writes to pages of its own.
    assert faults_of_a_start(pages, GUARDIAN, memory) >= PAGES


def test_memory_that_a_start_leaves_alone_is_not_copied(memory: mmap.mmap) -> None:
    pages = TouchedPages()

    def start() -> int:
        pages.ready(SHIM)()
        return 0

    in_fork(start)
    assert faults_of_a_start(pages, SHIM, memory) >= PAGES


def test_a_board_that_says_nonsense_harms_nobody(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is root can write to its guardian's memory."""
    nonsense = [(0, 1 << 62), (3, 5), ((1 << 64) - mmap.PAGESIZE, mmap.PAGESIZE), (1 << 40, 0)]

    def runs(_: object) -> list[tuple[int, int]]:
        return nonsense

    monkeypatch.setattr(touched_pages.Touched, "runs", runs)
    pages = TouchedPages()
    assert faults_of_a_start(pages, SHIM, memory) >= PAGES
    assert faults_of_a_start(pages, SHIM, memory) >= PAGES


def test_what_is_not_mapped_in_a_later_fork_is_passed_over(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's memory may have grown before it noted what it wrote to."""
    noted = touched_pages.Touched.runs

    def runs(touched: touched_pages.Touched) -> list[tuple[int, int]]:
        return [(mmap.PAGESIZE, 1 << 20), *noted(touched)]

    monkeypatch.setattr(touched_pages.Touched, "runs", runs)
    pages = TouchedPages()
    assert faults_of_a_start(pages, SHIM, memory) >= PAGES
    assert faults_of_a_start(pages, SHIM, memory) < PAGES // 10


def test_kernels_before_6_13_copy_run_by_run(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_PROCESS_MADVISE", -1)
    assert not kernel.populate_all(bytes(16))
    pages = TouchedPages()
    assert faults_of_a_start(pages, SHIM, memory) >= PAGES
    assert faults_of_a_start(pages, SHIM, memory) < PAGES // 10
