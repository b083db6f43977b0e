"""Logs who read and wrote what, one JSON line per request: the source of the checkpoint traffic report.

Fields: ``time`` (ns since the epoch, start), ``duration`` (ns), ``method``, ``operation`` (read, write,
delete, metadata), ``bucket``, ``object``, ``bytes`` (content moved), ``status`` (0 if the client went away
before an answer), ``identity`` ('' if unknown), ``door``: ``replica`` (a job's program, by its replica's own
endpoint), ``gateway`` (the service's own port), ``port`` (the buckets' port);
``project`` and ``job`` (its uid) of a job's program.

Lines are in the order in which requests ended, so that recent ones are found without reading all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from trainshed.core.units import Bytes, Nanos

ACCESS_LOG = "access.log"
"""The log's file name, in the buckets' state directory."""
_ROTATE_AT = 64 << 20
_BLOCK = 256 << 10
_READ_AT_MOST = 32 << 20
"""Bytes that one query reads: some 150,000 requests, in about half a second."""


class AccessLine(Struct, frozen=True):
    """One request; the module describes the fields."""

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
    """Appends lines to a file, each by one ``write``; when the file grows large it is renamed, and one older
    file is kept. Lines that a disk does not take are lost: no request fails for that."""

    def __init__(self, path: Path, rotate_at: int = _ROTATE_AT) -> None:
        self._path = path
        self._rotate_at = rotate_at
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size
        self._is_torn = False

    def write(self, line: AccessLine) -> None:
        """Append one line to the page cache, in microseconds."""
        encoded = msgspec.json.encode(line) + b"\n"
        if self._is_torn:
            encoded = b"\n" + encoded
        written = 0
        with contextlib.suppress(OSError):
            if self._size + len(encoded) > self._rotate_at:
                self._rotate()
        with contextlib.suppress(OSError):
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


def older(path: Path) -> Path:
    """Returns the path of the older file of an access log."""
    return path.with_name(path.name + ".1")


class AccessPage(Struct, frozen=True):
    """Lines in the order in which requests ended."""

    lines: tuple[AccessLine, ...]
    #: The page has all wanted lines from this moment (ns) on.
    since: Nanos


def read_back(
    path: Path,
    since: Nanos,
    wanted: Callable[[AccessLine], bool],
    *,
    read_at_most: int = _READ_AT_MOST,
) -> AccessPage:
    """Returns the wanted lines of requests that ended at ``since`` (ns) or later, as far as they are among
    the last ``read_at_most`` bytes. Blocks on the disk; another process may write meanwhile.

    It holds one block and the wanted lines in memory. Raises OSError if the log cannot be read; a missing log
    is empty.
    """
    decode = msgspec.json.Decoder(AccessLine).decode
    lines: list[AccessLine] = []
    reached, left = since, read_at_most
    with contextlib.ExitStack() as opened:
        files, is_all = _open_newest_first(path, opened)
        for fd in files:
            size = os.fstat(fd).st_size
            for raw in _lines_backwards(fd, size, left):
                try:
                    line = decode(raw)
                except msgspec.MsgspecError:
                    continue  # A process was killed while it wrote this line.
                if line.end < since:
                    return AccessPage(tuple(reversed(lines)), since)
                reached = line.end
                if wanted(line):
                    lines.append(line)
            if size > left:
                return AccessPage(tuple(reversed(lines)), reached)
            left -= size
    return AccessPage(tuple(reversed(lines)), since if is_all else reached)


def _open_newest_first(path: Path, opened: contextlib.ExitStack) -> tuple[list[int], bool]:
    """Returns the log's files, which ``opened`` closes, newest first; and whether no older lines were ever
    dropped."""

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
        # The log was renamed between the two calls: the former older file is gone.
        return [current], False
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
