"""A lease keeps a unit of a node's cache from being removed: it is a shared lock, held for as long as its
handle is open.

It imports only a little of the standard library, because programs wait for it (`remote.opening`).
"""

import fcntl
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

BUILT = ".built"
"""The file of a finished unit; who uses the unit holds a shared lock on it
(`trainshed.replica.supervisor.program`)."""


def hold(path: str) -> "int | None":
    """Lock a unit; return the handle, or None if it is being removed, or gone."""
    name = os.path.join(path, BUILT)
    if not os.path.exists(name):
        # A foreign interpreter has no such file, and is never removed either.
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
    """Lock a unit if it is the recorded one. `unit`: its `path`, its `digest`, and the path of its record,
    `record` (`shelf.Record`). `boots`: boots of the machine whose units are intact. Raises OSError,
    ValueError if that very unit is not there."""
    with open(unit["record"], encoding="utf-8") as file:
        known = json.loads(file.read())
    if known["digest"] == unit["digest"] and known["boot"] in boots:
        handle = hold(unit["path"])
        if handle is not None:
            # Marks the unit as the most recently used.
            os.utime(unit["record"])
            return handle
    raise FileNotFoundError(unit["path"])
