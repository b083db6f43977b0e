"""Manages the files of a node's cache: which units are there and complete, which are in use, and which may be
removed.

All agents of a node share it. Each fetched unit has a record; a unit without one was put there by others (a
service on the node, a shared file system) and is used as it is, if it is finished, but never replaced or
removed. A fetched unit is on disk before it has a record. It also runs in child processes: standard library
only.
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
"""Directory in the cache that holds records and locks."""
_MARKS = ".marks"
"""Beside finished directories: which of them are known to be on disk (`trainshed.runtimes.shelf`)."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a fetched unit."""

    path: str
    digest: str
    bytes: Bytes


class NodeShelf:
    """The cached units below `root`, and interpreters elsewhere."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / STATE
        self._boot = durable.boot()

    def record(self, path: str) -> Record | None:
        """Return a unit's record; None if it was not fetched."""
        try:
            known = Record(**json.loads(self.record_of(path).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return known if known.path == path else None

    def is_finished(self, unit: Unit) -> bool:
        """Whether others have put the unit there, and completely."""
        place = Path(unit.path)
        if not unit.parents:
            # An interpreter that was installed in the usual way.
            return (place / "bin").is_dir() and any(place.glob("lib/python3*/os.py"))
        try:
            boot, _, _ = (place / BUILT).read_text().partition("\n")
            return (place.parent / _MARKS / place.name).exists() or self._boot == boot != ""
        except OSError:
            return False

    def lease(self, unit: Unit, *, whatever: bool = False) -> int | None:
        """Return a handle that keeps the unit from being removed until it is closed; None = it has to be
        fetched first, or is just being removed. `whatever`: do not check whether the unit is outdated."""
        record = self.record(unit.path)
        if record is None:
            if not self.is_finished(unit):
                return None
        elif not whatever and record.digest != unit.digest:
            return None
        handle = _lock_shared(unit.path)
        if handle is not None and record is not None:
            with contextlib.suppress(OSError):
                os.utime(self.record_of(unit.path))
        return handle

    # --- what changes it: with the unit's lock held ---

    @contextlib.contextmanager
    def locked(self, path: str) -> Generator[None]:
        """Context in which nothing else on this node fetches or removes the unit. Blocks. Raises OSError."""
        handle = self._open_lock(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def make_parents(self, unit: Unit) -> None:
        """Make the directories around a unit, with the permissions that they have on the service's machine.
        Raises OSError."""
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
                # Its owner could replace what programs are to run.
                raise PermissionError(
                    f"{path} is a link, or belongs to user {status.st_uid}, on this node"
                )

    def draft(self, path: str) -> Path:
        """Return an empty directory on the same disk in which to unpack. Removes what a killed process left
        there."""
        place = Path(path)
        for left in place.parent.glob(f".{place.name}.*.fetching"):
            remove(left)
        return place.parent / f".{place.name}.{secrets.token_hex(4)}.fetching"

    def place(self, draft: Path, unit: Unit, size: int) -> None:
        """Sync an unpacked unit to disk, and move it to its path, atomically. Blocks for as long as the disk
        takes. Raises OSError."""
        bits = stat.S_IMODE(draft.stat().st_mode)
        draft.chmod(bits | stat.S_IWUSR)
        (draft / BUILT).touch(0o444)
        draft.chmod(bits)
        durable.sync_file_system(str(draft))
        # The record comes first: a unit without one would count as put there by others.
        self._write(Record(unit.path, unit.digest, size))
        draft.rename(unit.path)

    def take_away(self, path: str) -> bool:
        """Remove a fetched unit. Returns False if it is in use, or others have put it there (and may use it
        from other machines, too). Raises OSError."""
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

    def make_room(self, needed: int, limit: int, free: int) -> None:
        """Remove the least recently used units until `needed` more bytes keep to `limit` (0 = none) and to
        the bytes `free` on the disk; never those in use. Blocks. Raises OSError."""
        records = sorted(self._records(), key=lambda entry: entry[0])
        total = sum(record.bytes for _, record in records)
        excess = max(total + needed - limit if limit else 0, needed - free)
        for _, record in records:
            if excess <= 0:
                return
            lock = self._open_lock(record.path)
            try:
                if durable.try_lock(lock) and self.take_away(record.path):
                    excess -= record.bytes
            finally:
                os.close(lock)

    def _records(self) -> Iterator[tuple[int, Record]]:
        """Yield (time of last use, record) of each fetched unit."""
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
    """Remove a tree, whatever its permissions. Links are removed, never followed."""
    if root.is_symlink() or not root.exists():
        return
    for directory, names, _ in os.walk(root):
        for name in (".", *names):
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(root)


def _lock_shared(path: str) -> int | None:
    """Lock a unit against removal; return the handle, or None if it is being removed, or gone."""
    place = Path(path, BUILT)
    if not place.exists():
        # A foreign interpreter has no such file, and is never removed either.
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
