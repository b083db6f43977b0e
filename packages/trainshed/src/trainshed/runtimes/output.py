"""Reads the output of installers and tools line by line, reports silence, and edits lines for users."""

import os
import re
import selectors
from collections.abc import Callable, Iterator

_BREAKS = re.compile(rb"[\r\n]+")
_CHUNK = 1 << 16
_MAX_LINE = 1 << 16
"""Maximum bytes of a line; a longer one becomes several lines."""
_MAX_CHUNKS = 64
"""Maximum number of chunks that are read after the expected end of the output. A pipe contains only one."""


def lines(output: int, beat: float, line: int | None = None) -> Iterator[str | None]:
    """Yield the lines of a pipe that are not empty, without trailing white space, until every writer has
    closed the pipe. Yields None after each `beat` seconds of silence.

    `line`: a file descriptor that becomes readable when no more output is expected; None = there is none. It
    prevents waiting for escaped processes that still have the pipe open.
    """
    rest, left = b"", _MAX_CHUNKS
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        if line is not None:
            selector.register(line, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select(beat)}
            if not ready:
                yield None
                continue
            left -= line in ready
            if output not in ready or not left:
                break
            data = os.read(output, _CHUNK)
            *whole, rest = _BREAKS.split(rest + data)
            if len(rest) > _MAX_LINE:
                whole, rest = [*whole, rest], b""
            yield from filter(None, map(_text, whole))
            if not data:
                break
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()


BEAT = 5.0
"""Seconds of silence before a progress report."""
NOISE = ("Using CPython ", "Using Python ")
"""Prefixes of lines that are useless to users."""
_MAX_LINES = 10_000
"""Maximum number of lines from one installer. A setup script may print anything, and each line goes into the
log."""
_CHANGES = (" + ", " - ", " ~ ")
_MAX_CHANGES = 20
"""Maximum length of a list of changed packages. Longer lists are whole environments, which have their own
list."""
_DETAIL = re.compile(
    r" *(Building|Built|Downloaded|Prepared) |Downloading .*\(([\d.]+KiB|\d(\.\d)?MiB|[1-4]\d(\.\d)?MiB)\)"
)
"""Patterns of uv's lines to hide: single packages, and downloads of less than 50 MiB."""


class Narration:
    """Turns an installer's lines into progress lines for users. For one thread, with lines in order."""

    def __init__(self, tell: Callable[[str], None], doing: str = "working", *, quiet: bool = False) -> None:
        self._tell = tell
        #: The installer's activity, which a progress line shows before the installer's first line.
        self._doing = doing
        #: Whether to hide the installer's output.
        self._quiet = quiet
        self._changed: list[str] = []
        self._last = ""
        self._silent = 0.0
        #: Seconds of silence before the next report.
        self._patience = BEAT
        self._heard = 0

    def add_line(self, line: str) -> None:
        self._silent, self._patience = 0.0, BEAT
        if not line.strip() or self._quiet or _DETAIL.match(line):
            return
        self._heard += 1
        if self._heard > _MAX_LINES:
            if self._heard == _MAX_LINES + 1:
                self._tell(f"The output has more than {_MAX_LINES} lines; the rest is hidden.")
            return
        if line.startswith(_CHANGES):
            self._changed.append(line.strip().replace("==", " "))
            return
        self.end()
        self._last = line.strip()
        # uv starts a line with one space when it completes a step. More spaces are another layout.
        self._tell(line.removeprefix(" "))

    def add_silence(self) -> None:
        """Count another `BEAT` of silence. Report the silence after 5, 10, 20, 40, … seconds."""
        self._silent += BEAT
        if self._silent < self._patience:
            return
        self._patience *= 2
        still = f"Still working since {self._last!r}" if self._last else f"Still {self._doing}"
        self._tell(f"{still}: {self._silent:.0f} s.")

    def end(self) -> None:
        if 0 < len(self._changed) <= _MAX_CHANGES:
            self._tell(", ".join(self._changed))
        self._changed = []
