"""The pieces that a view is put together from: things held open to be shown elsewhere, the places they are
shown in, and a container image as a root file system.

An image stays unchanged below; what the program changes goes to a layer of its own above. Runs on Python 3.6.
"""

import errno
import os
import stat
import struct

from trainshed.replica.sandbox import users
from trainshed.replica.system import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

    from trainshed.replica.sandbox import users

_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1

SAFE = kernel.MS_NOSUID | kernel.MS_NODEV
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
        kernel.bind("/proc/self/fd/%d" % self._handle, target)
        os.close(self._handle)

    def show(self, target: str) -> None:
        """Show it as the program's own."""
        if self._owners is None:
            self.bind(target)
            return
        self._owners.show("/proc/self/fd/%d" % self._handle, target)
        os.close(self._handle)

    def lend(self, target: str) -> None:
        """Show what is only to be read: as the program's own, if its file system can do that, else to whom
        its own bits let read it."""
        try:
            self.show(target)
        except OSError:
            self.bind(target)

    def make_place(self, way: str, directory: bool) -> None:
        """Make what something else can be shown on: `way` leads there from this directory, in which the
        program may have made links; none is followed. Raises OSError."""
        above, last = way.split("/"), ""
        if not directory:
            last = above.pop()
        place = os.dup(self._handle)
        try:
            for name in above:
                try:
                    os.mkdir(name, 0o755, dir_fd=place)
                except FileExistsError:
                    pass
                inner = open_path(name, os.O_DIRECTORY | os.O_NOFOLLOW, place)
                os.close(place)
                place = inner
            if last:
                flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                os.close(os.open(last, flags, 0o644, dir_fd=place))
        finally:
            os.close(place)


def open_path(path: str, flags: int = 0, directory: "int | None" = None) -> int:
    flags |= getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC
    return os.open(path, flags, dir_fd=directory)


def freeze(place: str) -> None:
    """What is mounted at `place` and below can only be read there from here on; who holds it open already may
    write."""
    if not os.path.isdir(place):
        return
    kernel.bind(place, place)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounted = sorted({line.split()[4] for line in file})
    for target in mounted:
        if target == place or target.startswith(place + "/"):
            kernel.make_read_only(target)


def freeze_all(kept: "Iterable[str]") -> None:
    """Nothing that is mounted can be written to from here on but what is mounted at the `kept` places; needs
    Linux 5.12, without which nothing happens. Raises OSError."""
    try:
        _set_read_only("/", _MOUNT_ATTR_RDONLY, 0, _AT_RECURSIVE)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return
    for place in kept:
        _set_read_only(place, 0, _MOUNT_ATTR_RDONLY, 0)


def _set_read_only(place: str, given: int, taken: int, flags: int) -> None:
    attributes = struct.pack("QQQQ", given, taken, 0, 0)
    kernel.syscall(
        _MOUNT_SETATTR,
        "mount_setattr %s" % place,
        _AT_FDCWD,
        os.fsencode(place),
        flags,
        attributes,
        len(attributes),
    )


def is_directory(path: str) -> bool:
    """Raises OSError where that cannot be seen: what is not looked at would not be hidden."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_file(path: str) -> bool:
    try:
        return not os.path.isdir(path) and os.path.exists(path)
    except OSError:
        return False


def have_directory(path: str) -> None:
    """Make it and those above it, if it is not there: to look costs less than to be told so."""
    if not os.path.isdir(path):
        os.makedirs(path, exist_ok=True)


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
    """Those that exist and lie in none of the others. Raises OSError."""
    found: "list[str]" = []
    for path in sorted(set(directories)):
        if is_directory(path) and not any(holds(outer, [path]) for outer in found):
            found.append(path)
    return found


def holds(directory: str, places: "list[str]") -> bool:
    """Whether one of the places lies in a directory."""
    inside = directory + "/"
    # A quarter of the time that `any` takes, some fifty times in a start.
    for place in places:  # noqa: SIM110
        if place.startswith(inside):
            return True
    return False


def add_file(path: str, scratch: str) -> None:
    """Have a file at `path`, whose links are resolved, without making anything on the machine's disks."""
    if os.path.lexists(path):
        return
    parent, missing = path, ""
    while not os.path.lexists(parent):
        parent, missing = os.path.split(parent)
    add_entry(parent, missing, scratch, directory=os.path.join(parent, missing) != path)
    make_target(path, directory=False)


