"""The visible directory tree of a bucket: mapping object names to files, and safe access to the files.

The tree is plain: the object `a/b` is the file `a/b`, so that `/gcs/BUCKET` can be a bind mount. Names that a
file system cannot represent are escaped. Escaped names start with `MARK`:

* `.gs~=SEGMENT` is a segment that is empty, `.`, `..` or starts with the mark.
* `.gs~file/LEAF` is the file of the object `a` if `a` is a directory (because the object `a/b` exists). This
  path is called the shadow place of `a`.

The mapping is one-to-one for valid object names. Other names with the mark are not objects.

Programs write to the same tree through `/gcs`, so its content is untrusted (path traversal). Each step starts
at an open directory and follows no symbolic links. Only regular files are objects. A directory may disappear
or appear at any time. A walk yields objects in the order of their full names' UTF-8 bytes, which is not the
order of a plain directory walk: `a-b` comes before `a/b`. It skips directories without access for the
service. All functions that open or walk block.
"""

import errno
import heapq
import os
import stat as stat_module
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from msgspec import Struct

from trainshed.buckets.names import MARK, MAX_OBJECT_DEPTH

T = TypeVar("T")

SHADOW_DIR = MARK + "file"
ESCAPED = MARK + "="


class Place(Struct, frozen=True):
    """The path of a file below a bucket: the directories from the top down, and the file name."""

    dirs: tuple[str, ...]
    leaf: str


def place_of(name: str) -> Place:
    """Return the usual path of the file of an object with this valid name.

    If a directory has the name of the object's file, the file is at its shadow place instead: below `dirs +
    SHADOW_DIR`, with the same leaf.
    """
    *dirs, leaf = map(encode_segment, name.split("/"))
    return Place(tuple(dirs), leaf)


def encode_segment(segment: str) -> str:
    """Return the file name for a segment of an object name."""
    is_special = segment in {"", ".", ".."} or segment.startswith(MARK)
    return ESCAPED + segment if is_special else segment


DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe that a program created in the tree must not block the service.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_CLOSED = {errno.EACCES, errno.EPERM}
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}

DIRECTORY_MODE = 0o777
"""Any user may access directories inside a bucket. The mode of the store's root (0700) excludes other users
of the machine. A job sees the bucket through a bind mount, and runs as the user of its sandbox."""


def is_absent(error: OSError) -> bool:
    return error.errno in _ABSENT


@contextmanager
def directory(base: int, components: tuple[str, ...]) -> Generator[int]:
    """Open `base/components`, yield the file descriptor, and close it afterwards. Raises OSError (see
    `is_absent`)."""
    fd = open_directory(base, components)
    try:
        yield fd
    finally:
        os.close(fd)


def open_directory(base: int, components: tuple[str, ...]) -> int:
    """Open `base/components`. The caller closes it. Raises OSError (see `is_absent`)."""
    current = os.dup(base)
    for component in components:
        try:
            below = os.open(component, DIRECTORY_FLAGS, dir_fd=current)
        finally:
            os.close(current)
        current = below
    return current


def make_directories(
    base: int, components: tuple[str, ...], make_way: Callable[[tuple[str, ...]], None]
) -> int:
    """Open `base/components` and create missing directories, durably. The caller closes the descriptor.
    `make_way(path)` is called if a required directory has the name of an existing file, which the function
    must move. Raises FileNotFoundError if another request prunes a directory at the same time. The caller
    should then retry."""
    current = os.dup(base)
    try:
        for depth, component in enumerate(components):
            try:
                below = os.open(component, DIRECTORY_FLAGS, dir_fd=current)
            except OSError as error:
                if not is_absent(error):
                    raise
                if error.errno != errno.ENOENT:
                    make_way(components[: depth + 1])
                make_directory(current, component)
                below = os.open(component, DIRECTORY_FLAGS, dir_fd=current)
            os.close(current)
            current = below
    except BaseException:
        os.close(current)
        raise
    return current


