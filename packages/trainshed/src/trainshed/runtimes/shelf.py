"""Keeps finished directories, named by their content. Each is built once, read-only, and complete or absent.

A directory is built elsewhere, under a lock file that other services on the same cache honor. Then one rename
moves it to its key. A directory is trusted if it is known to be on disk, or was built since this boot. So a
job need not wait for the disk, and a power failure cannot leave a directory that looks finished but has empty
files. The last step of a build, `finish`, runs after the directory is in use and before it is marked as being
on disk. If the process exits during that step, the next service completes the step (`finish_all`).

Each directory has a file `.built`, which contains the boot ID and the path of the build. Environments contain
their own paths, so a moved or copied one counts as missing, and is built again. The file's modification time
is the time of the last use. Each shim that uses the directory has a shared lock on `.built`, which always
ends with the shim (`trainshed.replica.system.cache_leases`). So no directory that a program uses is removed,
even if no service is running.
"""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from trainshed.core.units import Nanos
from trainshed.replica.system import cache_leases, durable
from trainshed.runtimes.port import BuildFailed, Progress, ignore_progress
from trainshed.runtimes.stop import Stop
from trainshed.runtimes.trees import freeze, protect, remove_tree

log = logging.getLogger(__name__)

_BUILT = cache_leases.BUILT
_DRAFTS, _MARKS, _LOCKS = ".drafts", ".marks", ".locks"
_CREATE = os.O_RDWR | os.O_CREAT

SETTLING = "shelf-settling"
"""Name of the threads that finish directories and sync them after a build."""

_POLL_INTERVAL = 0.1
"""Seconds between two checks whether another process's build has ended."""
_STAMP_NS = 30 * 10**9
"""Precision of the time of last use, in nanoseconds."""


def settle() -> None:
    """Wait until all directories that this process built are finished and on disk. After a reboot,
    directories that were not on disk are built again."""
    for thread in threading.enumerate():
        if thread.name == SETTLING:
            thread.join()


class ShelfEntry(Struct, frozen=True):
    """An entry of a shelf. `used`: time of the last use, in ns since the epoch. `whole`: False for files that
    a killed builder or a power failure left."""

    key: str
    path: Path
    used: Nanos
    whole: bool = True