def add_entry(parent: str, name: str, scratch: str, directory: bool = True) -> None:
    """Cover `parent` by a copy of itself, made of mounts, that has one more directory, or an empty file.

    What needs no right on the real directory: an in-memory directory, every entry of the old one bound into
    it.
    """
    os.makedirs(scratch, exist_ok=True)
    kernel.mount("tmpfs", scratch, "tmpfs", SAFE, "mode=755,size=1m")
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
            kernel.bind(entry.path, copy)
    make_target(os.path.join(scratch, name), directory)
    if parent == "/":
        kernel.pivot_root(scratch)
    else:
        kernel.bind(scratch, parent)


OPEN_DIRECTORIES = ("mnt", "media", "opt", "srv")
"""Directories of the root in which images let their programs make what they like."""
_MOST_ENTRIES = 100
"""A directory with more is shown as it is: each is a mount."""


def show_machine(place: str, owners: "users.Users | None", names: "Iterable[str]") -> None:
    """Make the directory `place` the root, as the program's own, with what the machine has in its root: the
    same links, and mounts of all else. OPEN_DIRECTORIES are made in the same way; they and those that are
    `names` are there in any case. Links that a program left in it lead nowhere. Raises OSError."""
    handle = open_path(place, os.O_DIRECTORY | os.O_NOFOLLOW)
    # Made by this handle: behind the mount that maps owners a user of the machine can make nothing.
    os.chmod("/proc/self/fd/%d" % handle, 0o755)
    shown = _copy_entries("/", handle, (*names, *OPEN_DIRECTORIES))
    for name in OPEN_DIRECTORIES:
        if "/" + name in shown and _is_open("/" + name):
            shown.remove("/" + name)
            inner = open_path(name, os.O_DIRECTORY | os.O_NOFOLLOW, handle)
            shown += _copy_entries("/" + name, inner)
            os.close(inner)
    Source(handle, owners).show(place)
    # Else what is bound into it would have it again, with all that is hidden later.
    kernel.mount(None, place, None, kernel.MS_UNBINDABLE)
    for path in shown:
        try:
            kernel.bind(path, place + path)
        except FileNotFoundError:
            pass  # It was deleted meanwhile.
    kernel.pivot_root(place)
    kernel.mount(None, "/", None, kernel.MS_PRIVATE)


def _is_open(path: str) -> bool:
    """Whether all may see what is in a directory of the machine's, and none but root may change it: with that
    bound into another directory nothing is to be had that was not, and nothing missed."""
    return (
        os.stat(path).st_mode & 0o007 == 0o005
        and (os.geteuid() == 0 or not os.access(path, os.W_OK))
        and len(os.listdir(path)) <= _MOST_ENTRIES
    )


def _copy_entries(directory: str, handle: int, names: "Iterable[str]" = ()) -> "list[str]":
    """Have directories of these names in another one, and the entries of a directory: links as they are,
    empty files and directories for what is to be mounted there, whose paths are returned."""
    places: "list[str]" = []
    for name in names:
        _have(name, handle, True, "")
    with os.scandir(directory) as entries:
        for entry in entries:
            link = os.readlink(entry.path) if entry.is_symlink() else ""
            _have(entry.name, handle, entry.is_dir(follow_symlinks=False), link)
            if not link:
                places.append(entry.path)
    return places


