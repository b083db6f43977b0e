"""Makes and removes the directory in which an agent writes on its node. It lies in one that all agents of the
same user share there, and in which killed agents may have left theirs."""

import contextlib
import fcntl
import os
import pwd
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from trainshed.replica.system import trees

_OWN = r"trainshed-[^-]+-\d+-\d+-\d+-.+-[0-9a-f]+"
"""Names of agents' directories."""


def name_of(agent: str) -> str:
    """Return the name of an agent's directory, from the unique name in its certificate."""
    return agent.replace("/", "-")


def require_user(name: str) -> None:
    """Raise OSError unless this process runs as that user; "" = any user."""
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
    """Make the shared directory if needed. Its name is easy to guess, and it may lie where everybody can
    write, so that one of another user is refused. Raises OSError."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(0o711)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(
            f"{directory} is a link, belongs to user {status.st_uid}, or can be written to by others; remove "
            "it, or name another directory of the nodes in the engine's settings"
        )


def own_directory(parent: Path, name: str) -> tuple[Path, list[Path]]:
    """Make a directory, locked for as long as this process lives. Returns it, and the directories that killed
    agents have left, renamed so that no other agent removes them as well. Raises OSError."""
    lock = os.open(parent, os.O_RDONLY)
    try:
        # One agent at a time: another's new directory, which is not locked yet, must not count as left
        # behind.
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = parent / name
        directory.mkdir(0o711)
        fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)
        for other in list(parent.iterdir()):
            if other != directory and re.fullmatch(_OWN, other.name) and not _is_locked(other):
                with contextlib.suppress(OSError):
                    other.rename(parent / f".left-{other.name}")
        return directory, list(parent.glob(".left-*"))
    finally:
        os.close(lock)


def _is_locked(directory: Path) -> bool:
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return True  # It was just removed, is another user's, or is no directory.
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def remove(directories: Sequence[Path]) -> None:
    """Delete directories as far as possible, whatever programs have made in them. Blocks."""
    for directory in directories:
        with contextlib.suppress(OSError):
            trees.delete(str(directory))


def is_open(path: Path) -> bool:
    """Whether this process's user, who is not the service's, can reach a path at all. What that user cannot
    reach need not be hidden from programs."""
    try:
        path.stat()
    except PermissionError:
        return False
    except OSError:
        pass
    return True
