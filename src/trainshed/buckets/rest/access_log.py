"""Who read and wrote what, one JSON line per request: the source of the checkpoint traffic report.

Fields: ``time`` (ns since the epoch, start), ``duration`` (ns), ``method``, ``operation`` (read, write,
delete, metadata), ``bucket``, ``object``, ``bytes`` (content moved), ``status`` (0 if the client went away
before an answer), ``identity`` ('' if unknown), ``door``: ``replica`` (a job's program, by its replica's own
endpoint), ``gateway`` (the service's own port), ``port`` (the buckets' port), '' in lines of older versions;
``project`` and ``job`` (its uid) of a job's program.

Lines stand in the order in which requests ended, which is how they are found again without reading all of
them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from trainshed.core.units import Bytes, Nanos

ACCESS_LOG = "access.log"
"""Its file, in the directory of the buckets' state."""
_ROTATE_AT = 64 << 20
_BLOCK = 256 << 10
_READ_AT_MOST = 32 << 20
"""Bytes that one question looks through: some 150,000 requests, in about half a second."""


class AccessLine(Struct, frozen=True):
    """One request; see the module."""

    time: int
    duration: int
    method: str
    operation: str
    bucket: str
    object: str
    bytes: Bytes
    status: int
    identity: str
    door: str = ""
    project: str = ""
    job: str = ""

    @property
    def end(self) -> int:
        """When the request ended (ns)."""
        return self.time + self.duration


class AccessLog:
    """Appends lines to a file, one ``write`` each; keeps one older file when it grows large. What a full disk
    does not take is left out: no request fails for it."""

    def __init__(self, path: Path, rotate_at: int = _ROTATE_AT) -> None:
        self._path = path
        self._rotate_at = rotate_at
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size
        self._is_torn = False

    def write(self, line: AccessLine) -> None:
        """Append one line; a microseconds-long write to the page cache."""
        encoded = msgspec.json.encode(line) + b"\n"
        if self._is_torn:
            encoded = b"\n" + encoded
        written = 0
        with _unless_full():
            if self._size + len(encoded) > self._rotate_at:
                self._rotate()
        with _unless_full():
            written = os.write(self._fd, encoded)
            self._is_torn = written < len(encoded)
        self._size += written

    def _rotate(self) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        opened = self._open(fresh)
        self._path.replace(older(self._path))
        fresh.replace(self._path)
        os.close(self._fd)
        self._fd, self._size = opened, 0

    def _open(self, path: Path | None = None) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(path or self._path, flags, 0o600)


@contextlib.contextmanager
def _unless_full() -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def older(path: Path) -> Path:
    """The file that an access log was before it was begun anew."""
    return path.with_name(path.name + ".1")


class AccessPage(Struct, frozen=True):
    """Lines in the order in which requests ended."""

    lines: tuple[AccessLine, ...]
    #: From when on (ns) all there are were looked at.
    since: Nanos


def read_back(
    path: Path,
    since: Nanos,
    wanted: Callable[[AccessLine], bool],
    *,
    read_at_most: int = _READ_AT_MOST,
) -> AccessPage:
    """The wanted lines of requests that ended at ``since`` (ns) or later, as far as they are kept and can be
    found in the last ``read_at_most`` bytes. Blocks on the disk; another process may write meanwhile.

    Memory: one block and the wanted lines. Raises OSError if the log cannot be read; no log is an empty one.
    """
    decode = msgspec.json.Decoder(AccessLine).decode
    found: list[AccessLine] = []
    reached, left = since, read_at_most
    with contextlib.ExitStack() as opened:
        files, is_all = _open_newest_first(path, opened)
        for fd in files:
            size = os.fstat(fd).st_size
            for raw in _lines_backwards(fd, size, left):
                try:
                    line = decode(raw)
                except msgspec.MsgspecError:
                    continue  # a process was killed while it wrote this
                if line.end < since:
                    return AccessPage(tuple(reversed(found)), since)
                reached = line.end
                if wanted(line):
                    found.append(line)
            if size > left:
                return AccessPage(tuple(reversed(found)), reached)
            left -= size
    return AccessPage(tuple(reversed(found)), since if is_all else reached)


def _open_newest_first(path: Path, opened: contextlib.ExitStack) -> tuple[list[int], bool]:
    """The log's files, to be closed by ``opened``; and whether nothing was ever thrown away before the
    last."""

    def added(path: Path) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, fd)
        return fd

    try:
        current = added(path)
    except FileNotFoundError:
        return [], True
    try:
        before = added(older(path))
    except FileNotFoundError:
        return [current], True
    if os.path.sameopenfile(current, before):
        return [current], False  # begun anew between the two calls: what was the older one is gone
    return [current, before], False


def _lines_backwards(fd: int, size: int, limit: int) -> Iterator[bytes]:
    """The lines in the first ``size`` bytes of a file, the last one first, until ``limit`` bytes were
    read."""
    position, end = size, max(0, size - limit)
    rest = b""
    while position > end:
        block = min(_BLOCK, position - end)
        position -= block
        rest, *lines = (os.pread(fd, block, position) + rest).split(b"\n")
        yield from (line for line in reversed(lines) if line)
    if position == 0 and rest:
        yield rest
