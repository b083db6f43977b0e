"""Restarts the preloader's own interpreter from a read-only mount.

A fork keeps the mount that its interpreter was started from: /proc/self/exe leads to it from any mount
namespace. If that mount is writable, a program that is the file's owner could change what the service and
other jobs run in. So the preloader restarts itself by a handle that was opened in a mount namespace in which
everything is read-only. Runs on Python 3.6.
"""

import os
import socket
import sys

from trainshed.replica.sandbox import mounts, users
from trainshed.replica.system import kernel, unix_sockets

_EXE = "/proc/self/exe"


def begin_read_only() -> None:
    """Return if the interpreter runs from a read-only mount; otherwise restart it from one. Raises OSError if
    that is not possible."""
    if _is_read_only(_EXE):
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if child == 0:
            _answer(theirs)
        theirs.close()
        said, handles = unix_sockets.receive_beside(ours)
    os.waitpid(child, 0)
    if len(handles) < 2 or not _is_read_only(handles[0]):
        kernel.close_all(handles)
        raise OSError("no mount of it is read-only (%s)" % said.decode("utf-8", "replace"))
    # The namespace's handle stays open, because the dynamic loader resolves the interpreter's path in it.
    os.set_inheritable(handles[1], True)
    argv = [sys.executable, "-m", "trainshed.replica.preloader.program"]
    os.execv("/proc/self/fd/%d" % handles[0], argv)


def _is_read_only(place: "str | int") -> bool:
    return bool(os.statvfs(place).f_flag & os.ST_RDONLY)


def _answer(to: socket.socket) -> None:
    """Send handles of the interpreter, opened in a read-only mount namespace, and of that namespace; runs in
    a fork."""
    try:
        path = os.readlink(_EXE)
        if os.geteuid():
            users.map_one(os.geteuid(), os.getegid())
        kernel.unshare(kernel.CLONE_NEWNS)
        mounts.freeze_all(())
        handles = [os.open(name, os.O_RDONLY) for name in (path, "/proc/self/ns/mnt")]
        if not os.path.samestat(os.fstat(handles[0]), os.stat(_EXE)):
            raise OSError("%s is another file by now" % path)
        unix_sockets.send_with(to, b"opened", handles)
    except OSError as error:
        unix_sockets.send_with(to, str(error).encode("utf-8", "replace"), [])
    finally:
        os._exit(0)
