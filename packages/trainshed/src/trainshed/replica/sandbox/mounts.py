"""Creates the parts of a view: mounts of open files and directories, their mount points, and a container
image as the root file system.

An image is the lower layer and does not change. The program's changes go to a separate upper layer.
"""

import contextlib
import os
import stat

from trainshed.replica.sandbox import users
from trainshed.replica.system import kernel

SAFE = kernel.MS_NOSUID | kernel.MS_NODEV
"""Flags of a mount without setuid programs and devices, so that its files grant no additional rights."""


class Source:
    """An open file or directory of the machine, to be mounted at another path."""

    def __init__(self, handle: int, owners: "users.Users | None") -> None:
        self._handle = handle
        self._owners = owners
        self.is_directory = stat.S_ISDIR(os.fstat(handle).st_mode)

    def bind(self, target: str) -> None:
        """Mount the source unchanged at `target`."""
        kernel.bind("/proc/self/fd/%d" % self._handle, target)
        os.close(self._handle)

    def show(self, target: str) -> None:
        """Mount the source at `target`. If the program has own users, the source's files of the machine's
        root user appear to belong to the program's root user."""
        if self._owners is None:
            self.bind(target)
            return
        self._owners.show("/proc/self/fd/%d" % self._handle, target)
        os.close(self._handle)

    def lend(self, target: str) -> None:
        """Mount the source at `target`, for read-only use. Mounts below the source are read-only at once. The
        mount itself stays writable, so that the caller can create mount points in it. The caller must then
        make it read-only. If the file system supports it, the source's owner is mapped to the program's
        owner. Otherwise the source's permission bits apply."""
        try:
            self.show(target)
        except OSError:
            self.bind(target)
        was_read_only = os.statvfs(target).f_flag & os.ST_RDONLY
        kernel.make_read_only(target, below=True, kept=() if was_read_only else (target,))

    def make_mount_point(self, relative_path: str, directory: bool) -> None:
        """Create a mount point below this directory at the path `relative_path`. Does not follow symbolic
        links, which prevents path traversal. Raises OSError."""
        above, last = relative_path.split("/"), ""
        if not directory:
            last = above.pop()
        place = os.dup(self._handle)
        try:
            for name in above:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=place)
                inner = open_path(name, os.O_DIRECTORY | os.O_NOFOLLOW, place)
                os.close(place)
                place = inner
            if last:
                flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                os.close(os.open(last, flags, 0o644, dir_fd=place))
        finally:
            os.close(place)


def open_path(path: str, flags: int = 0, directory: "int | None" = None) -> int:
    flags |= os.O_PATH | os.O_CLOEXEC
    return os.open(path, flags, dir_fd=directory)


def is_directory(path: str) -> bool:
    """Whether a path is a directory. Raises OSError if this is unknown: a caller that hides directories would
    not hide the path after a wrong False."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_file(path: str) -> bool:
    """Whether a visible file exists that is not a directory."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def make_target(path: str, directory: bool, owners: "users.Users | None" = None) -> None:
    """Create a mount point unless it exists. New directories above it belong to the program's users."""
    if os.path.lexists(path):
        return
    make_directory(path if directory else os.path.dirname(path), 0o755, owners)
    if not directory:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def first_closed_directory(directory: str) -> "str | None":
    """Return the outermost directory on the path of `directory`, itself included, that other users may not
    search. Returns None if they may search all of these directories."""
    way = ""
    for part in directory.strip("/").split("/"):
        way += "/" + part
        try:
            if not os.stat(way).st_mode & stat.S_IXOTH:
                return way
        except OSError:
            return None
    return None


def outermost(directories: "list[str]") -> "list[str]":
    points: "list[str]" = []
    for path in sorted(set(directories)):
        if not any(contains_any(outer, [path]) for outer in points):
            points.append(path)
    return points


def contains_any(directory: str, places: "list[str]") -> bool:
    """Whether at least one of the paths `places` is below `directory`."""
    return any(place.startswith(directory + "/") for place in places)


