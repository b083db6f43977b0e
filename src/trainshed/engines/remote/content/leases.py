"""What keeps a unit of a node's cache from being removed: a shared lock, for as long as its handle is open.

Of the standard library alone, and little of that: programs wait for it (`remote.opening`).
"""

import fcntl
import os

from trainshed.replica.system import lean_json as json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

BUILT = ".built"
"""The file of a finished unit; who uses the unit holds a shared lock on it
(`trainshed.replica.supervisor.program`)."""


def hold(path: str) -> "int | None":
    """None: it is being removed, or gone."""
    name = os.path.join(path, BUILT)
    if not os.path.exists(name):
        # An interpreter of others has no such file; nobody removes it either.
        name = path
    try:
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        mine, there = os.fstat(handle), os.stat(name)
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def hold_as_recorded(unit: "dict[str, str]", boots: "Container[str]") -> int:
    """`unit`: its `path`, its `digest`, and the file of what is known of it, `record` (`shelf.Record`).
    `boots`: those since which it is not hollow. Raises OSError: that very unit is not there; ValueError."""
    with open(unit["record"], encoding="utf-8") as file:
        known = json.loads(file.read())
    if known["digest"] == unit["digest"] and known["boot"] in boots:
        handle = hold(unit["path"])
        if handle is not None:
            # Of those that nobody uses it is the last to go.
            os.utime(unit["record"])
            return handle
    raise FileNotFoundError(unit["path"])
