"""Reads what a program writes, line by line, and notices when it writes nothing."""

import errno
import os
import re
import selectors
from collections.abc import Iterator

_CHUNK = 1 << 16


def lines(output: int, beat: float, breaks: re.Pattern[bytes]) -> Iterator[str | None]:
    """The lines of a pipe or a terminal, apart by `breaks` and without white space at their ends, until all who have its
    other end have closed it; None after each `beat` seconds of silence."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            if not selector.select(beat):
                yield None
                continue
            data = _read(output)
            *whole, rest = breaks.split(rest + data)
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
