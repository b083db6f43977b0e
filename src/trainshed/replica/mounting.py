"""The pieces that a view is put together from: things held open to be shown elsewhere, and the places they are shown in.

Runs on Python 3.6.
"""

import os
import stat

from trainshed.replica import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.replica import users

SAFE = system.MS_NOSUID | system.MS_NODEV
"""Nothing there makes anybody more than he is."""


class Source:
    """Something of the machine's, held open, to be shown in another place."""

    __slots__ = ("_handle", "_owners", "is_directory")

    def __init__(self, handle: int, owners: "users.Users | None") -> None:
        self._handle = handle
        self._owners = owners
        self.is_directory = stat.S_ISDIR(os.fstat(handle).st_mode)

    def bind(self, target: str) -> None:
        """Show it as it is."""
        system.bind("/proc/self/fd/%d" % self._handle, target)
        os.close(self._handle)

    def show(self, target: str) -> None:
        """Show it as the program's own."""
        if self._owners is None:
            self.bind(target)
            return
        self._owners.show("/proc/self/fd/%d" % self._handle, target)
        os.close(self._handle)

    def lend(self, target: str) -> None:
        """Show what is only to be read: as the program's own, if its file system can do that, else to whom its own bits
        let read it."""
        try:
            self.show(target)
        except OSError:
            self.bind(target)


def open_path(path: str, flags: int = 0) -> int:
    return os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC | flags)


def freeze(place: str) -> None:
    """What is mounted at `place` and below can only be read there from here on; who holds it open already may write."""
    if not os.path.isdir(place):
        return
    system.bind(place, place)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounted = sorted({line.split()[4] for line in file})
    for target in mounted:
        if target == place or target.startswith(place + "/"):
            system.make_read_only(target)


def is_file(path: str) -> bool:
    try:
        return not os.path.isdir(path) and os.path.exists(path)
    except OSError:
        return False


def make_target(path: str, directory: bool) -> None:
    if os.path.lexists(path):
        return
    if directory:
        os.makedirs(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def first_closed(path: str) -> str:
    """The first directory on the way to `path` that others may not pass; "" = there is none."""
    way = ""
    for part in path.strip("/").split("/")[:-1]:
        way += "/" + part
        try:
            if not os.stat(way).st_mode & stat.S_IXOTH:
                return way
        except OSError:
            return ""
    return ""


def outermost(directories: "list[str]") -> "list[str]":
    found: "list[str]" = []
    for path in sorted(set(directories)):
        if os.path.isdir(path) and not any(path.startswith(outer + "/") for outer in found):
            found.append(path)
    return found


def add_entry(parent: str, name: str, scratch: str) -> None:
    """Cover `parent` by a copy of itself, made of mounts, that has one more directory.

    What needs no right on the real directory: an in-memory directory, every entry of the old one bound into it.
    """
    os.makedirs(scratch, exist_ok=True)
    system.mount("tmpfs", scratch, "tmpfs", SAFE, "mode=755,size=1m")
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