def _have(name: str, handle: int, directory: bool, link: str) -> None:
    """Have an empty file, a directory or a link in a directory. What a program has made in its place goes out
    of the way."""
    try:
        mode = os.lstat(name, dir_fd=handle).st_mode
    except FileNotFoundError:
        mode = 0
    if mode:
        if stat.S_ISLNK(mode):
            is_right = bool(link) and os.readlink(name, dir_fd=handle) == link
        else:
            is_right = not link and stat.S_ISDIR(mode) == directory
        if is_right:
            return
        os.rename(name, name + "~", src_dir_fd=handle, dst_dir_fd=handle)
    if link:
        os.symlink(link, name, dir_fd=handle)
    elif directory:
        os.mkdir(name, 0o755, dir_fd=handle)
    else:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
        os.close(os.open(name, flags, 0o644, dir_fd=handle))


def show_image(image: str, layer: str, scratch: str, owners: "users.Users | None") -> str:
    """Mount it; returns where. `layer`: a directory that keeps the changes, made if needed; the same one
    again shows them again. Raises OSError."""
    upper, work = os.path.join(layer, "upper"), os.path.join(layer, "work")
    lower, root = os.path.join(scratch, "image"), os.path.join(scratch, "root")
    for path in (upper, work, lower, root):
        os.makedirs(path, exist_ok=True)
    # What "/" is to its users is what the upper layer's directory is.
    os.chmod(upper, stat.S_IMODE(os.stat(image).st_mode) | 0o755)
    if owners is None:
        lower = image
    else:
        owners.show(image, lower)
        # The upper layer is written as the program's own users (its mount cannot be mapped).
        owners.give(upper)
    options = "lowerdir=%s,upperdir=%s,workdir=%s" % (
        _escaped(lower),
        _escaped(upper),
        _escaped(work),
    )
    if owners is None and os.geteuid() != 0:
        options += ",userxattr"
    kernel.mount("overlay", root, "overlay", kernel.MS_NOSUID, options)
    return root


def make_directory(path: str, mode: int, owners: "users.Users | None") -> None:
    """A directory of the image that is the root by now, and those above it, if they are not there: the
    program's own."""
    way = ""
    for part in path.strip("/").split("/"):
        way += "/" + part
        if not os.path.isdir(way):
            os.mkdir(way)
            os.chmod(way, mode)
            if owners is not None:
                owners.give(way)


def user_of(text: str, root: str) -> "tuple[int, int, str]":
    """(user, group, home directory) of `USER[:GROUP]`, names and numbers as in the image at `root`; "" is
    root. Raises OSError: it knows no such name."""
    name, _, group = text.partition(":")
    name = name or "0"
    found = _entry(inside(root, "/etc/passwd"), name, 7)
    if found is None and not name.isdigit():
        raise OSError("the image has no user %s in its /etc/passwd; give its number" % name)
    user = int(found[2]) if found else int(name)
    number = int(found[3]) if found else 0
    if group:
        entry = _entry(inside(root, "/etc/group"), group, 4)
        if entry is None and not group.isdigit():
            raise OSError("the image has no group %s in its /etc/group; give its number" % group)
        number = int(entry[2]) if entry else int(group)
    home = found[5] if found and found[5] else "/root" if user == 0 else "/"
    return user, number, home


def _entry(path: str, wanted: str, width: int) -> "list[str] | None":
    """The line of a name or number in a file of the kind of /etc/passwd."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return None
    whole = [line for line in lines if len(line) >= width]
    named = [line for line in whole if line[0] == wanted]
    return (named or [line for line in whole if line[2] == wanted] or [None])[0]


def inside(root: str, path: str) -> str:
    """Where `path` of an image lies below `root`, with the image's own links followed as they will be once it
    is the root: none of them leads out."""
    place = root
    parts = path.strip("/").split("/")[::-1]
    for _ in range(255):
        if not parts:
            return place
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            place = os.path.dirname(place) if place != root else root
            continue
        step = os.path.join(place, part)
        if os.path.islink(step):
            link = os.readlink(step)
            if link.startswith("/"):
                place = root
            parts += link.strip("/").split("/")[::-1]
        else:
            place = step
    raise OSError("%s: too many links in the image on the way" % path)


def _escaped(path: str) -> str:
    """A path within the options of a mount."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
