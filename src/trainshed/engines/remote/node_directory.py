"""Where an agent writes on its node, and as whom: a directory of its own in one that all agents of its user
share there, and what killed agents have left in it."""

import contextlib
import fcntl
import os
import pwd
import re
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

_OWN = re.compile(r"trainshed-[^-]+-\d+-\d+-\d+-.+-[0-9a-f]+-\d+")
"""Names of agents' directories."""


def require_user(name: str) -> None:
    """Raises OSError unless this process is that user's; "" = anybody's will do."""
    if not name:
        return
    try:
        wanted = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise OSError(f"this node knows no user {name}, as whom its programs are to run") from None
    if wanted != os.geteuid():
        raise OSError(
            f"user {name} has number {wanted} here, and this is a process of {os.geteuid()}"
        )


def make_ours(directory: Path) -> None:
    """Make it, unless it is there. Its name is easy to guess, and it may lie where everybody writes: what
    others have put there is not used. Raises OSError."""
    directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(
            f"{directory} is a link, belongs to user {status.st_uid}, or can be written to by others; remove "
            "it, or name another directory of the nodes in the engine's settings"
        )


def own_directory(parent: Path, name: str) -> tuple[Path, list[Path]]:
    """Make a directory, locked for as long as this process lives; also the directories that killed agents
    have left, renamed so that no other agent takes them up."""
    lock = os.open(parent, os.O_RDONLY)
    try:
        # One agent at a time: another's new directory is not locked yet, and must not pass for a left one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = parent / name
        directory.mkdir(mode=0o711)
        fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)
        for other in parent.iterdir():
            if _OWN.fullmatch(other.name) and other != directory and not _is_locked(other):
                with contextlib.suppress(OSError):
                    other.rename(parent / f".left-{other.name}")
        return directory, list(parent.glob(".left-*"))
    finally:
        os.close(lock)


def _is_locked(directory: Path) -> bool:
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return True  # Removed just now, of somebody else, or no directory.
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(opened)


def remove(directories: Sequence[Path]) -> None:
    """Delete them as far as possible. Blocks."""
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def written(path: Path, text: str, mode: int = 0o600) -> Path | None:
    """Write the file; None = there is no text."""
    if not text:
        return None
    path.touch(mode=0o600)
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return path


def is_open(path: Path) -> bool:
    """Whether this process's user, another than the service's, can reach it at all: what that user cannot
    reach need not be hidden from the programs."""
    try:
        path.stat()
    except PermissionError:
        return False
    except OSError:
        pass
    return True
