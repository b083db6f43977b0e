"""Unpacks a root file system from a tar stream with the system's tar, which prevents path traversal through
links."""

import contextlib
import os
import select
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

_RESERVE = 64 << 20
"""Number of bytes that must remain free on the disk after the unpacking."""
_HARMLESS = ("Cannot mknod: Operation not permitted", "Exiting with failure status")
"""Messages of tar when an ordinary user unpacks device files. They are harmless, because the sandbox provides
the programs' device files."""


class UnpackingFailed(Exception):
    """The stream could not be unpacked. The message contains the reason."""


class DiskFull(UnpackingFailed):
    """Raised if the disk is too full for the image."""


def check_room(place: Path, needed: int) -> None:
    """Raise DiskFull if an image of `needed` bytes does not fit on the disk of `place`."""
    free = shutil.disk_usage(place).free
    if needed + _RESERVE > free:
        raise DiskFull(
            f"the image needs {megabytes(needed)} unpacked, but only {megabytes(free)} are free on the disk "
            f"of {place}"
        )


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 10**9 else f"{size / 1e9:,.1f} GB"


def unpack(root: Path, export: Callable[[IO[bytes]], object]) -> None:
    """Unpack the tar stream that `export` writes into the empty directory `root`. Blocks. Raises
    UnpackingFailed. Also raises the errors of `export`, unless tar caused them."""
    tar = shutil.which("tar")
    if tar is None:
        raise UnpackingFailed("the program tar was not found on the service's PATH. Install tar")
    # If tar runs as root, keep the numeric owners, because names of owners refer to users of the image.
    # Otherwise the service's user becomes the owner of all files.
    owners = ["--numeric-owner", "--same-owner"] if os.geteuid() == 0 else ["--no-same-owner"]
    command = [
        *(tar, "--extract", "--file=-", f"--directory={root}", "--preserve-permissions"),
        *("--delay-directory-restore", *owners, "--anchored"),
        # Omit the files that the image tool adds. They are not part of the image.
        *("--exclude=.dockerenv", "--exclude=dev/*", "--exclude=./dev/*"),
    ]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            export(process.stdin)
        except BaseException:
            # If tar has exited, the export failed because it could not write to tar, so report tar's error.
            (readers := select.poll()).register(process.stdin, 0)
            if not readers.poll(0) or not process.wait():
                process.kill()
                raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            status = process.wait()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").splitlines()
    complaints = [line for line in lines if not any(sign in line for sign in _HARMLESS)]
    if status and (complaints or not lines):
        cause = "; ".join(complaints[-3:]) or f"it ended with status {status}"
        if "No space left" in cause:
            raise DiskFull(f"the disk of {root} is full")
        raise UnpackingFailed(f"tar could not unpack the image: {cause}")


def remove_devices(root: Path) -> None:
    """Remove device files from an unpacked image, because the sandbox provides the programs' device files.
    Files that their owner may not read, such as `/etc/shadow`, become readable to the owner, so that they can
    be sent to other nodes."""
    for directory, _, files in os.walk(root):
        for name in files:
            path = os.path.join(directory, name)  # noqa: PTH118 -- ten thousand paths: no objects for them
            mode = os.lstat(path).st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                Path(path).unlink()
            elif stat.S_ISREG(mode) and not mode & stat.S_IRUSR:
                Path(path).chmod(stat.S_IMODE(mode) | stat.S_IRUSR)
