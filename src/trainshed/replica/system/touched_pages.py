"""Which pages of its memory a forked process writes to, so that the next one like it has copies of them
before it has anything to do.

A fork shares its parent's pages until one of the two writes to them, and each first write costs a fault and a
copy: of what a start costs in a fork of the zygote, most. Forks of one parent write to the same pages. The
first that starts something notes which (`Touched`), on a board that it shares with its parent; those that
wait after that copy them while they wait, by one call for all of them (Linux 6.13) or for each run of pages,
and no page that they would not have copied themselves. Needs Linux 5.14; elsewhere nothing is noted and
nothing copied. Runs on Python 3.6.
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
"""Kinds of processes, which write to pages of their own."""
_KINDS = (SHIM, GUARDIAN, PROGRAM)

_MOST_RUNS = 4000
_MOST_BYTES = 64 << 20
"""Of memory that is looked at, or copied, in one piece."""
_COUNT, _RUN = struct.Struct("Q"), struct.Struct("QQ")
_PART = _COUNT.size + _MOST_RUNS * _RUN.size
_PRESENT, _EXCLUSIVE, _FILE = 1 << 63, 1 << 56, 1 << 61
"""Bits of a page in /proc/PID/pagemap: in memory; nobody else's; not copied, or shared for good."""


class TouchedPages:
    """The parent's side: what its forks have noted."""

    def __init__(self) -> None:
        self._board = mmap.mmap(-1, len(_KINDS) * _PART)
        #: As on the board, of each kind.
        self._known: "dict[int, bytes]" = {}

    def look(self) -> None:
        """Take in what was noted, before the next fork."""
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
        """In a fork that waits: copy what is known to be written to, and have nothing more to do with the
        board. Returns what is to be called when the process has done what it waited for: it notes the pages,
        if they were not known."""
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
        # Last: who reads a number finds as many.
        _COUNT.pack_into(self._board, kind * _PART, min(len(runs), _MOST_RUNS))
        self._board.close()


def _nothing() -> None:
    """Where there is nothing to be noted."""


def _copy(runs: bytes) -> None:
    if kernel.populate_all(runs):
        return
    for address, length in _RUN.iter_unpack(runs):
        if not kernel.populate(address, length):
            return


class Touched:
    """What tells of this process's pages, opened while it may still open it."""

    __slots__ = ("_maps", "_pages")

    def __init__(self, maps: int, pages: int) -> None:
        self._maps = maps
        self._pages = pages

    @classmethod
    def of_this_process(cls) -> "Touched | None":
        """None: the system does not tell, or cannot copy ahead."""
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
        """(address, bytes) of what this process has copied by now, or had for itself from the start. Once."""
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
