"""The manifest of a backup, in JSON: describes the backup, and lists every file with its size and checksum.
It is written last, so a backup without a manifest is incomplete. This module also writes the files of a
backup."""

import hashlib
import os
from collections.abc import Iterable
from typing import BinaryIO

import msgspec
from msgspec import Struct

from trainshed.core.units import Bytes, Nanos

FILE = "MANIFEST"
UNFINISHED = ".restoring"
"""Name of the directory of an unfinished restore in a data directory. No service starts in such a data
directory."""
FORMAT = 1
"""Format of backups. This version rejects backups with a higher format."""
_HOLE = bytes(1 << 20)


class BackupUnusable(Exception):
    """The backup is incomplete, or was made for another version. The message contains the reason and
    advice."""


class RunningJob(Struct, frozen=True):
    """A job that was unfinished at the time of the backup."""

    uid: int
    name: str
    state: str


class Entry(Struct, frozen=True):
    """A file or a directory of a backup."""

    #: Path relative to the backup's directory, with `/` between names.
    path: str
    mode: int
    size: Bytes = 0
    #: Modification time, in nanoseconds since the epoch.
    mtime: int = 0
    #: Checksum of the content; "" = the entry is a directory.
    sha256: str = ""


class Contents(Struct, frozen=True):
    """The description of a backup."""

    format: int
    #: Version of the service that created the backup.
    version: str
    #: Schema version of the database.
    schema: int
    #: The time at which the database was copied, in nanoseconds since the epoch.
    created: Nanos
    #: The data directory that was backed up.
    data: str
    jobs: int
    objects: int
    running: tuple[RunningJob, ...] = ()
    #: Descriptions of the files that could not be read.
    left_out: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()


def fill(file: BinaryIO, blocks: Iterable[bytes]) -> tuple[str, int]:
    """Write a file, and return its checksum and its size. Blocks of zeros become holes, because a program's
    sparse file may be larger than the disk."""
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
        raise BackupUnusable(f"The file {FILE} cannot be read: {failure}. Use another backup.") from failure
    if contents.format > FORMAT:
        raise BackupUnusable(
            "This version of Trainshed does not support the backup's format. Restore the backup with "
            f"version {contents.version}, which created it, or a later version."
        )
    for entry in contents.entries:
        # Reject a path that might lead out of the directory (path traversal).
        path = entry.path
        if path.startswith("/") or not path or {"", ".", ".."} & set(path.split("/")):
            raise BackupUnusable(
                f"The backup contains {path!r}, which is not a path below a data directory. Use another "
                "backup."
            )
    return contents
