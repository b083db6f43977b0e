"""The manifest of a backup, in JSON: describes the backup, and lists every file with its size and checksum.
It is written last: a backup without one is not complete. Also how a backup's files are written."""

import hashlib
import os
from collections.abc import Iterable
from typing import BinaryIO

import msgspec
from msgspec import Struct

from trainshed.core.units import Bytes, Nanos

FILE = "MANIFEST"
UNFINISHED = ".restoring"
"""In a data directory into which a restore is in progress: no service starts there."""
FORMAT = 1
"""The format of backups; a backup with a higher one, by a later version, is refused."""
_HOLE = bytes(1 << 20)


class BackupUnusable(Exception):
    """The backup is incomplete, or made for another version. The message says why and what to do."""


class RunningJob(Struct, frozen=True):
    """A job that was not over at the time of the backup."""

    uid: int
    name: str
    state: str


class Entry(Struct, frozen=True):
    """A file or a directory of a backup."""

    #: Relative, with `/`.
    path: str
    mode: int
    size: Bytes = 0
    #: Nanoseconds since the epoch.
    mtime: int = 0
    #: "" = a directory.
    sha256: str = ""


class Contents(Struct, frozen=True):
    """The description of a backup."""

    format: int
    #: Version of the service.
    version: str
    #: Schema version of the database.
    schema: int
    #: The time of the database, in ns since the epoch.
    created: Nanos
    #: The directory that it was taken from.
    data: str
    jobs: int
    objects: int
    running: tuple[RunningJob, ...] = ()
    #: Descriptions of what could not be read.
    left_out: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()


def fill(file: BinaryIO, blocks: Iterable[bytes]) -> tuple[str, int]:
    """Write a file; return its checksum and its size. What is zero stays a hole: a program's sparse file may
    be larger than the disk."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
        if _HOLE.startswith(block):
            file.seek(len(block), os.SEEK_CUR)
        else:
            file.write(block)
    return digest.hexdigest(), file.truncate()


def decode(manifest: bytes) -> Contents:
    try:
        contents = msgspec.json.decode(manifest, type=Contents)
    except (ValueError, RecursionError) as failure:
        raise BackupUnusable(
            f"Its {FILE} cannot be read: {failure}. Use another backup."
        ) from failure
    if contents.format > FORMAT:
        raise BackupUnusable(
            f"It was made by version {contents.version}, in a form that this one does not know. "
            "Restore it with that version, or a later one."
        )
    for entry in contents.entries:
        # It might lead out of the directory.
        path = entry.path
        if path.startswith("/") or not path or {"", ".", ".."} & set(path.split("/")):
            raise BackupUnusable(
                f"It names {path!r}, which is no path below a data directory. Use another backup."
            )
    return contents
