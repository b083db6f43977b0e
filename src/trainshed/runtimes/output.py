"""The output of installers and tools, read line by line from a pipe or a terminal, with a notice of silence,
made fit for people."""

import errno
import fcntl
import os
import re
import selectors
import struct
import termios
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16
_LONGEST = 1 << 16
"""Bytes of a line; of a longer one the rest is lines of its own."""
_REST = 64
"""Chunks that are read at most once nobody is to write any more: a pipe holds one."""


def lines(
    output: int, beat: float, breaks: re.Pattern[bytes], line: int = -1
) -> Iterator[str | None]:
    """The lines of a pipe or a terminal, apart by `breaks` and without white space at their ends, until all
    who have its other end have closed it; None after each `beat` seconds of silence. `line`: a handle that
    can be read once nobody is to write any more: what somebody who got away still holds open is not waited
    for."""
    rest, left = b"", _REST
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        if line >= 0:
            selector.register(line, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select(beat)}
            if not ready:
                yield None
                continue
            left -= line in ready
            if output not in ready or not left:
                break
            data = _read(output)
            *whole, rest = breaks.split(rest + data)
            if len(rest) > _LONGEST:
                whole, rest = [*whole, rest], b""
            yield from map(_text, whole)
            if not data:
                break
    if rest:
        yield _text(rest)


def _read(output: int) -> bytes:
    try:
        return os.read(output, _CHUNK)
    except OSError as end:
        # How a terminal says that nobody has its other end any more.
        if end.errno != errno.EIO:
            raise
        return b""


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()


BEAT = 5.0
"""Seconds of silence after which a sign of life is given."""
NOISE = ("Using CPython ", "Using Python ")
"""How lines begin that say nothing new."""
_MOST_LINES = 10_000
"""Of one installer: a setup script may say anything, and each line goes into the job's log."""
_CHANGES = (" + ", " - ", " ~ ")
_BEGINS, _ENDS = "Downloading ", " Downloaded "


class Narration:
    """Makes of an installer's lines what people are to hear of it. For one thread, in their order."""

    def __init__(
        self, tell: Callable[[str], None], doing: str = "working", *, quiet: bool = False
    ) -> None:
        self._tell = tell
        #: What the installer is at, as long as it has said nothing.
        self._doing = doing
        #: What it says is nothing to people.
        self._quiet = quiet
        #: Of each file that is on its way, by name: name and size.
        self._downloading: dict[str, str] = {}
        self._changed: list[str] = []
        self._last = ""
        self._silent = 0.0
        self._heard = 0

    def hear(self, line: str) -> None:
        """The installer said something."""
        self._silent = 0.0
        if not line.strip() or self._quiet:
            return
        self._heard += 1
        if self._heard > _MOST_LINES:
            if self._heard == _MOST_LINES + 1:
                self._tell(f"It has said more than {_MOST_LINES} lines; the rest is not shown.")
            return
        if line.startswith(_CHANGES):
            self._changed.append(line.strip().replace("==", " "))
            return
        self.end()
        if line.startswith(_BEGINS):
            what = line.removeprefix(_BEGINS)
            self._downloading[what.partition(" ")[0]] = what
        elif line.startswith(_ENDS):
            self._downloading.pop(line.removeprefix(_ENDS).strip(), None)
        self._last = line.strip()
        # One space is how uv ends what it began; more of them are somebody's layout.
        self._tell(line.removeprefix(" "))

    def silence(self) -> None:
        """The installer said nothing for another `BEAT`."""
        self._silent += BEAT
        still = f"Still downloading {', '.join(self._downloading.values())}"
        if not self._downloading:
            still = f"Still working since {self._last!r}" if self._last else f"Still {self._doing}"
        self._tell(f"{still}: {self._silent:.0f} s.")

    def end(self) -> None:
        """What was gathered is told."""
        if self._changed:
            self._tell(", ".join(self._changed))
            self._changed = []


_ROWS, _COLUMNS = 500, 300
"""Large enough for a line of each layer, unbroken."""
_BEAT = 1.0
"""Seconds of silence after which that is said."""
_BREAKS = re.compile(rb"[\r\n]+")
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """The reading end of a terminal, or of a pipe where there are none: then a program shows less. A context;
    read it in one thread. `end` is the descriptor that a program writes to."""

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
        """What is written, line by line, without what moves the cursor, until all who have the other end have
        closed it; "" after each second of silence. To be called when the program has the end."""
        self._close_end()
        for line in lines(self._ours, _BEAT, _BREAKS):
            text = _MOVES.sub("", line or "").strip()
            if text or line is None:
                yield text

    def _close_end(self) -> None:
        if self._is_open:
            os.close(self.end)
            self._is_open = False
