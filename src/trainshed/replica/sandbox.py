"""What a replica's program sees of the machine: namespaces, mounts, hostname.

Three levels, the strongest that the host allows (`probe`): `root` makes own process, mount, hostname and IPC
namespaces; `user` the same inside a user namespace, for ordinary users; `session` only a session of its own
(macOS, hosts that forbid user namespaces). Runs on Python 3.6.

Order: `detach` in the shim, then a fork, whose child is the first process of the namespace; there `View.enter`.
"""

import os
import socket

from trainshed.replica import protocol, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

GCS = "/gcs"
HYPERTUNE = "/var/hypertune"


def detach(level: str) -> None:
    """Leave the process namespace: the next forked child is process 1 of a new one. Raises OSError.

    At level `user` the caller moves into a user namespace in which its own user stands for itself.
    """
    if level == protocol.LEVEL_ROOT:
        system.unshare(system.CLONE_NEWPID)
    elif level == protocol.LEVEL_USER:
        user, group = os.geteuid(), os.getegid()
        system.unshare(system.CLONE_NEWUSER | system.CLONE_NEWPID)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", "%d %d 1" % (user, user))
        _write("/proc/self/gid_map", "%d %d 1" % (group, group))


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode("ascii"))
    finally:
        os.close(handle)


class View:
    """The file system as the program shall see it. All paths absolute.

    `scratch`: a directory of the slot that mounts may be put together in, made if needed. `files`: the slot's directory
    that stays visible under its own path whatever is `hidden`. `binds`: (source, target) shown writable.
    """

    __slots__ = ("binds", "files", "hidden", "hostname", "hosts_file", "read_only", "scratch")

    def __init__(
        self,
        *,
        hostname: str,
        hosts_file: str,
        files: str,
        scratch: str,
        binds: "Sequence[tuple[str, str]]" = (),
        hidden: "Sequence[str]" = (),
        read_only: "Sequence[str]" = (),
    ) -> None:
        self.hostname = hostname
        self.hosts_file = hosts_file
        self.files = files
        self.scratch = scratch
        self.binds = binds
        self.hidden = hidden
        self.read_only = read_only

    def enter(self) -> None:
        """Give this process, already first of its process namespace, the view. Raises OSError."""
        system.unshare(system.CLONE_NEWNS | system.CLONE_NEWUTS | system.CLONE_NEWIPC)
        system.mount(None, "/", None, system.MS_REC | system.MS_PRIVATE)
        secure = system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC
        system.mount("proc", "/proc", "proc", secure)
        if self.hostname:
            socket.sethostname(self.hostname)
        # Sources are opened before anything is covered: afterwards their paths may lead elsewhere.
        kept = [(_open(self.files), self.files)] if self.hidden else []
        shown = [(_open(source), target) for source, target in self.binds]
        shown.append((_open(self.hosts_file), "/etc/hosts"))
        frozen = [(_open(path), path) for path in self.read_only if os.path.isdir(path)]
        self._add_missing([target for _, target in self.binds])
        for path in self.hidden:
            system.mount(
                "tmpfs", path, "tmpfs", system.MS_NOSUID | system.MS_NODEV, "mode=755,size=64k"
            )
        for handle, target in shown:
            _bind_handle(handle, target)
        # Last, since what was covered so far (a private /tmp, say) must not cover these.
        for handle, path in kept + frozen:
            os.makedirs(path, exist_ok=True)
            _bind_handle(handle, path)
        for _, path in frozen:
            system.make_read_only(path)
        # Shared memory of its own, so that nothing of a killed program stays behind there.
        if os.path.isdir("/dev/shm"):
            system.mount(
                "tmpfs", "/dev/shm", "tmpfs", system.MS_NOSUID | system.MS_NODEV, "mode=1777"
            )
        for path in self.hidden:
            system.make_read_only(path)

    def _add_missing(self, targets: "list[str]") -> None:
        """Make the directories that binds need, where the user may not simply create them."""
        for target in targets:
            if os.path.isdir(target):
                continue
            try:
                os.mkdir(target, 0o755)
            except OSError:
                _add_entry(os.path.dirname(target), os.path.basename(target), self.scratch)


def _open(path: str) -> int:
    return os.open(path, getattr(os, "O_PATH", os.O_RDONLY))


def _bind_handle(handle: int, target: str) -> None:
    system.bind("/proc/self/fd/%d" % handle, target)
    os.close(handle)


def _add_entry(parent: str, name: str, scratch: str) -> None:
    """Cover `parent` by a copy of itself, made of mounts, that has one more directory.

    What needs no right on the real directory: an in-memory directory, every entry of the old one bound into it.
    """
    os.makedirs(scratch, exist_ok=True)
    system.mount("tmpfs", scratch, "tmpfs", system.MS_NOSUID | system.MS_NODEV, "mode=755,size=1m")
    with os.scandir(parent) as entries:
        for entry in entries:
            copy = os.path.join(scratch, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), copy)
                continue
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(copy)
            else:
                os.close(os.open(copy, os.O_CREAT | os.O_WRONLY, 0o600))
            system.bind(entry.path, copy)
    os.mkdir(os.path.join(scratch, name), 0o755)
    if parent == "/":
        system.pivot_root(scratch)
    else:
        system.bind(scratch, parent)


def probe(scratch: str) -> str:
    """The strongest level that works here, found by trying it in a child. `scratch`: an empty directory."""
    if not system.LINUX:
        return protocol.LEVEL_SESSION
    levels = [protocol.LEVEL_USER]
    if os.geteuid() == 0:
        levels.insert(0, protocol.LEVEL_ROOT)
    for level in levels:
        child = os.fork()
        if child == 0:
            os._exit(_try(level, scratch))
        if os.waitpid(child, 0)[1] == 0:
            return level
    return protocol.LEVEL_SESSION


def _try(level: str, scratch: str) -> int:
    """In a child of its own: 0 if a program could be started at this level."""
    try:
        files = os.path.join(scratch, "files")
        hosts = os.path.join(scratch, "hosts")
        view = os.path.join(scratch, "view")
        os.makedirs(files, exist_ok=True)
        with open(hosts, "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n")
        detach(level)
        first = os.fork()
        if first == 0:
            status = 1
            try:
                View(
                    hostname="probe",
                    hosts_file=hosts,
                    files=files,
                    scratch=view,
                    binds=[(files, GCS)],
                    hidden=[scratch],
                ).enter()
                status = 0
            finally:
                os._exit(status)
        return 0 if os.waitpid(first, 0)[1] == 0 else 1
    except OSError:
        return 1
