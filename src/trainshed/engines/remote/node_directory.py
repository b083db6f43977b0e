"""Makes and removes the directory in which an agent writes on its node. It lies in one that all agents of the
same user share there, and in which killed agents may have left theirs."""

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
    """Return the name of an agent's directory, from the unique name in its certificate."""
    return agent.replace("/", "-")


def require_user(name: str) -> None:
    """Raise OSError unless this process runs as that user; "" = any user."""
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
    """Make the shared directory if needed. Its name is easy to guess, and it may lie where everybody can
    write, so that one of another user is refused. Raises OSError."""
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
    """Make a directory, locked for as long as this process lives. Returns it, and the directories that killed
    agents have left, renamed so that no other agent removes them as well. Raises OSError."""
    lock = os.open(parent, os.O_RDONLY)
    try:
        # One agent at a time: another's new directory, which is not locked yet, must not count as left
        # behind.
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
    """Yield the directories of other agents."""
    found = [other for other in os.listdir(parent) if other.startswith("trainshed-")]
    if found == [name]:
        return []
    import re  # Imported late: a start would wait for it.

    return [other for other in found if other != name and re.fullmatch(_OWN, other)]


def _is_locked(directory: str) -> bool:
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return True  # It was just removed, is another user's, or is no directory.
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(opened)


def remove(directories: "Sequence[str]") -> None:
    """Delete directories as far as possible, whatever programs have made in them. Blocks."""
    from trainshed.replica.system import trees

    for directory in directories:
        try:
            trees.delete(directory)
        except OSError:
            pass


def is_open(path: "Path") -> bool:
    """Whether this process's user, who is not the service's, can reach a path at all. What that user cannot
    reach need not be hidden from programs."""
    try:
        path.stat()
    except PermissionError:
        return False
    except OSError:
        pass
    return True
