"""Watches directories with inotify and calls back when something in them changes.

Costs nothing while nothing changes. Changes of other files, or of other names than an awaited one, call
nobody.
"""

import asyncio
import fcntl
import os
import struct
import sys
import termios
import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from trainshed.replica.system import kernel

K = TypeVar("K", bound=Hashable)

_EVENT: Final = struct.Struct("iIII")
_LEFT: Final = kernel.IN_DELETE_SELF | kernel.IN_MOVE_SELF
_WRITTEN: Final = kernel.IN_MODIFY | kernel.IN_CLOSE_WRITE | kernel.IN_MOVED_TO | kernel.IN_CREATE
_GONE: Final = _LEFT | kernel.IN_UNMOUNT | kernel.IN_IGNORED


class DirectoryWatches(Generic[K]):
    """Inotify watches, each for one or more keys. `mark`: part of the names of the files that count; changes
    of other files are ignored. `changed`: called on the event loop with each key in whose directories
    something changed, once per batch of events."""

    def __init__(self, mark: str, changed: Callable[[K], None]) -> None:
        self._mark = os.fsencode(mark)
        self._changed = changed
        self._lock = threading.Lock()
        self._handle = -1
        #: For each number of a watch, its keys, each with the one name that counts for it; b"" = all names
        #: count.
        self._keys: dict[int, dict[K, bytes]] = {}

    def begin(self) -> None:
        """Open the inotify handle. Called on the event loop, before anything is watched."""
        if self._handle < 0:
            try:
                self._handle = kernel.inotify_handle()
            except OSError:
                return  # Then nothing can be watched, and each `watch` returns None.
            asyncio.get_running_loop().add_reader(self._handle, self._hear)

    def close(self) -> None:
        with self._lock:
            if self._handle >= 0:
                asyncio.get_running_loop().remove_reader(self._handle)
                os.close(self._handle)
                self._handle = -1
            self._keys.clear()

    def watch(self, directory: int, key: K, awaited: str = "") -> int | None:
        """Watch an open directory for a key. Return the watch's number, None if the directory cannot be
        watched. `awaited`: the only directory in it that counts, and no file does; "" = all count. Callable
        from any thread."""
        with self._lock:
            if self._handle < 0:
                return None
            try:
                # By its handle, since its name may lead to something else by now.
                number = kernel.add_watch(
                    self._handle, f"/proc/self/fd/{directory}", _WRITTEN | _LEFT | kernel.IN_ONLYDIR
                )
            except OSError:
                return None
            self._keys.setdefault(number, {})[key] = os.fsencode(awaited)
            return number

    def release(self, key: K, numbers: set[int]) -> None:
        """End those watches for a key. Callable from any thread."""
        with self._lock:
            for number in numbers:
                keys = self._keys.get(number)
                if keys is None:
                    continue
                keys.pop(key, None)
                if not keys:
                    del self._keys[number]
                    try:
                        kernel.remove_watch(self._handle, number)
                    except OSError:
                        continue  # The directory is gone, and its watch with it.

    def hear(self) -> None:
        """Process what has happened until now, which the kernel reports immediately, and no more: programs
        may go on for ever. Called on the event loop."""
        if self._handle >= 0:
            waiting = fcntl.ioctl(self._handle, termios.FIONREAD, bytes(4))
            self._hear(int.from_bytes(waiting, sys.byteorder))

    def _hear(self, most: int = 65536) -> None:
        """Process one batch of events, of at most so many bytes."""
        try:
            data = os.read(self._handle, most)
        except OSError:
            return  # There are none.
        woken: set[K] = set()
        at = 0
        with self._lock:
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                name = data[at : at + length].rstrip(b"\0")
                at += length
                if mask & kernel.IN_Q_OVERFLOW:
                    woken.update(*self._keys.values())
                elif mask & (_GONE | kernel.IN_ISDIR) or self._mark in name:
                    keys = self._keys.get(number, {})
                    woken |= {
                        key
                        for key, awaited in keys.items()
                        if mask & _GONE or not awaited or awaited == name
                    }
                if mask & kernel.IN_IGNORED:
                    self._keys.pop(number, None)
        for key in woken:
            self._changed(key)
