"""Where an agent writes on its node, and as whom: a directory of its own in one that all agents of its user
share there, and what killed agents have left in it."""

import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_OWN = r"trainshed-[^-]+-\d+-\d+-\d+-.+-[0-9a-f]+(-\d+)?"
"""Names of agents' directories; agents of earlier versions put their process id behind."""


def name_of(agent: str) -> str:
    """What the directory of an agent is called, by the name in its certificate, which no other one has."""
    return agent.replace("/", "-")


def require_user(name: str) -> None:
    """Raises OSError unless this process is that user's; "" = anybody's will do."""
    if not name:
        return
    import pwd

    try:
        wanted = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise OSError(f"this node knows no user {name}, as whom its programs are to run") from None
    if wanted != os.geteuid():
        raise OSError(
            f"user {name} has number {wanted} here, and this is a process of {os.geteuid()}"
        )


def make_ours(directory: "str | Path") -> None:
    """Make it, unless it is there. Its name is easy to guess, and it may lie where everybody writes: what
    others have put there is not used. Raises OSError."""
    path = os.fspath(directory)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path, 0o711)
    except FileExistsError:
        pass
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(
            f"{directory} is a link, belongs to user {status.st_uid}, or can be written to by others; remove "
            "it, or name another directory of the nodes in the engine's settings"
        )


def own_directory(parent: "str | Path", name: str) -> "tuple[str, list[str]]":
    """Make a directory, locked for as long as this process lives; also the directories that killed agents
    have left, renamed so that no other agent takes them up. Raises OSError."""
    lock = os.open(parent, os.O_RDONLY)
    try:
        # One agent at a time: another's new directory is not locked yet, and must not pass for a left one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = os.path.join(parent, name)
        os.mkdir(directory, 0o711)
        fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)
        for other in _others(parent, name):
            path = os.path.join(parent, other)
            if not _is_locked(path):
                try:
                    os.rename(path, os.path.join(parent, ".left-" + other))
                except OSError:
                    pass
        left = [os.path.join(parent, one) for one in os.listdir(parent) if one.startswith(".left-")]
        return directory, left
    finally:
        os.close(lock)


def _others(parent: "str | Path", name: str) -> "list[str]":
    """Agents' directories but that one."""
    found = [other for other in os.listdir(parent) if other.startswith("trainshed-")]
    if found == [name]:
        return []
    import re  # Only here: a start would wait for it.

    return [other for other in found if other != name and re.fullmatch(_OWN, other)]


def _is_locked(directory: str) -> bool:
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


def remove(directories: "Sequence[str]") -> None:
    """Delete them as far as possible, whatever programs have made in them. Blocks."""
    from trainshed.replica.system import trees

    for directory in directories:
        try:
            trees.delete(directory)
        except OSError:
            pass


def is_open(path: "Path") -> bool:
    """Whether this process's user, another than the service's, can reach it at all: what that user cannot
    reach need not be hidden from the programs."""
    try:
        path.stat()
    except PermissionError:
        return False
    except OSError:
        pass
    return True
