"""Implements the isolation levels of a replica.

There are four levels, the strongest first: `own-user` (the service is root, each replica runs as separate
users), `root` (programs are root, in namespaces), `user` (an ordinary user, in namespaces), `session` (only a
separate session: for hosts that forbid user namespaces).

Calls must have this order: `detach`, then a fork, whose child is the first process of the namespace (a
replica's shim); there, or in a child of that, `View.enter` (`view` module), then `drop`.
"""

import os

from trainshed.replica import protocol
from trainshed.replica.sandbox import users
from trainshed.replica.system import kernel

LEVELS = (protocol.LEVEL_OWN, protocol.LEVEL_ROOT, protocol.LEVEL_USER, protocol.LEVEL_SESSION)


def detach(level: str) -> None:
    """Leave the process namespace: the next forked child is process 1 of a new one. Raises OSError.

    At level `user` the caller moves into a user namespace in which its own user stands for itself.
    """
    if level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT):
        kernel.unshare(kernel.CLONE_NEWPID)
    elif level == protocol.LEVEL_USER:
        users.map_one(os.geteuid(), os.getegid())
        kernel.unshare(kernel.CLONE_NEWPID)


def fork(level: str) -> int:
    """Fork like `os.fork`. The child is process 1 of a new process namespace, if this process may create one
    directly; at other levels, it has to call `detach` and to fork again. Raises OSError."""
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
    """Drop the rights that were necessary to build the view. Call this inside the view. `owner`: handle of
    the namespace of the program's own users, which is closed; None = none. Programs of an image are root in
    their user namespace, as images expect. Raises OSError."""
    if owner is not None:
        users.enter(owner)
    elif level == protocol.LEVEL_USER and in_image:
        users.map_one(0, 0)
    if level == protocol.LEVEL_ROOT:
        return
    if os.geteuid() == 0:
        # Its programs are root of the namespace that owns the mounts, and could undo them.
        users.drop_capabilities(in_image=in_image)
    kernel.forbid_inspection()