def add_file(path: str, scratch: str) -> None:
    """Mount an empty file at `path`, with links resolved, without creating files on the machine's disks."""
    if os.path.lexists(path):
        return
    parent, missing = path, ""
    while not os.path.lexists(parent):
        parent, missing = os.path.split(parent)
    add_entry(parent, missing, scratch, directory=os.path.join(parent, missing) != path)
    make_target(path, directory=False)


def add_entry(parent: str, name: str, scratch: str, directory: bool = True) -> None:
    """Cover `parent` with a copy that has one more directory or empty file. The copy is an in-memory
    directory with bind mounts of every old entry, so it needs no rights on the real directory."""
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


def show_image(image: str, layer: str, scratch: str, owners: "users.Users | None") -> str:
    """Mount an image and return the mount point. Raises OSError. `layer`: directory for the changes, which
    can be reused; created if necessary."""
    upper, work = os.path.join(layer, "upper"), os.path.join(layer, "work")
    lower, root = os.path.join(scratch, "image"), os.path.join(scratch, "root")
    for path in (upper, work, lower, root):
        os.makedirs(path, exist_ok=True)
    # The permissions of the upper layer's directory become those of "/". So copy the image's permissions.
    os.chmod(upper, stat.S_IMODE(os.stat(image).st_mode) | 0o755)
    if owners is None:
        lower = image
    else:
        owners.show(image, lower)
        # The upper layer belongs to the program's own users, because the mount's owners cannot be mapped.
        owners.give(upper)
    options = "lowerdir=%s,upperdir=%s,workdir=%s" % (_escape(lower), _escape(upper), _escape(work))
    if owners is None and os.geteuid() != 0:
        options += ",userxattr"
    kernel.mount("overlay", root, "overlay", kernel.MS_NOSUID, options)
    return root


def make_directory(path: str, mode: int, owners: "users.Users | None" = None) -> None:
    """Create a directory and its missing parents; they belong to the program. Follows symbolic links with the
    rights of this process, so resolve an image's links before the call."""
    way = ""
    for part in path.strip("/").split("/"):
        way += "/" + part
        if not os.path.isdir(way):
            os.mkdir(way)
            os.chmod(way, mode)
            if owners is not None:
                owners.give(way)


def user_of(text: "str | None", root: str) -> "tuple[int, int, str]":
    """Return (user ID, group ID, home directory) of the user `text` in the image at `root`. `text`:
    `USER[:GROUP]`; None = user 0 (root). Raises OSError if the image does not define the name."""
    name, _, group = (text or "").partition(":")
    name = name or "0"
    account = _entry(inside(root, "/etc/passwd"), name, 7)
    if account is None and not name.isdigit():
        raise OSError("the image has no user %s in its /etc/passwd; use a user ID" % name)
    user = int(account[2]) if account else int(name)
    number = int(account[3]) if account else 0
    if group:
        entry = _entry(inside(root, "/etc/group"), group, 4)
        if entry is None and not group.isdigit():
            raise OSError("the image has no group %s in its /etc/group; use a group ID" % group)
        number = int(entry[2]) if entry else int(group)
    home = account[5] if account and account[5] else "/root" if user == 0 else "/"
    return user, number, home


def _entry(path: str, wanted: str, width: int) -> "list[str] | None":
    """Return the fields of a name or ID in a file like /etc/passwd. Reads at most a megabyte."""
    try:
        # If the program put a pipe there, it counts as empty: do not wait for its writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, encoding="utf-8", errors="replace") as file:
            lines = [line.split(":") for line in file.read(1 << 20).split("\n")]
    except OSError:
        return None
    whole = [line for line in lines if len(line) >= width]
    by_name = [line for line in whole if line[0] == wanted]
    return (by_name or [line for line in whole if line[2] == wanted] or [None])[0]


def inside(root: str, path: str) -> str:
    """Return the host's path of `path` in an image at `root`. Links are followed as if `root` were the root
    directory, so they cannot leave the image (path traversal)."""
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
    raise OSError("%s: this path in the image has too many symbolic links" % path)


def _escape(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
