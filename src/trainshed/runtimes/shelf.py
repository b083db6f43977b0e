"""A shelf of finished directories named by what is in them: built once, read-only, whole or not there.

A directory appears under its key by one rename, after it was built elsewhere under a lock file that other
services on the same cache honour. It is trusted if it is known to be on disk, or was built since this boot: so a
job need not wait for the disk, and a power cut cannot leave a hollow directory that looks finished.
"""

import ctypes
import fcntl
import os
import secrets
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

_BUILT = ".built"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class Shelf:
    """Directories `<root>/<key>`. Safe for several threads and several processes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._boot = _boot()

    def path(self, key: str) -> Path:
        """Where the directory of that key lies, once it is built."""
        return self._root / key

    def has(self, key: str) -> bool:
        """Whether the directory is there and whole. Two file-system calls."""
        try:
            built = (self.path(key) / _BUILT).read_text()
        except OSError:
            return False
        return (bool(self._boot) and built == self._boot) or self._mark(key).exists()

    def put(self, key: str, build: Callable[[Path], None], *, writable: str = "") -> Path:
        """Return the directory of that key, built by `build(draft)` if it is missing. Blocks.

        `build` fills the directory `draft`, which does not exist yet; what it raises is raised, and leaves
        nothing. `writable`: name of a sub-directory whose permissions stay as they are.
        """
        final = self.path(key)
        # First without the lock: a cache that several users share may be read-only to this one.
        if self.has(key):
            return final
        with self._locked(key):
            if self.has(key):
                return final
            self._sweep(key)
            draft = self._draft(key)
            try:
                build(draft)
                (draft / _BUILT).write_text(self._boot)
                _protect(draft, writable)
                if not self._boot:
                    _sync(self._root)
                draft.rename(final)
            except BaseException:
                remove_tree(draft)
                raise
            # Only now: a directory that may not be written to cannot be moved by an ordinary user.
            final.chmod(final.stat().st_mode & ~_WRITE)
            if not self._boot:
                self._mark(key).touch()
        if self._boot:
            settle = threading.Thread(target=self._settle, args=(key,), daemon=True)
            settle.start()
        return final

    def _draft(self, key: str) -> Path:
        return self._root / ".drafts" / f"{key}.{secrets.token_hex(4)}"

    def _mark(self, key: str) -> Path:
        return self._root / ".marks" / key

    def _sweep(self, key: str) -> None:
        """Remove what a killed builder or a power cut left behind; the lock says that no builder is alive."""
        for place in (".drafts", ".marks"):
            (self._root / place).mkdir(parents=True, exist_ok=True)
        for left in (self._root / ".drafts").glob(f"{key}.*"):
            remove_tree(left)
        final = self.path(key)
        if final.exists():
            self._mark(key).unlink(missing_ok=True)
            doubtful = self._draft(key)
            final.chmod(0o755)
            final.rename(doubtful)
            remove_tree(doubtful)

    def _settle(self, key: str) -> None:
        """Wait for the disk, then say that the directory lasts. Lost with the process, it costs nothing now."""
        try:
            _sync(self._root)
            self._mark(key).touch()
        except FileNotFoundError:
            # The cache was removed meanwhile; there is nothing left to mark.
            return

    @contextmanager
    def _locked(self, key: str) -> Generator[None]:
        locks = self._root / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(locks / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def remove_tree(root: Path) -> None:
    """Remove a directory whose content may be read-only. Links are removed, never followed."""
    if not root.exists():
        return
    for directory, names, _ in os.walk(root):
        for name in (".", *names):
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o755)
    shutil.rmtree(root)


def _protect(root: Path, writable: str) -> None:
    """Take write permission away from everything below `root`, but for `root/writable`."""
    for directory, names, files in os.walk(root):
        if writable and Path(directory) == root and writable in names:
            names.remove(writable)
        for name in (*names, *files):
            path = os.path.join(directory, name)  # noqa: PTH118 -- ten thousand paths: no objects for them
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode) and mode & _WRITE:
                Path(path).chmod(stat.S_IMODE(mode) & ~_WRITE)


def _boot() -> str:
    """What tells this boot of the machine from every other; "" where the system does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _sync(path: Path) -> None:
    """Bring everything written so far on the file system of `path` to the disk."""
    if sys.platform != "linux":
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # One call for ten thousand files; Python has only the call for all file systems.
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), "syncfs failed", str(path))
    finally:
        os.close(descriptor)
