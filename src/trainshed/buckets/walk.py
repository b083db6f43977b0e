"""Walking a bucket's directory tree in the order of its objects' names.

The order is that of the full names' UTF-8 bytes, which is not the order of a plain directory walk:
``a-b`` comes before ``a/b``. Follows no symbolic link, skips what is no object and directories that were closed to
the service, blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from trainshed.buckets.layout import SHADOW_DIR, decode_component, encode_segment
from trainshed.buckets.paths import MAX_OBJECT_DEPTH
from trainshed.buckets.tree import DIRECTORY_FLAGS, is_absent, is_closed, open_directory

_MAX_CHUNKS = 8  # more than a name of 1,024 bytes can fill


@dataclass(frozen=True, slots=True)
class Entry:
    """One object that a walk met: its full name and its file's place."""

    name: str
    dirs: tuple[str, ...]
    leaf: str


@dataclass(frozen=True, slots=True)
class _Member:
    key: bytes
    segment: str
    below: tuple[str, ...]
    leaf: str
    is_directory: bool


class Walk:
    """The objects of a bucket in the order of their names' UTF-8 bytes, from ``floor`` on.

    Raising ``floor`` between two steps skips ahead without reading what lies between.
    """

    def __init__(self, base: int, prefix: str, floor: bytes) -> None:
        self._base = base
        self._prefix = prefix.encode()
        self.floor = max(floor, self._prefix)

    def __iter__(self) -> Iterator[Entry]:
        stack: list[tuple[str, tuple[str, ...], Iterator[_Member]]] = []
        above, _, _ = self._prefix.decode().rpartition("/")
        start = f"{above}/" if "/" in self._prefix.decode() else ""
        segments = above.split("/") if start else []
        dirs = tuple(part for segment in segments for part in encode_segment(segment))
        stack.append((start, dirs, iter(self._members(dirs))))
        while stack:
            name, dirs, members = stack[-1]
            member = next(members, None)
            if member is None:
                stack.pop()
                continue
            full = name.encode() + member.key
            if not self._wanted(full, directory=member.is_directory):
                continue
            inner = (*dirs, *member.below)
            if not member.is_directory:
                yield Entry(name + member.segment, inner, member.leaf)
            elif len(stack) <= MAX_OBJECT_DEPTH:
                child = f"{name}{member.segment}/"
                stack.append((child, inner, iter(self._members(inner))))

    def _wanted(self, full: bytes, *, directory: bool) -> bool:
        if directory:
            reaches = full >= self.floor or self.floor.startswith(full)
            return reaches and (full.startswith(self._prefix) or self._prefix.startswith(full))
        return full >= self.floor and full.startswith(self._prefix)

    def _members(self, dirs: tuple[str, ...]) -> list[_Member]:
        try:
            fd = open_directory(self._base, dirs)
        except OSError as error:
            if is_absent(error) or is_closed(error):
                return []
            raise
        found: dict[bytes, _Member] = {}
        try:
            _collect(fd, (), "", found)
        finally:
            os.close(fd)
        return [found[key] for key in sorted(found)]


def _collect(fd: int, below: tuple[str, ...], text: str, found: dict[bytes, _Member]) -> None:
    """Read one directory's members, with the chunks of over-long segments joined."""
    with os.scandir(fd) as entries:
        listed = [(entry.name, _kind(entry)) for entry in entries]
    for component, kind in listed:
        if kind is None or not _is_text(component):
            continue
        if component == SHADOW_DIR and kind:
            _collect_shadows(fd, below, text, found)
            continue
        decoded = decode_component(component)
        if decoded is None:
            continue
        segment = text + decoded[0]
        if not decoded[1]:
            if kind and len(below) < _MAX_CHUNKS:
                _collect_below(fd, component, below, segment, found)
            continue
        path = (*below, component)
        if encode_segment(segment) != path:
            continue
        key = segment.encode() + (b"/" if kind else b"")
        place = path if kind else below
        found[key] = _Member(key, segment, place, component, kind)


def _collect_below(
    fd: int, component: str, below: tuple[str, ...], text: str, found: dict[bytes, _Member]
) -> None:
    try:
        inner = os.open(component, DIRECTORY_FLAGS, dir_fd=fd)
    except OSError as error:
        if is_absent(error) or is_closed(error):
            return
        raise
    try:
        _collect(inner, (*below, component), text, found)
    finally:
        os.close(inner)


def _collect_shadows(
    fd: int, below: tuple[str, ...], text: str, found: dict[bytes, _Member]
) -> None:
    try:
        inner = os.open(SHADOW_DIR, DIRECTORY_FLAGS, dir_fd=fd)
    except OSError as error:
        if is_absent(error) or is_closed(error):
            return
        raise
    try:
        with os.scandir(inner) as entries:
            leaves = [entry.name for entry in entries if _kind(entry) is False]
    finally:
        os.close(inner)
    for leaf in leaves:
        decoded = decode_component(leaf) if _is_text(leaf) else None
        if decoded is None or not decoded[1]:
            continue
        segment = text + decoded[0]
        if encode_segment(segment) == (*below, leaf):
            key = segment.encode()
            # The plain file, if it came back meanwhile, is the newer one and wins.
            found.setdefault(key, _Member(key, segment, (*below, SHADOW_DIR), leaf, False))


def _kind(entry: os.DirEntry[str]) -> bool | None:
    """True for a directory, False for a regular file, None for what is neither."""
    if entry.is_dir(follow_symlinks=False):
        return True
    return False if entry.is_file(follow_symlinks=False) else None


def _is_text(component: str) -> bool:
    try:
        component.encode()
    except UnicodeEncodeError:
        return False
    return "\n" not in component and "\r" not in component
