"""Records which pages of its memory a forked process writes to, so that the next such process has copies of
them before it has work to do.

A fork shares its parent's pages until one of the two writes to them, and each first write costs a fault and a
copy: most of what a start costs in a fork of the zygote. Forks of one parent write to the same pages. The
first one that starts something records them (`Touched`) on a board that it shares with its parent; later ones
copy them while they wait, by one call for all of them (Linux 6.13) or one for each run of pages, and no page
that they would not have copied themselves. Needs Linux 5.14; elsewhere nothing is recorded or copied. Runs on
Python 3.6.
"""

import mmap
import os
import struct

from trainshed.replica.system import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    Runs = list[tuple[int, int]]

SHIM, GUARDIAN, PROGRAM = 0, 1, 2
"""Kinds of processes, each of which writes to other pages."""
_KINDS = (SHIM, GUARDIAN, PROGRAM)

_MOST_RUNS = 4000
_MOST_BYTES = 64 << 20
"""Largest piece of memory that is examined or copied, in bytes."""
_COUNT, _RUN = struct.Struct("Q"), struct.Struct("QQ")
_PART = _COUNT.size + _MOST_RUNS * _RUN.size
_PRESENT, _EXCLUSIVE, _FILE = 1 << 63, 1 << 56, 1 << 61
"""Bits of a page in /proc/PID/pagemap: in memory; mapped by this process alone; file-backed, or shared for
good."""


class TouchedPages:
    """The parent's side: what its forks have recorded."""

    def __init__(self) -> None:
        self._board = mmap.mmap(-1, len(_KINDS) * _PART)
        #: The recorded runs of each kind, in the board's format.
        self._known: "dict[int, bytes]" = {}

    def look(self) -> None:
        """Read new records from the board, before the next fork."""
        for kind in _KINDS:
            if kind not in self._known:
                runs = self._noted(kind)
                if runs:
                    self._known[kind] = runs

    def _noted(self, kind: int) -> bytes:
        (count,) = _COUNT.unpack_from(self._board, kind * _PART)
        first = kind * _PART + _COUNT.size
        noted = self._board[first : first + min(count, _MOST_RUNS) * _RUN.size]
        return b"".join(
            _RUN.pack(address, min(length, _MOST_BYTES))
            for address, length in _RUN.iter_unpack(noted)
        )

    def ready(self, kind: int) -> "Callable[[], None]":
        """In a fork that waits: copy the pages known to be written to, and release the board. Returns a
        function to call when the process has done what it waited for; it records the pages, if they were not
        known."""
        if kind in self._known:
            self._board.close()
            _copy(self._known[kind])
            return _nothing
        touched = Touched.of_this_process()
        if touched is None:
            return _nothing
        return lambda: self._note(kind, touched.runs())

    def _note(self, kind: int, runs: "Runs") -> None:
        first = kind * _PART + _COUNT.size
        for index, run in enumerate(runs[:_MOST_RUNS]):
            _RUN.pack_into(self._board, first + index * _RUN.size, *run)
        # Written last, so that a reader of the count finds as many runs.
        _COUNT.pack_into(self._board, kind * _PART, min(len(runs), _MOST_RUNS))
        self._board.close()


def _nothing() -> None:
    """Do nothing, because there is nothing to record."""


def _copy(runs: bytes) -> None:
    if kernel.populate_all(runs):
        return
    for address, length in _RUN.iter_unpack(runs):
        if not kernel.populate(address, length):
            return


class Touched:
    """Access to the list of this process's pages, opened while that is still allowed."""

    __slots__ = ("_maps", "_pages")

    def __init__(self, maps: int, pages: int) -> None:
        self._maps = maps
        self._pages = pages

    @classmethod
    def of_this_process(cls) -> "Touched | None":
        """Open the list; None if the system has none, or cannot copy pages ahead."""
        if not kernel.can_populate():
            return None
        opened: "list[int]" = []
        try:
            for name in ("maps", "pagemap"):
                opened.append(os.open("/proc/self/" + name, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            kernel.close_all(opened)
            return None
        return cls(*opened)

    def runs(self) -> "Runs":
        """Return (address, bytes) of the memory that this process has copied by now, or had to itself from
        the start. Closes the list, so it can be called only once."""
        found: "Runs" = []
        try:
            for first, end in self._own_memory():
                found += self._copied(first, end)
        except (OSError, ValueError):
            found = []
        kernel.close_all([self._maps, self._pages])
        return found

    def _own_memory(self) -> "list[tuple[int, int]]":
        text = b""
        while True:
            data = os.read(self._maps, 65536)
            if not data:
                break
            text += data
        places: "list[tuple[int, int]]" = []
        for line in text.splitlines():
            span, rights = line.split(None, 2)[:2]
            first, end = (int(number, 16) for number in span.split(b"-"))
            if rights == b"rw-p" and end - first <= _MOST_BYTES:
                places.append((first, end))
        return places

    def _copied(self, first: int, end: int) -> "Runs":
        count = (end - first) // mmap.PAGESIZE
        found = os.pread(self._pages, count * 8, first // mmap.PAGESIZE * 8)
        pages = memoryview(found[: len(found) // 8 * 8]).cast("Q")
        runs: "Runs" = []
        begin = -1
        for index, page in enumerate([*pages, 0]):
            is_own = page & _PRESENT and page & _EXCLUSIVE and not page & _FILE
            if is_own and begin < 0:
                begin = index
            elif not is_own and begin >= 0:
                runs.append((first + begin * mmap.PAGESIZE, (index - begin) * mmap.PAGESIZE))
                begin = -1
        return runs