class Shelf:
    """Manages the directories `<root>/<key>`. Safe for several threads and several processes."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._boot = durable.boot_id()

    def path(self, key: str) -> Path:
        """Return the path of the directory with that key. It exists after its build."""
        return self._root / key

    def has(self, key: str) -> bool:
        """Whether the directory exists, is complete, and was built for this path. Two system calls."""
        path = self.path(key)
        try:
            boot, _, place = (path / _BUILT).read_text().partition("\n")
        except OSError:
            return False
        if not (place and _is_same(path, place)):
            return False
        return (bool(self._boot) and boot == self._boot) or self._mark(key).exists()

    def record_use(self, key: str) -> None:
        """Record that the directory is used now. Makes one or two file-system calls."""
        built = self.path(key) / _BUILT
        # Ignore errors, because another user's cache may be read-only. The cache's owner detects uses by the
        # locks instead.
        with suppress(OSError):
            stat = built.stat()
            now = time.time_ns()
            if not 0 <= now - stat.st_mtime_ns <= _STAMP_NS:
                os.utime(built, ns=(now, now))

    def last_used(self, key: str) -> int:
        """Return the time of the directory's last use, in ns since the epoch. Raises OSError."""
        return (self.path(key) / _BUILT).stat().st_mtime_ns

    def put(
        self,
        key: str,
        build: Callable[[Path], None],
        *,
        finish: Callable[[Path], None] | None = None,
        writable: str | None = None,
        progress: Progress = ignore_progress,
        stop: Stop | None = None,
    ) -> Path:
        """Return the directory of that key, built by `build(draft)` if it is missing. Blocks.

        Args:
            build: Creates and fills the directory `draft`. If it raises an exception, this method removes
                `draft` and raises the exception again.
            finish: Completes the directory in a thread after this method has returned. The directory must be
                usable before that.
            writable: Name of a subdirectory whose permissions do not change.
            progress: Receives a line if this method waits for another process with the same key.
            stop: Ends that wait with BuildFailed.
        """
        final = self.path(key)
        # Check without the lock first, because a shared cache may be read-only for this user.
        if self.has(key):
            return final
        with self._hold_lock(key, progress, stop or Stop()):
            if self.has(key):
                return final
            self._sweep(key)
            draft = self._draft(key)
            try:
                build(draft)
                if finish is not None and not self._boot:
                    finish(draft)
                (draft / _BUILT).write_text(f"{self._boot}\n{final}")
                protect(draft, writable)
                if not self._boot:
                    durable.sync_file_system(str(self._root))
                draft.rename(final)
            except BaseException:
                remove_tree(draft)
                raise
            # Freeze the directory after the move, because an ordinary user cannot move a read-only directory.
            freeze(final)
            if not self._boot:
                self._mark(key).touch()
        if self._boot:
            settling = threading.Thread(target=self._settle, args=(key, finish), name=SETTLING, daemon=True)
            settling.start()
        return final

    def finish_all(self, finish: Callable[[Path], None]) -> None:
        """Finish the directories that a stopped process left unfinished. Blocks."""
        for entry in self.content():
            if entry.whole:
                self._settle(entry.key, finish)

    def content(self) -> Iterator[ShelfEntry]:
        for path in _directories(self._root):
            with suppress(OSError):
                whole = self.has(path.name)
                stat = (path / _BUILT).stat() if whole else path.stat()
                yield ShelfEntry(path.name, path, stat.st_mtime_ns, whole)
        for path in _directories(self._root / _DRAFTS):
            with suppress(OSError):
                key = path.name.rpartition(".")[0]
                yield ShelfEntry(key, path, path.stat().st_mtime_ns, whole=False)

    def is_held(self, kept: ShelfEntry) -> bool:
        """Return whether a program uses the entry, or a builder is building it. Raises OSError."""
        if not kept.whole:
            try:
                with _open(self._root / _LOCKS / kept.key) as building:
                    return not durable.try_lock(building)
            except OSError:
                return False
        with _open(kept.path / _BUILT) as built:
            return not durable.try_lock(built)

    def remove(self, kept: ShelfEntry) -> bool:
        """Remove an entry. Return False if it is in use, or was used after it was listed. Blocks until the
        entry is deleted from the disk. Raises OSError."""
        locks = self._root / _LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        with _open(locks / kept.key, _CREATE) as building:
            if not durable.try_lock(building):
                return False
            if not kept.whole:
                remove_tree(kept.path)
                return True
            with _open(kept.path / _BUILT) as built:
                if not durable.try_lock(built) or os.fstat(built).st_mtime_ns != kept.used:
                    return False
                self._sweep(kept.key)
        return True

    def _draft(self, key: str) -> Path:
        return self._root / _DRAFTS / f"{key}.{secrets.token_hex(4)}"

    def _mark(self, key: str) -> Path:
        return self._root / _MARKS / key

    def _lock(self, key: str) -> Path:
        return self._root / _LOCKS / key

    def _sweep(self, key: str) -> None:
        """Remove the files of this key that a killed builder or a power failure left. The caller has the
        lock, so no builder is alive."""
        for place in (_DRAFTS, _MARKS):
            (self._root / place).mkdir(parents=True, exist_ok=True)
        # Close the directory of drafts to other users. Users' setup scripts may create files in drafts with
        # any permission bits, and other users of the machine must not run these files.
        with suppress(PermissionError):
            (self._root / _DRAFTS).chmod(0o700)
        for left in (self._root / _DRAFTS).glob(f"{key}.*"):
            remove_tree(left)
        final = self.path(key)
        if final.exists():
            self._mark(key).unlink(missing_ok=True)
            doubtful = self._draft(key)
            final.chmod(0o755)
            final.rename(doubtful)
            remove_tree(doubtful)

    def _settle(self, key: str, finish: Callable[[Path], None] | None) -> None:
        """Finish a directory, then make it durable. If the process exits before that, the directory is valid
        until the next boot."""
        # Ignore errors: the cache may be removed in the meantime. It may also belong to another user, or be
        # on a read-only or full disk.
        try:
            if finish is not None:
                self._finish(key, finish)
            else:
                self._mark_durable(key)
        except OSError as failure:
            log.info("the directory %s is not finished yet: %s", key, failure)

    def _finish(self, key: str, finish: Callable[[Path], None]) -> None:
        with _open(self._lock(key), _CREATE) as lock:
            # Another process may have the lock. In this case, that process finishes, rebuilds or removes the
            # directory.
            if not durable.try_lock(lock) or self._mark(key).exists() or not self.has(key):
                return
            try:
                finish(self.path(key))
            except BuildFailed as failure:
                log.info("the directory %s is not finished yet: %s", key, failure)
                return
            self._mark_durable(key)

    def _mark_durable(self, key: str) -> None:
        durable.sync_file_system(str(self._root))
        self._mark(key).touch()

    @contextmanager
    def _hold_lock(self, key: str, progress: Progress, stop: Stop) -> Generator[None]:
        self._lock(key).parent.mkdir(parents=True, exist_ok=True)
        with _open(self._lock(key), _CREATE) as descriptor:
            if not durable.try_lock(descriptor):
                progress("Another process is building the same environment; waiting for it.")
                # Poll instead of blocking: the service could not exit while a thread blocks in the kernel.
                while not durable.try_lock(descriptor):
                    if stop.is_asked:
                        raise BuildFailed(
                            "The wait for another process that builds the same environment was stopped."
                        )
                    time.sleep(_POLL_INTERVAL)
            yield


@contextmanager
def hold(place: Path) -> Generator[None]:
    """Prevent the removal of the finished directory `place` while the context is open, for example while a
    layer (a job's packages) is built on top of it."""
    handles = cache_leases.hold_leases([str(place)])
    try:
        yield
    finally:
        for handle in handles:
            os.close(handle)


def _is_same(path: Path, place: str) -> bool:
    """Whether both paths refer to the same directory. One path may contain symbolic links."""
    try:
        return str(path) == place or path.samefile(place)
    except OSError:
        return False


@contextmanager
def _open(path: Path, flags: int = os.O_RDONLY) -> Generator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _directories(root: Path) -> list[Path]:
    try:
        entries = list(os.scandir(root))
    except OSError:
        return []
    directories = (e for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False))
    return sorted(Path(entry.path) for entry in directories)
