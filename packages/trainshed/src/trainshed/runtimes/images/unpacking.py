"""Unpacks a root file system from a tar stream with the system's tar, which lets no link lead a file out of
its directory."""

import collections
import contextlib
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

_RESERVE = 64 << 20
"""Bytes that stay free on the disk."""
_LAST_LINES = 20
_HARMLESS = ("Cannot mknod: Operation not permitted", "Exiting with failure status")
"""What tar prints when an ordinary user unpacks device files, which programs are shown anyway."""


class UnpackingFailed(Exception):
    """The stream could not be unpacked. The message says why."""


class DiskFull(UnpackingFailed):
    """The disk is too full."""


def check_room(place: Path, needed: int) -> None:
    """Raise DiskFull if an image of so many bytes does not fit on the disk of `place`."""
    free = shutil.disk_usage(place).free
    if needed + _RESERVE > free:
        raise DiskFull(
            f"it takes {megabytes(needed)} unpacked, and {megabytes(free)} are free on the disk of {place}"
        )


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 10**9 else f"{size / 1e9:,.1f} GB"


class Unpacking:
    """Unpacks one stream into the directory `root`, which exists and is empty. Blocks."""

    def __init__(self, root: Path) -> None:
        self.bytes = 0
        self._root = root
        self._said: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._tar = self._start()
        assert self._tar.stdin is not None
        assert self._tar.stderr is not None
        self._input: IO[bytes] = self._tar.stdin
        self._errors: IO[bytes] = self._tar.stderr
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def take(self, chunk: bytes) -> None:
        """Unpack the next bytes of the stream. Raises UnpackingFailed."""
        try:
            self._input.write(chunk)
        except BrokenPipeError:
            self.finish()
            raise UnpackingFailed("tar stopped before the end of the image") from None
        self.bytes += len(chunk)

    def finish(self) -> None:
        """Handle the end of the stream: wait until everything is unpacked. Raises UnpackingFailed."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        status = self._tar.wait()
        self._listening.join()
        complaints = [line for line in self._said if not any(sign in line for sign in _HARMLESS)]
        if status and (complaints or not self._said):
            cause = "; ".join(complaints[-3:]) or f"it ended with status {status}"
            if "No space left" in cause:
                raise DiskFull(f"the disk of {self._root} is full")
            raise UnpackingFailed(f"tar could not unpack it: {cause}")

    def abandon(self) -> None:
        """Stop unpacking; what is unpacked already stays."""
        self._tar.kill()
        self._tar.wait()
        self._listening.join()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        # As root, owners are kept by number, as names are the image's own; otherwise this user owns
        # everything.
        owners = ["--numeric-owner", "--same-owner"] if os.geteuid() == 0 else ["--no-same-owner"]
        tar = shutil.which("tar")
        if tar is None:
            raise UnpackingFailed("the program tar was not found on the service's PATH")
        return subprocess.Popen(
            [
                tar,
                "--extract",
                "--file=-",
                f"--directory={self._root}",
                "--preserve-permissions",
                "--delay-directory-restore",
                *owners,
                "--anchored",
                # Of the tool that made the stream, not of the image.
                "--exclude=.dockerenv",
                "--exclude=dev/*",
                "--exclude=./dev/*",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            start_new_session=True,
        )

    def _listen(self) -> None:
        for line in self._errors:
            self._said.append(line.decode(errors="replace").strip())


def unpack(
    root: Path, pour: Callable[[Callable[[bytes], None]], None], tell: Callable[[int], None]
) -> None:
    """Unpack into `root` what `pour` passes on; `tell` gets the number of bytes so far. Raises
    UnpackingFailed, and what `pour` raises."""
    unpacking = Unpacking(root)

    def take(chunk: bytes) -> None:
        unpacking.take(chunk)
        tell(unpacking.bytes)

    try:
        pour(take)
    except BaseException:
        unpacking.abandon()
        raise
    unpacking.finish()


def remove_devices(root: Path) -> None:
    """Remove device files from what was unpacked: programs are shown devices of our choice, never an
    image's."""
    for directory, _, files in os.walk(root):
        for name in files:
            path = os.path.join(directory, name)  # noqa: PTH118 -- ten thousand paths: no objects for them
            mode = os.lstat(path).st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                Path(path).unlink()
