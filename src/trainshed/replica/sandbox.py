"""How far a replica can be kept apart on this machine: the levels, and which of them work.

Four levels, the strongest first: `own-user` (the service is root, each replica runs as users of its own), `root` (its
programs are root, in namespaces), `user` (an ordinary user's, in namespaces), `session` (only a session of its own: macOS,
hosts that forbid user namespaces). Runs on Python 3.6.

Order: `detach` in the shim, then a fork, whose child is the first process of the namespace; there `View.enter` (`view`
module), then `drop`.
"""

import os

from trainshed.replica import protocol, system, users, view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

LEVELS = (protocol.LEVEL_OWN, protocol.LEVEL_ROOT, protocol.LEVEL_USER, protocol.LEVEL_SESSION)
_PROBE_USERS = 0x7FFF0000


def detach(level: str) -> None:
    """Leave the process namespace: the next forked child is process 1 of a new one. Raises OSError.

    At level `user` the caller moves into a user namespace in which its own user stands for itself.
    """
    if level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT):
        system.unshare(system.CLONE_NEWPID)
    elif level == protocol.LEVEL_USER:
        users.map_one(os.geteuid(), os.getegid())
        system.unshare(system.CLONE_NEWPID)


def drop(level: str, owners: "users.Users | None", in_image: bool) -> None:
    """Give up, in the view, the rights that making it took. Programs of an image find themselves root, as they expect.
    Raises OSError."""
    if owners is not None:
        owners.enter()
        users.drop_capabilities()
    elif level == protocol.LEVEL_USER:
        if in_image:
            users.map_one(0, 0)
        if os.geteuid() == 0:
            # Its programs, too, are root of the namespace that the mounts belong to, and could undo them.
            users.drop_capabilities()
    if level != protocol.LEVEL_ROOT:
        system.forbid_inspection()


def probe(scratch: str, wanted: "Sequence[str]" = LEVELS) -> "tuple[str, dict[str, str]]":
    """The strongest of the `wanted` levels that works here ("" = none), found by trying each in a child; and why those
    before it do not. `scratch`: an empty directory."""
    refused: "dict[str, str]" = {}
    for level in wanted:
        cause = _cause(level, scratch)
        if not cause:
            return level, refused
        refused[level] = cause
    return "", refused


def _cause(level: str, scratch: str) -> str:
    """Why a program cannot be started at this level; "" = it can."""
    if level == protocol.LEVEL_SESSION:
        return ""
    if not system.LINUX:
        return "only Linux has namespaces"
    if level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT) and os.geteuid() != 0:
        return "the service does not run as root"
    answer, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(say, _try(level, scratch).encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(say)
    with open(answer, "rb") as told:
        text = told.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return {"works": ""}.get(text, text or "the attempt was killed")


def _try(level: str, scratch: str) -> str:
    """In a child of its own: what came of starting a program."""
    files = os.path.join(scratch, "files")
    hosts = os.path.join(scratch, "hosts")
    try:
        os.makedirs(files, exist_ok=True)
        with open(hosts, "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n")
        detach(level)
        answer, say = os.pipe()
        if os.fork() == 0:
            try:
                os.write(say, _try_inside(level, scratch, files, hosts).encode("utf-8", "replace"))
            finally:
                os._exit(0)
        os.close(say)
        with open(answer, "rb") as told:
            return told.read().decode("utf-8", "replace")
    except OSError as error:
        return str(error)


def _try_inside(level: str, scratch: str, files: str, hosts: str) -> str:
    try:
        os.umask(
            0o022
        )  # As a guardian's: directories on the way to what is shown are for everybody.
        own = level == protocol.LEVEL_OWN
        seen = view.View(
            hostname="probe",
            hosts_file=hosts,
            files=files,
            scratch=os.path.join(scratch, "view"),
            buckets=[("probe", files)],
            hidden=[scratch],
            user_range=(_PROBE_USERS, users.COUNT) if own else (),
        )
        seen.enter()
        drop(level, seen.owners, in_image=False)
        # Whoever it is now, its own files must be its own.
        with open(os.path.join(files, "written"), "w", encoding="utf-8") as file:
            file.write("x")
        os.unlink(os.path.join(files, "written"))
    except OSError as error:
        return str(error)
    return "works"
