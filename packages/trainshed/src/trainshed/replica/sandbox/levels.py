"""Implements the isolation levels of a replica. The levels are, from strong to weak:

- `own-user`: the service is root, and each replica runs as separate users.
- `root`: programs run as root, in namespaces.
- `user`: programs run as an ordinary user, in namespaces.
- `session`: programs only have a separate session. This level is for hosts that forbid user namespaces.

Callers use this order. First, a process calls `detach` and forks. The child is the first process of the new
namespace (a replica's shim). Then the child, or one of its own children, calls `View.enter` (`view` module)
and `drop`.
"""

import os

from trainshed.replica import protocol
from trainshed.replica.sandbox import users
from trainshed.replica.system import kernel

LEVELS = (protocol.LEVEL_OWN, protocol.LEVEL_ROOT, protocol.LEVEL_USER, protocol.LEVEL_SESSION)


def detach(level: str) -> None:
    """Leave the process namespace: the next forked child is process 1 of a new namespace. Raises OSError. At
    level `user`, the caller moves into a user namespace that contains only its own user, with an unchanged
    ID."""
    if level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT):
        kernel.unshare(kernel.CLONE_NEWPID)
    elif level == protocol.LEVEL_USER:
        users.map_one(os.geteuid(), os.getegid())
        kernel.unshare(kernel.CLONE_NEWPID)


def fork(level: str) -> int:
    """Fork like `os.fork`. At the levels `own-user` and `root`, the child is process 1 of a new process
    namespace. At other levels, the child has to call `detach` and fork again. Raises OSError."""
    if level not in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT):
        return os.fork()
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    child = -1
    kernel.unshare(kernel.CLONE_NEWPID)
    try:
        child = os.fork()
    finally:
        if child:
            kernel.enter_namespace(own, kernel.CLONE_NEWPID)
        os.close(own)
    return child


def drop(level: str, owner: int | None, in_image: bool) -> None:
    """Drop the rights that were necessary to build the view. Call this inside the view. Raises OSError.
    `owner`: file descriptor of the namespace of the program's own users, closed by this call; None if there
    is none. Programs of an image are root in their user namespace, as images expect."""
    if owner is not None:
        users.enter(owner)
    elif level == protocol.LEVEL_USER and in_image:
        users.map_one(0, 0)
    if level == protocol.LEVEL_ROOT:
        return
    if os.geteuid() == 0:
        # At this level, programs are root of the namespace that owns the mounts. With all capabilities, they
        # could undo the mounts.
        users.drop_capabilities(in_image=in_image)
    kernel.forbid_inspection()