def make_directory(parent: int, component: str) -> None:
    """Create a directory if it does not exist, and make its entry durable."""
    try:
        os.mkdir(component, dir_fd=parent)
    except FileExistsError:
        return
    fd = os.open(component, DIRECTORY_FLAGS, dir_fd=parent)
    try:
        # The umask restricts the mode that mkdir sets, but not that of fchmod.
        os.fchmod(fd, DIRECTORY_MODE)
    finally:
        os.close(fd)
    os.fsync(parent)


def prune(base: int, components: tuple[str, ...]) -> None:
    """Remove `base/components` and then its parent directories, up to the first one that is not empty."""
    for depth in range(len(components), 0, -1):
        try:
            with directory(base, components[: depth - 1]) as parent:
                os.rmdir(components[depth - 1], dir_fd=parent)
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return
            if not is_absent(error):
                raise


def open_file(parent: int, leaf: str) -> tuple[int, os.stat_result]:
    """Open a regular file in a directory. Raises FileNotFoundError if it does not exist."""
    try:
        fd = os.open(leaf, _FILE, dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.ENOTDIR}:
            raise FileNotFoundError(errno.ENOENT, "not a regular file", leaf) from error
        raise
    status = os.fstat(fd)
    if not stat_module.S_ISREG(status.st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", leaf)
    return fd, status


class ObjectFile(Struct, frozen=True):
    """An object's file, open for reading, and its path."""

    #: The file descriptor. The caller of `find` closes it.
    fd: int
    stat: os.stat_result
    dirs: tuple[str, ...]
    leaf: str


def status_of(base: int, place: Place) -> os.stat_result:
    """Return the `os.stat_result` of an object's file, at its usual path or its shadow place (`place_of`).
    Does not open the file. Raises OSError."""

    def status(parent: int) -> os.stat_result:
        status = os.stat(place.leaf, dir_fd=parent, follow_symlinks=False)
        if not stat_module.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", place.leaf)
        return status

    return _at_either_place(base, place, status)[1]


def find(base: int, place: Place) -> ObjectFile:
    """Open an object's file, at its usual path or its shadow place (`place_of`). Raises FileNotFoundError."""
    dirs, (fd, status) = _at_either_place(base, place, lambda parent: open_file(parent, place.leaf))
    return ObjectFile(fd, status, dirs, place.leaf)


def _at_either_place(base: int, place: Place, act: Callable[[int], T]) -> tuple[tuple[str, ...], T]:
    """Call `act` with the directory of the object's usual path, then with the directory of its shadow place
    (`place_of`), until a call succeeds. Return the path of that directory and the result."""
    # The object's own directory is tried twice, because a writer may move the object back from its shadow
    # place in the meantime.
    for dirs in (place.dirs, (*place.dirs, SHADOW_DIR), place.dirs):
        try:
            parent = open_directory(base, dirs)
        except OSError as error:
            if not is_absent(error):
                raise
            continue
        try:
            with suppress(FileNotFoundError):
                return dirs, act(parent)
        finally:
            os.close(parent)
    raise FileNotFoundError(errno.ENOENT, "no such object", place.leaf)


class Entry(Struct, frozen=True):
    """An object in a walk: its full name and the path of its file."""

    name: str
    dirs: tuple[str, ...]
    leaf: str


class _Member(Struct, frozen=True):
    key: bytes
    segment: str
    below: tuple[str, ...]
    leaf: str
    is_directory: bool


class Walk:
    """Iterates over the objects of a bucket in the order of their names' UTF-8 bytes, from `floor` on."""

    def __init__(self, base: int, prefix: str, floor: bytes) -> None:
        self._base = base
        self._prefix = prefix.encode()
        self.floor = max(floor, self._prefix)

    def skip_to(self, floor: bytes) -> None:
        """Continue at `floor` without reading the names before it."""
        self.floor = floor

    def __iter__(self) -> Iterator[Entry]:
        stack: list[tuple[str, tuple[str, ...], Iterator[_Member]]] = []
        parent_path, _, _ = self._prefix.decode().rpartition("/")
        start = f"{parent_path}/" if "/" in self._prefix.decode() else ""
        segments = parent_path.split("/") if start else []
        dirs = tuple(map(encode_segment, segments))
        stack.append((start, dirs, self._members(start, dirs)))
        while stack:
            name, dirs, members = stack[-1]
            member = next(members, None)
            if member is None:
                stack.pop()
                continue
            full = name.encode() + member.key
            if full > self._prefix and not full.startswith(self._prefix):
                return
            inner = (*dirs, *member.below)
            if not member.is_directory:
                if full >= self.floor:
                    yield Entry(name + member.segment, inner, member.leaf)
            elif (full >= self.floor or self.floor.startswith(full)) and len(stack) <= MAX_OBJECT_DEPTH:
                child = f"{name}{member.segment}/"
                stack.append((child, inner, self._members(child, inner)))

    def _members(self, name: str, dirs: tuple[str, ...]) -> Iterator[_Member]:
        """Yield the members of a directory in order. A directory may have hundreds of thousands of members,
        but a page needs few. Therefore `_collect` reads only the file names of most members. This method
        creates a `_Member` when it yields the member."""
        members: dict[bytes, _Member | None] = {}
        with _readable(self._base, dirs) as fd:
            if fd is not None:
                _collect(fd, members)
                with _readable(fd, (SHADOW_DIR,)) as shadows:
                    if shadows is not None:
                        _collect(shadows, members, (SHADOW_DIR,))
                        # Read the directory again, since a writer may have moved an object back from its
                        # shadow place in the meantime.
                        _collect(fd, members)
        inside = self.floor.startswith(name.encode())
        floor = self.floor[len(name.encode()) :] if inside else b""
        keys = [key for key in members if key >= floor or floor.startswith(key)]
        heapq.heapify(keys)
        while keys:
            key = heapq.heappop(keys)
            if member := members[key] or _plain(key):
                yield member


@contextmanager
def _readable(base: int, dirs: tuple[str, ...]) -> Generator[int | None]:
    """Open a directory, yield its file descriptor, and close it afterwards. Yield None if the directory does
    not exist or the service has no access."""
    try:
        fd = open_directory(base, dirs)
    except OSError as error:
        if not is_absent(error) and error.errno not in _CLOSED:
            raise
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _collect(fd: int, members: dict[bytes, _Member | None], shadow: tuple[str, ...] = ()) -> None:
    """Read the entries of a directory into `members`. A value of None stands for an entry whose file name is
    the key. `shadow`: the path of a shadow directory, relative to the directory of the members."""
    with os.scandir(fd) as entries:
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            if not is_directory and not entry.is_file(follow_symlinks=False):
                continue
            component = entry.name
            if not shadow and not component.startswith(MARK):
                members[os.fsencode(component) + (b"/" if is_directory else b"")] = None
                continue
            segment = component.removeprefix(ESCAPED)
            if encode_segment(segment) != component or not _is_text(segment):
                continue  # Skip the shadow directory, and names that are not object names.
            key = segment.encode() + (b"/" if is_directory else b"")
            below = (component,) if is_directory else shadow
            # A plain file is newer than a file with the same name in the shadow directory, and has priority.
            if not shadow or not (is_directory or key in members):
                members[key] = _Member(key, segment, below, component, is_directory)


def _plain(key: bytes) -> _Member | None:
    """Return the member for a key that is also the file name, or None if the name is invalid."""
    segment, is_directory = os.fsdecode(key.removesuffix(b"/")), key.endswith(b"/")
    below = (segment,) if is_directory else ()
    return _Member(key, segment, below, segment, is_directory) if _is_text(segment) else None


def _is_text(component: str) -> bool:
    try:
        component.encode()
    except UnicodeEncodeError:
        return False
    return "\n" not in component and "\r" not in component
