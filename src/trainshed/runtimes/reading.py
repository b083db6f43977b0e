"""Reads what a program writes, line by line, and notices when it writes nothing."""

import errno
import os
import re
import selectors
from collections.abc import Iterator

_CHUNK = 1 << 16
_LONGEST = 1 << 16
"""Bytes of a line; of a longer one the rest is lines of its own."""
_REST = 64
"""Chunks that are read at most once nobody is to write any more: a pipe holds one."""


def lines(
    output: int, beat: float, breaks: re.Pattern[bytes], line: int = -1
) -> Iterator[str | None]:
    """The lines of a pipe or a terminal, apart by `breaks` and without white space at their ends, until all who have its
    other end have closed it; None after each `beat` seconds of silence. `line`: a handle that can be read once nobody is
    to write any more: what somebody who got away still holds open is not waited for."""
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
