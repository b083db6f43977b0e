"""Tells whether the directory of the buckets is the one it was at the last look, or a copy of it.

An epoch is the time between two copies. While it lasts, a record counts for the very file it was written for, inode and all;
a record of an earlier epoch counts for a file with its path, size and time or content (`records`). Taking a directory that
was not copied for a copy is harmless: what was rewritten in it is then told by its content instead of by its inode.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainshed.buckets.durably import sync_directory, write_durably

_FILE = "epoch.json"
_ANCHOR = "anchor"


@dataclass(frozen=True, slots=True)
class Epoch:
    """`earlier`: there was another one before, so that there may be records of it."""

    id: str
    earlier: bool


@dataclass(frozen=True, slots=True)
class _Written:
    """`anchor`: inode and time of the last change (ns) of an empty file that nobody touches. No way of copying keeps that
    time. `root`: the inode of the directory of the buckets."""

    epoch: Epoch
    anchor: tuple[int, int]
    root: int


def current_epoch(root: Path, state: Path) -> Epoch:
    """The epoch of the buckets in `root`, a new one if they were copied or had none. Durable; the caller holds `alone`."""
    try:
        written = msgspec.json.decode((state / _FILE).read_bytes(), type=_Written)
    except (FileNotFoundError, msgspec.MsgspecError):
        written = None
    if written and (written.anchor, written.root) == (_look(state / _ANCHOR), _inode(root)):
        return written.epoch
    epoch = Epoch(os.urandom(8).hex(), earlier=written is not None)
    _begin(epoch, root, state)
    return epoch


def _begin(epoch: Epoch, root: Path, state: Path) -> None:
    anchor = state / _ANCHOR
    anchor.unlink(missing_ok=True)
    anchor.touch()
    sync_directory(state)
    written = _Written(epoch, _look(anchor), _inode(root))
    write_durably(state / _FILE, msgspec.json.encode(written))


def _look(anchor: Path) -> tuple[int, int]:
    try:
        status = anchor.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_ctime_ns


def _inode(path: Path) -> int:
    return path.stat().st_ino


@contextmanager
def alone(directory: Path) -> Generator[None]:
    """Keep other processes out that come the same way."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
