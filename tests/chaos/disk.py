"""A small file system for the data directory of a chaos run, which the run fills completely and empties
again.

It exists only in the run's own mount namespace. The diaries of the programs are on another file system, so
that they can always be written.
"""

import ctypes
import errno
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.chaos.victim import Span

_NEW_NAMESPACE: Final = 0x00020000
"""CLONE_NEWNS"""
_GIB: Final = 1 << 30
_SIZE: Final = 6 * _GIB
"""Large enough to stay below the warning level of `replica.observe.disk`. Its image is a sparse file."""
_BLOCK: Final = 1 << 20


class DiskUnsupported(Exception):
    """Raised if this machine or user does not support such a disk. The message contains the reason."""


class SmallDisk:
    """A small disk that is mounted at `data`, and another one at `witness`, a bucket directory below it.

    Raises:
        DiskUnsupported: This machine or user does not support such a disk.
    """

    def __init__(self, data: Path, witness: Path) -> None:
        #: Periods in which it was full.
        self.full: list[Span] = []
        self._data, self._witness = data, witness
        self._image = data.parent / "disk.img"
        self._filler = data / "filler"
        _unshare()
        data.mkdir(parents=True, exist_ok=True)
        try:
            with self._image.open("wb") as image:
                image.truncate(_SIZE)
            _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
            _run("mount", "-o", "loop", str(self._image), str(data))
            shutil.rmtree(data / "lost+found")
            witness.mkdir(parents=True)
            _run("mount", "-t", "tmpfs", "-o", "mode=0755,size=256m", "chaos", str(witness))
        except (OSError, subprocess.CalledProcessError) as failure:
            self.close()
            stderr = getattr(failure, "stderr", "") or failure
            raise DiskUnsupported(f"no file system could be mounted: {stderr}".strip()) from failure

    @property
    def places(self) -> tuple[str, ...]:
        """Mount points, the innermost first."""
        return str(self._witness), str(self._data)

    def fill(self) -> None:
        """Use all free space until `empty`."""
        self._began = time.time_ns()
        handle = os.open(self._filler, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            for step in (_GIB, 64 * _BLOCK, _BLOCK, 4096):
                while True:
                    try:
                        os.posix_fallocate(handle, size, step)
                    except OSError as failure:
                        if failure.errno != errno.ENOSPC:
                            raise
                        break
                    size += step
        finally:
            os.close(handle)

    def empty(self) -> None:
        """Free the space, if it was used."""
        if self._filler.exists():
            self._filler.unlink()
            self.full.append(Span(self._began, time.time_ns()))

    def keep(self, directory: Path) -> None:
        """Copy the contents for debugging: the file system disappears at the end of the run."""
        self.empty()
        _run("cp", "-a", str(self._data), str(directory))

    def close(self) -> None:
        for place in self.places:
            subprocess.run(("umount", "-l", place), check=False, capture_output=True)
        self._image.unlink(missing_ok=True)


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NAMESPACE) != 0:
        why = os.strerror(ctypes.get_errno())
        raise DiskUnsupported(f"this user may have no mount namespace of its own ({why})")
    try:
        _run("mount", "--make-rprivate", "/")
    except (OSError, subprocess.CalledProcessError) as failure:
        raise DiskUnsupported(f"mounts cannot be kept apart: {failure}") from failure


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
