"""Implements the isolation levels of a replica, and finds out which work on this machine.

Four levels, the strongest first: `own-user` (the service is root, each replica runs as users of its own),
`root` (its programs are root, in namespaces), `user` (an ordinary user's, in namespaces), `session` (only a
session of its own: hosts that forbid user namespaces).

Calls come in this order: `detach`, then a fork, whose child is the first process of the namespace (a
replica's shim); there, or in a child of that, `View.enter` (`view` module), then `drop`.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence

from trainshed.replica import protocol
from trainshed.replica.sandbox import users, view
from trainshed.replica.system import kernel

LEVELS = (protocol.LEVEL_OWN, protocol.LEVEL_ROOT, protocol.LEVEL_USER, protocol.LEVEL_SESSION)
_PROBE_USERS = 0x7FFF0000
_PASSING = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
)
_PAUSES = (0.5, 1.0, 2.0)
_WORKS, _SHORT = "works", "short: "


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
    """Fork as `os.fork` does. The child is process 1 of a process namespace of its own, if that takes no
    other rights than this process has; at other levels it has to call `detach` and to fork again. Raises
    OSError."""
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
    """Give up, inside the view, the rights that making it took. `owner`: handle of the namespace of the
    program's own users, which is closed; None = it has none. Programs of an image are root in their user
    namespace, as they expect. Raises OSError."""
    if owner is not None:
        users.enter(owner)
    elif level == protocol.LEVEL_USER and in_image:
        users.map_one(0, 0)
    if level == protocol.LEVEL_ROOT:
        return
    if os.geteuid() == 0:
        # Its programs are root of the namespace that owns the mounts, and could undo them.
        users.drop_capabilities()
    kernel.forbid_inspection()


class ProbeFailed(Exception):
    """Whether a level works could not be found out, because the machine is short of a resource, probably for
    a while."""


def probe(
    scratch: str, wanted: Sequence[str] = LEVELS, pauses: Sequence[float] = _PAUSES
) -> tuple[str, dict[str, str]]:
    """Return the first of the `wanted` levels that works here ("" = none), found by trying each in a child
    process, and by level why those before it do not. `scratch`: an empty directory. `pauses`: seconds before
    each retry while the machine is short of a resource. Raises ProbeFailed if it stays short: a weaker level
    is never chosen for lack of a file handle."""
    refused: dict[str, str] = {}
    for level in wanted:
        cause = _lasting_cause(level, scratch, pauses)
        if not cause:
            return level, refused
        refused[level] = cause
    return "", refused


def _lasting_cause(level: str, scratch: str, pauses: Sequence[float]) -> str:
    """Return why no program can ever be started at this level; "" = one can. Raises ProbeFailed."""
    for pause in pauses:
        try:
            return _cause(level, scratch)
        except ProbeFailed:
            time.sleep(pause)
    return _cause(level, scratch)


def _cause(level: str, scratch: str) -> str:
    """Return why a program cannot be started at this level now; "" = it can. Raises ProbeFailed."""
    if level == protocol.LEVEL_SESSION:
        return ""
    if level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT) and os.geteuid() != 0:
        return "the service does not run as root"
    try:
        text = _in_child(lambda: _try(level, scratch))
    except OSError as error:
        text = _text(error)
    if text.startswith(_SHORT):
        raise ProbeFailed(
            "isolation cannot be probed: %s (at level %s)" % (text[len(_SHORT) :], level)
        )
    return "" if text == _WORKS else text


def _in_child(attempt: Callable[[], str]) -> str:
    """Return what `attempt` returns in a child process, or how that was killed. Raises OSError if there is no
    child."""
    answer, say = os.pipe()
    try:
        child = os.fork()
    except OSError:
        kernel.close_all([answer, say])
        raise
    if child == 0:
        try:
            os.write(say, attempt().encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(say)
    with open(answer, "rb") as file:
        text = file.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if text:
        return text
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    killed = "the attempt was killed by signal %d" % number if number else "the attempt ended"
    # A filter of system calls kills by SIGSYS, always. A lack of memory kills by other signals, and may pass.
    return (_SHORT if number not in (0, signal.SIGSYS) else "") + killed


def _text(error: OSError | MemoryError) -> str:
    """Return the error's text, marked if it may pass."""
    passes = isinstance(error, MemoryError) or (
        error.errno in _PASSING and not isinstance(error, kernel.NamespaceRefused)
    )
    return (_SHORT if passes else "") + (str(error) or "out of memory")


def _try(level: str, scratch: str) -> str:
    """Start a program in a view of this level, in a child of its own; return why that failed, "" = it
    worked."""
    files = os.path.join(scratch, "files")
    hosts = os.path.join(scratch, "hosts")
    try:
        os.makedirs(files, exist_ok=True)
        with open(hosts, "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n")
        detach(level)
        return _in_child(lambda: _try_inside(level, scratch, files, hosts))
    except (OSError, MemoryError) as error:
        return _text(error)


def _try_inside(level: str, scratch: str, files: str, hosts: str) -> str:
    try:
        # A main process's umask: directories on the way to mounts are for everybody.
        os.umask(0o022)
        own = level == protocol.LEVEL_OWN
        isolation = protocol.Isolation(
            level=level,
            hostname="probe",
            hosts=hosts,
            buckets=[("probe", files)],
            hidden=[scratch],
            users=(_PROBE_USERS, users.COUNT) if own else (),
        )
        seen = view.View(isolation, files=files, scratch=os.path.join(scratch, "view"))
        seen.look()
        seen.enter()
        drop(level, seen.owner, in_image=False)
        # Whichever user it is now, it must be able to write its own files.
        with open(os.path.join(files, "written"), "w", encoding="utf-8") as file:
            file.write("x")
        os.unlink(os.path.join(files, "written"))
    except (OSError, MemoryError) as error:
        return _text(error)
    return _WORKS
