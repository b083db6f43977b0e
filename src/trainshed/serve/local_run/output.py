"""A program's lines, from its replica's log to our own output, in the order in which they came."""

import sys
from pathlib import Path

from trainshed.cli.printable import coloured
from trainshed.store.logs.segments import Entry, ReplicaLog


class Output:
    """`directory`: the log of the one replica."""

    def __init__(self, directory: Path) -> None:
        self._log = ReplicaLog(directory)
        self._next = 0

    def show(self) -> None:
        """Write what is new: the program's output to ours, its errors and what the service says to our errors; to a terminal as
        text, to a file as it is. Blocks as long as whoever reads us does not. Raises BrokenPipeError: nobody does any more."""
        last = None
        for entry in self._log.forwards(self._is_old):
            stream = sys.stdout.buffer if entry.s == "o" else sys.stderr.buffer
            if last is not stream and last is not None:
                last.flush()
            text = coloured(entry.m) if stream.isatty() else entry.m
            stream.write(text.encode("utf-8", "replace") + (b"" if entry.p else b"\n"))
            last = stream
            self._next = entry.n + 1
        if last is not None:
            last.flush()

    def _is_old(self, entry: Entry) -> bool:
        return entry.n < self._next
