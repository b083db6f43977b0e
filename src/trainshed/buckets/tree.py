"""The visible directory tree of a bucket: opening, making and pruning it safely.

Programs write to the same tree through ``/gcs``, so nothing in it is trusted: every step is taken
relative to an open directory without following symbolic links, only regular files are objects, and
a directory may vanish or appear at any moment. All functions block.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable
from dataclasses import dataclass

from trainshed.buckets.layout import SHADOW_DIR, Place

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe that a program left in the tree must not hang us.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_CLOSED = {errno.EACCES, errno.EPERM}
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}

FILE_MODE = 0o666
DIRECTORY_MODE = 0o777
"""Wide open inside a bucket: the store's root (mode 0700) keeps others out, and a job that sees the
bucket by a bind mount runs as whatever user its sandbox gives it."""


def is_absent(error: OSError) -> bool:
    """Whether an error says that there is no such thing at the place."""
    return error.errno in _ABSENT


def is_closed(error: OSError) -> bool:
    """Whether an error says that a program took away the permission to look there."""
    return error.errno in _CLOSED


def open_directory(base: int, components: tuple[str, ...]) -> int:
    """Open ``base/components``; the caller closes it. Raises OSError (see ``is_absent``)."""
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
    """Open ``base/components`` and create what is missing, durably; the caller closes it.

    ``make_way(path)`` is called when a file stands where a directory is needed; it has to move
    the file away. Raises FileNotFoundError if a directory is pruned meanwhile (try again).
    """
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
    """Create one directory if it is not there, and make its entry durable."""
    try:
        os.mkdir(component, dir_fd=parent)
    except FileExistsError:
        return
    fd = os.open(component, DIRECTORY_FLAGS, dir_fd=parent)
    try:
        os.fchmod(fd, DIRECTORY_MODE)  # mkdir's mode goes through the umask, this one does not
    finally:
        os.close(fd)
    os.fsync(parent)


def prune(base: int, components: tuple[str, ...]) -> None:
    """Remove ``base/components`` and its parents as far as they are empty."""
    for depth in range(len(components), 0, -1):
        try:
            parent = open_directory(base, components[: depth - 1])
        except OSError as error:
            if not is_absent(error):
                raise
            continue
        try:
            os.rmdir(components[depth - 1], dir_fd=parent)
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return
            if not is_absent(error):
                raise
        finally:
            os.close(parent)


def open_file(parent: int, leaf: str) -> tuple[int, os.stat_result]:
    """Open a regular file of a directory; raises FileNotFoundError for anything else."""
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


@dataclass(frozen=True, slots=True)
class Found:
    """An object's file, open for reading, and where it lies; the holder closes ``fd``."""

    fd: int
    stat: os.stat_result
    dirs: tuple[str, ...]
    leaf: str


def look(base: int, place: Place) -> os.stat_result:
    """What a directory says of the object at a place, or at its shadow place, without opening it. Raises OSError."""
    for dirs in (place.dirs, (*place.dirs, SHADOW_DIR)):
        try:
            parent = open_directory(base, dirs)
        except OSError as error:
            if not is_absent(error):
                raise
            continue
        try:
            status = os.stat(place.leaf, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            continue
        finally:
            os.close(parent)
        if stat_module.S_ISREG(status.st_mode):
            return status
    raise FileNotFoundError(errno.ENOENT, "no such object", place.leaf)


def find(base: int, place: Place) -> Found:
    """Open the object at a place, or at its shadow place; raises FileNotFoundError."""
    for dirs in (place.dirs, (*place.dirs, SHADOW_DIR)):
        try:
            parent = open_directory(base, dirs)
        except OSError as error:
            if not is_absent(error):
                raise
            continue
        try:
            fd, status = open_file(parent, place.leaf)
        except FileNotFoundError:
            continue
        finally:
            os.close(parent)
        return Found(fd, status, dirs, place.leaf)
    raise FileNotFoundError(errno.ENOENT, "no such object", place.leaf)
