"""Who read and wrote what, one JSON line per request: the source of the checkpoint traffic report.

Fields: ``time`` (ns since the epoch, start), ``duration`` (ns), ``method``, ``operation`` (read,
write, delete, metadata), ``bucket``, ``object``, ``bytes`` (content moved), ``status`` (0 if the
client went away before an answer), ``identity`` ('' if unknown).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

_ROTATE_AT = 64 << 20


@dataclass(frozen=True, slots=True)
class AccessLine:
    """One request; see the module."""

    time: int
    duration: int
    method: str
    operation: str
    bucket: str
    object: str
    bytes: int
    status: int
    identity: str


class AccessLog:
    """Appends lines to a file, one ``write`` each; keeps one older file when it grows large."""

    def __init__(self, path: Path, rotate_at: int = _ROTATE_AT) -> None:
        self._path = path
        self._rotate_at = rotate_at
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def write(self, line: AccessLine) -> None:
        """Append one line; a microseconds-long write to the page cache."""
        encoded = msgspec.json.encode(line) + b"\n"
        if self._size + len(encoded) > self._rotate_at:
            os.close(self._fd)
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._fd = self._open()
            self._size = 0
        self._size += os.write(self._fd, encoded)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
