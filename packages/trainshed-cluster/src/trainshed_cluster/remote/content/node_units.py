"""Manages the units in a node's cache: decides which units are complete, in use or removable.

All agents of a node share the cache. Each fetched unit has a record. Units without a record belong to a
service on the node or to a shared file system. They are used if they are finished, but never replaced or
removed. The data of a fetched unit is synced to disk before its record is written. Child processes also run
this module, so it uses only the standard library.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from trainshed.core.units import Bytes
from trainshed.replica.system import durable
from trainshed_cluster.remote.content.manifest import BUILT, Unit

STATE = ".node"
"""Directory in the cache that contains the records and locks of fetched directories (units)."""
_MARKS = ".marks"
"""Directory of marks. A mark with the name of a directory shows that this directory is completely on disk.
The directory is next to `.marks` (`trainshed.runtimes.shelf`)."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a directory (unit) that was fetched from the service."""

    path: str
    digest: str
    bytes: Bytes


class NodeUnits:
    """The units in a node's cache, which are directories for programs: those below `root`, and interpreters
    outside `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / STATE
        self._boot = durable.boot_id()

    def record(self, path: str) -> Record | None:
        """Return the record of the directory (unit) at `path`, or None if it was not fetched."""
        try:
            known = Record(**json.loads(self.record_of(path).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return known if known.path == path else None

    def is_finished(self, unit: Unit) -> bool:
        """Return whether a directory (unit) that was not fetched exists and is complete."""
        place = Path(unit.path)
        if not unit.parents:
            # A directory outside the cache is a normally installed interpreter, which has no `BUILT` file.
            return (place / "bin").is_dir() and any(place.glob("lib/python3*/os.py"))
        try:
            boot, _, _ = (place / BUILT).read_text().partition("\n")
            return (place.parent / _MARKS / place.name).exists() or self._boot == boot != ""
        except OSError:
            return False

    def lease(self, unit: Unit, *, any_digest: bool = False) -> int | None:
        """Return a file descriptor that protects the directory of a unit from removal. The protection ends
        when the caller closes the descriptor. None = the unit is being removed, or must be fetched first.
        `any_digest`: whether to accept a unit whose content is outdated."""
        record = self.record(unit.path)
        if record is None:
            if not self.is_finished(unit):
                return None
        elif not any_digest and record.digest != unit.digest:
            return None
        handle = _lock_shared(unit.path)
        if handle is not None and record is not None:
            with contextlib.suppress(OSError):
                os.utime(self.record_of(unit.path))
        return handle

    # --- changes (the caller holds the lock of the directory) ---

    @contextlib.contextmanager
    def lock_unit(self, path: str) -> Generator[None]:
        """Hold the lock of the directory (unit) at `path` in this context, so that no other process on this
        node fetches or removes it. Blocks. Raises OSError."""
        handle = self._open_lock(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def make_parents(self, unit: Unit) -> None:
        """Create the parent directories of a unit (a directory to fetch), with the same permissions as on the
        service's machine. Raises OSError if a parent directory is a link or belongs to another user."""
        if not unit.parents:
            Path(unit.path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            return
        Path(unit.parents[0][0]).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path, mode in unit.parents:
            place = Path(path)
            with contextlib.suppress(FileExistsError):
                place.mkdir(mode=0o700)
                place.chmod(mode)
            status = place.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()):
                # The owner of such a directory could replace the files of programs.
                raise PermissionError(
                    f"{path} is a link, or belongs to user {status.st_uid}, on this node; remove it"
                )

    def draft(self, path: str) -> Path:
        """Return a path for a temporary directory on the same disk as `path`, in which the fetched directory
        is unpacked. Removes the temporary directories of killed processes."""
        place = Path(path)
        for left in place.parent.glob(f".{place.name}.*.fetching"):
            remove(left)
        return place.parent / f".{place.name}.{secrets.token_hex(4)}.fetching"

    def place(self, draft: Path, unit: Unit, size: int) -> None:
        """Sync an unpacked unit (a directory) to disk, and move it to its path atomically. Blocks until the
        disk has finished. Raises OSError. `draft`: the temporary directory with the unpacked files."""
        bits = stat.S_IMODE(draft.stat().st_mode)
        draft.chmod(bits | stat.S_IWUSR)
        (draft / BUILT).touch(0o444)
        draft.chmod(bits)
        durable.sync_file_system(str(draft))
        # Write the record first, because a directory without a record does not count as fetched.
        self._write(Record(unit.path, unit.digest, size))
        draft.rename(unit.path)

    def remove_unit(self, path: str) -> bool:
        """Remove a fetched directory (unit). Returns False if it is in use or was not fetched. A directory
        that was not fetched is kept, because other machines may use it. Raises OSError."""
        record, place = self.record_of(path), Path(path)
        if not place.exists():
            record.unlink(missing_ok=True)
            return True
        if not record.exists():
            return False
        built = os.open(place / BUILT, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not durable.try_lock(built):
            os.close(built)
            return False
        try:
            trash = self.draft(path)
            place.rename(trash)
            record.unlink()
        finally:
            os.close(built)
        remove(trash)
        return True

    def free_space(self, needed: int, limit: int, free: int) -> None:
        """Remove the least recently used directories (units) until `needed` more bytes fit into the cache and
        onto the disk. Directories in use remain. Blocks. Raises OSError.

        - `limit`: maximum bytes of the cache; 0 = no limit.
        - `free`: free bytes of the disk.
        """
        records = sorted(self._records(), key=lambda entry: entry[0])
        total = sum(record.bytes for _, record in records)
        excess = max(total + needed - limit if limit else 0, needed - free)
        for _, record in records:
            if excess <= 0:
                return
            lock = self._open_lock(record.path)
            try:
                if durable.try_lock(lock) and self.remove_unit(record.path):
                    excess -= record.bytes
            finally:
                os.close(lock)

    def _records(self) -> Iterator[tuple[int, Record]]:
        """Yield (time of last use, record) of each fetched directory (unit)."""
        for place in (self.state / "units").glob("*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                yield place.stat().st_mtime_ns, Record(**json.loads(place.read_text()))

    def record_of(self, path: str) -> Path:
        return self.state / "units" / f"{_name(path)}.json"

    def _open_lock(self, path: str) -> int:
        locks = self.state / "locks"
        locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(locks / _name(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _write(self, record: Record) -> None:
        place = self.record_of(record.path)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable.write(str(place), json.dumps(asdict(record)))


def remove(root: Path) -> None:
    """Remove a directory tree, even if directories in it are not writable. Links are removed, but not
    followed."""
    if root.is_symlink() or not root.exists():
        return
    for directory, names, _ in os.walk(root):
        for name in (".", *names):
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(root)


def _lock_shared(path: str) -> int | None:
    """Protect the directory of a unit from removal. Returns the file descriptor that holds the lock, or None
    if the directory does not exist or is being removed."""
    place = Path(path, BUILT)
    if not place.exists():
        # Lock the directory itself: an interpreter that was not fetched lacks the file `BUILT`, and is never
        # removed.
        place = Path(path)
    try:
        handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        mine, there = os.fstat(handle), place.stat()
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            return handle
    os.close(handle)
    return None


def _name(path: str) -> str:
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:32]
