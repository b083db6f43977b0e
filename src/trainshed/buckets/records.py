"""The metadata of one object, kept with its file so that it can never describe another content.

A record names the file it was written for (inode, size, modification time). It counts only while
the file still has that identity: a write through the directory (``/gcs``) makes it stale, and the
object then has a fresh generation that is a function of the new identity alone.

Kept in an extended attribute where the file system has them and the record fits, else in a sidecar
file that is named by the identity and lies outside the visible tree.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

_ATTRIBUTE = "user.trainshed.object"
_NO_ATTRIBUTES = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_TOO_LARGE = {errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT}
_DIRECT_GENERATION_BASE = 4 * 10**18
_DIRECT_GENERATIONS = 5 * 10**18


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What changes when somebody writes to, or replaces, a file; times in ns since the epoch."""

    inode: int
    size: int
    mtime_ns: int

    @staticmethod
    def of(stat: os.stat_result) -> FileIdentity:
        """The identity that a stat result shows."""
        return FileIdentity(stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """Everything that is known of one generation of an object beside its bytes.

    ``md5`` and ``crc32c`` are base64, or '' while unknown; ``fields`` are the editable properties
    under their public names (contentType, cacheControl, …); times in ns since the epoch.
    """

    file: FileIdentity
    generation: int
    metageneration: int
    created_ns: int
    updated_ns: int
    md5: str = ""
    crc32c: str = ""
    fields: dict[str, str] = field(default_factory=dict[str, str])
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    components: int = 0

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self.file.size


def direct_record(identity: FileIdentity) -> ObjectRecord:
    """The record of a file that was written through the directory: a pure function of identity.

    Its generations lie in a range that generations given out by the API (microseconds) never
    reach, so that neither kind can be taken for the other.
    """
    seed = f"{identity.inode}:{identity.size}:{identity.mtime_ns}".encode()
    number = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
    return ObjectRecord(
        file=identity,
        generation=_DIRECT_GENERATION_BASE + number % _DIRECT_GENERATIONS,
        metageneration=1,
        created_ns=identity.mtime_ns,
        updated_ns=identity.mtime_ns,
        fields={"contentType": "application/octet-stream"},
    )


class RecordStore:
    """Reads and writes records of open files. Blocking; safe to use from several threads."""

    def __init__(self, sidecars: Path, *, attributes: bool = True) -> None:
        self._sidecars = sidecars
        self._attributes = attributes and sys.platform == "linux"

    def load(self, fd: int, stat: os.stat_result) -> ObjectRecord:
        """The record of an open file, or the one derived from its identity if none is valid."""
        identity = FileIdentity.of(stat)
        stored = self._from_attribute(fd)
        if stored is None or stored.file != identity:
            stored = self._from_sidecar(identity)
        if stored is None or stored.file != identity:
            return direct_record(identity)
        return stored

    def save(self, fd: int, record: ObjectRecord) -> None:
        """Attach a record to an open file; the caller syncs the file, we sync a sidecar."""
        encoded = msgspec.json.encode(record)
        if self._to_attribute(fd, encoded):
            self._sidecar(record.file).unlink(missing_ok=True)
            return
        path = self._sidecar(record.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, encoded)
        self._drop_attribute(fd)

    def forget(self, identity: FileIdentity) -> None:
        """Drop the sidecar, if any, of a file that is gone."""
        self._sidecar(identity).unlink(missing_ok=True)

    def _sidecar(self, identity: FileIdentity) -> Path:
        name = f"{identity.inode}-{identity.size}-{identity.mtime_ns}.json"
        return self._sidecars / f"{identity.inode % 256:02x}" / name

    def _from_sidecar(self, identity: FileIdentity) -> ObjectRecord | None:
        try:
            return _decode(self._sidecar(identity).read_bytes())
        except FileNotFoundError:
            return None

    def _from_attribute(self, fd: int) -> ObjectRecord | None:
        if sys.platform == "linux" and self._attributes:
            try:
                return _decode(os.getxattr(fd, _ATTRIBUTE))
            except OSError as error:
                if error.errno != errno.ENODATA and error.errno not in _NO_ATTRIBUTES:
                    raise
        return None

    def _to_attribute(self, fd: int, encoded: bytes) -> bool:
        if sys.platform == "linux" and self._attributes:
            try:
                os.setxattr(fd, _ATTRIBUTE, encoded)
            except OSError as error:
                if error.errno not in _NO_ATTRIBUTES | _TOO_LARGE:
                    raise
            else:
                return True
        return False

    def _drop_attribute(self, fd: int) -> None:
        if sys.platform == "linux" and self._attributes:
            try:
                os.removexattr(fd, _ATTRIBUTE)
            except OSError as error:
                if error.errno != errno.ENODATA and error.errno not in _NO_ATTRIBUTES:
                    raise


def _decode(encoded: bytes) -> ObjectRecord | None:
    # A job may scribble on the attribute of its own file: what does not decode is not a record.
    try:
        return msgspec.json.decode(encoded, type=ObjectRecord)
    except msgspec.MsgspecError:
        return None


def write_durably(path: Path, content: bytes) -> None:
    """Replace ``path`` atomically: temporary file, fsync, rename, fsync of the directory."""
    temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}.new")
    with temporary.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
