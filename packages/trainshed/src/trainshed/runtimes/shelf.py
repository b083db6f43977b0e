"""Keeps finished directories that are named by their content: built once, read-only, complete or absent.

A directory appears under its key by one rename, after it was built elsewhere under a lock file that other
services on the same cache respect. It is trusted if it is known to be on disk, or was built since this boot.
So a job need not wait for the disk, and a power cut cannot leave a directory that looks finished but has
empty files. The last step of a build, `finish`, runs after the directory is in use and before it is marked as
being on disk. If the process ends during that step, the next service completes it (`finish_all`).

Each has a file `.built`, which holds the boot and the path that it was built for: environments have their own
paths in them, so one that was moved or copied elsewhere counts as missing, and is built again. The file's
modification time says when the directory was used last. Programs lock that file: a shim
keeps a shared lock on it (`trainshed.replica.supervisor.program`), which ends with the shim in any case. So
nothing that a program runs from is removed, whether a service runs or not.
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
from trainshed.replica.supervisor import program
from trainshed.replica.system import durable
from trainshed.runtimes.port import BuildFailed, Progress, unheard
from trainshed.runtimes.stop import Stop
from trainshed.runtimes.trees import freeze, protect, remove_tree

log = logging.getLogger(__name__)

_BUILT = program.BUILT
_DRAFTS, _MARKS, _LOCKS = ".drafts", ".marks", ".locks"
_CREATE = os.O_RDWR | os.O_CREAT

SETTLING = "shelf-settling"
"""Name of the threads that finish a directory and wait for the disk after a build."""

_PAUSE = 0.1
"""Seconds between two looks whether another process has built what is waited for."""
_STAMP_NS = 30 * 10**9
"""Precision, in nanoseconds, of the time of last use."""


def settle() -> None:
    """Wait until all directories that this process has built are finished and on disk. Others are built again
    after a reboot."""
    for thread in threading.enumerate():
        if thread.name == SETTLING:
            thread.join()


class ShelfEntry(Struct, frozen=True):
    """An entry of a shelf. `used`: when it was used last, ns since the epoch. `whole`: False for what a
    builder or a power cut left behind."""

    key: str
    path: Path
    used: Nanos
    whole: bool = True


class Shelf:
    """The directories `<root>/<key>`. Safe for several threads and several processes."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._boot = durable.boot()

    def path(self, key: str) -> Path:
        """Return the path of that key's directory, which exists once it is built."""
        return self._root / key

    def has(self, key: str) -> bool:
        """Whether the directory exists, is complete and was built for this place. Two file-system calls."""
        path = self.path(key)
        try:
            boot, _, place = (path / _BUILT).read_text().partition("\n")
        except OSError:
            return False
        if not (place and _is_same(path, place)):
            return False
        return (bool(self._boot) and boot == self._boot) or self._mark(key).exists()

    def used(self, key: str) -> None:
        """Record that the directory is used now. One file-system call, two now and then."""
        built = self.path(key) / _BUILT
        # The cache of another user cannot be written to; its owner sees by the locks what is used.
        with suppress(OSError):
            stat = built.stat()
            now = time.time_ns()
            if not 0 <= now - stat.st_mtime_ns <= _STAMP_NS:
                os.utime(built, ns=(now, now))

    def last_used(self, key: str) -> int:
        """Return when the directory was used last, ns since the epoch. Raises OSError."""
        return (self.path(key) / _BUILT).stat().st_mtime_ns

    def put(
        self,
        key: str,
        build: Callable[[Path], None],
        *,
        finish: Callable[[Path], None] | None = None,
        writable: str | None = None,
        progress: Progress = unheard,
        stop: Stop | None = None,
    ) -> Path:
        """Return the directory of that key, built by `build(draft)` if it is missing. Blocks.

        `build` fills the directory `draft`, which does not exist yet; its exceptions are passed on, and leave
        nothing. `finish(path)` completes the directory in a thread after this method has returned; the
        directory must be usable without it. `writable`: name of a sub-directory whose permissions stay as
        they are. `progress`: hears if another process builds the same key, and is waited for. `stop`: ends
        that wait with BuildFailed.
        """
        final = self.path(key)
        # First without the lock: a cache that several users share may be read-only to this one.
        if self.has(key):
            return final
        with self._locked(key, progress, stop or Stop()):
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
            # Only now, because an ordinary user cannot move a directory that may not be written to.
            freeze(final)
            if not self._boot:
                self._mark(key).touch()
        if self._boot:
            settling = threading.Thread(
                target=self._settle, args=(key, finish), name=SETTLING, daemon=True
            )
            settling.start()
        return final

    def finish_all(self, finish: Callable[[Path], None]) -> None:
        """Complete the directories that a stopped process left unfinished. Blocks."""
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
        """Whether a program runs from the entry, or it is being built. Raises OSError."""
        if not kept.whole:
            try:
                with _open(self._root / _LOCKS / kept.key) as building:
                    return not durable.try_lock(building)
            except OSError:
                return False
        with _open(kept.path / _BUILT) as built:
            return not durable.try_lock(built)

    def remove(self, kept: ShelfEntry) -> bool:
        """Remove an entry; return False if it is held, or was used since it was listed. Blocks for as long as
        the disk takes. Raises OSError."""
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
        """Remove what a killed builder or a power cut left of a key; the lock ensures that no builder is
        alive."""
        for place in (_DRAFTS, _MARKS):
            (self._root / place).mkdir(parents=True, exist_ok=True)
        # Other users of the machine must not run files that users' setup scripts make there, with permission
        # bits of their choice.
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
        """Finish a directory, then make it durable. If the process ends before that, nothing is lost now: the
        directory is good until the next boot."""
        # The cache may be removed in the meantime, belong to another user, or be on a read-only or full disk.
        try:
            if finish is not None:
                self._finish(key, finish)
            else:
                self._mark_durable(key)
        except OSError as failure:
            log.info("the directory %s is not finished yet: %s", key, failure)

    def _finish(self, key: str, finish: Callable[[Path], None]) -> None:
        with _open(self._lock(key), _CREATE) as lock:
            # Another process that holds the lock finishes, rebuilds or removes the directory.
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
    def _locked(self, key: str, progress: Progress, stop: Stop) -> Generator[None]:
        self._lock(key).parent.mkdir(parents=True, exist_ok=True)
        with _open(self._lock(key), _CREATE) as descriptor:
            if not durable.try_lock(descriptor):
                progress("Another process builds the same; waiting for it.")
                # A thread that blocks in the kernel could not be stopped, nor the service then.
                while not durable.try_lock(descriptor):
                    if stop.is_asked:
                        raise BuildFailed("Another process builds the same; no longer waited for.")
                    time.sleep(_PAUSE)
            yield


@contextmanager
def held(place: Path) -> Generator[None]:
    """Keep a finished directory from being removed while something is built on it."""
    handles = program.hold_leases([str(place)])
    try:
        yield
    finally:
        for handle in handles:
            os.close(handle)


def _is_same(path: Path, place: str) -> bool:
    """Whether a place is that path, perhaps by another name: through a symbolic link, say."""
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
    directories = (
        e for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)
    )
    return sorted(Path(entry.path) for entry in directories)
