"""A terminal that nobody looks at: podman and docker show the progress of a pull on terminals only."""

import fcntl
import os
import re
import struct
import termios
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from trainshed.runtimes import reading

_ROWS, _COLUMNS = 500, 300
"""Large enough for a line of each layer, unbroken."""
_BEAT = 1.0
"""Seconds of silence after which that is said."""
_BREAKS = re.compile(rb"[\r\n]+")
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """`end`: the descriptor that a program writes to. A context; read it in one thread. A pipe where there are no terminals:
    then a program shows less."""

    def __init__(self) -> None:
        try:
            self._ours, self.end = os.openpty()
            size = struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0)
            fcntl.ioctl(self.end, termios.TIOCSWINSZ, size)
        except OSError:
            self._ours, self.end = os.pipe()
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_end()
        os.close(self._ours)

    def lines(self) -> Iterator[str]:
        """What is written, line by line, without what moves the cursor, until all who have the other end have closed it; ""
        after each second of silence. To be called when the program has the end."""
        self._close_end()
        for line in reading.lines(self._ours, _BEAT, _BREAKS):
            text = _MOVES.sub("", line or "").strip()
            if text or line is None:
                yield text

    def _close_end(self) -> None:
        if self._is_open:
            os.close(self.end)
            self._is_open = False
