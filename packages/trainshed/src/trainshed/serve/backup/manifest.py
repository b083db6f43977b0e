"""The manifest at the end of a backup: describes the backup, and lists every file with its size and checksum.
Also how a backup's files are written.

A backup without a manifest is not complete. Its lines are JSON: the description, an entry for each file and
directory, and last the checksum of all lines before.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
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


class _Sealed(Struct, frozen=True):
    lines: int
    sha256: str


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


def encode(contents: Contents, entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield the lines of a manifest, each with its newline."""
    digest = hashlib.sha256()
    count = 0
    for part in (contents, *entries):
        line = msgspec.json.encode(part) + b"\n"
        digest.update(line)
        count += 1
        yield line
    yield msgspec.json.encode(_Sealed(count, digest.hexdigest())) + b"\n"


def decode(lines: Iterable[bytes]) -> tuple[Contents, list[Entry]]:
    *parts, last = lines or [b""]
    try:
        sealed = msgspec.json.decode(last, type=_Sealed)
        if (sealed.lines, sealed.sha256) != (
            len(parts),
            hashlib.sha256(b"".join(parts)).hexdigest(),
        ):
            raise BackupUnusable(f"Its {FILE} was changed or cut. Use another backup.")
        contents = msgspec.json.decode(parts[0], type=Contents)
        if contents.format > FORMAT:
            raise BackupUnusable(
                f"It was made by version {contents.version}, in a form that this one does not know. "
                "Restore it with that version, or a later one."
            )
        entries = [msgspec.json.decode(part, type=Entry) for part in parts[1:]]
    except (msgspec.MsgspecError, IndexError) as failure:
        raise BackupUnusable(
            f"Its {FILE} cannot be read: {failure}. Use another backup."
        ) from failure
    for entry in entries:
        _require_inside(entry.path)
    return contents, entries


def _require_inside(path: str) -> None:
    """Raise BackupUnusable for a path that might lead out of the directory."""
    if path.startswith("/") or not path or {"", ".", ".."} & set(path.split("/")):
        raise BackupUnusable(
            f"It names {path!r}, which is no path below a data directory. Use another backup."
        )
