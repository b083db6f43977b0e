"""The node's side of content: it fetches everything that a launch needs, once however many agents ask.

A unit stays as long as an agent that was given it lives, or a program that runs in it: both hold shared
locks. Nothing slow happens on the loop: units are unpacked in threads.
"""

import asyncio
import errno
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from trainshed.engines.port import EngineUnavailable, LaunchRejected
from trainshed.eventloop.background import run_in_loop
from trainshed_cluster.remote.content import shelf as shelves
from trainshed_cluster.remote.content.manifest import Manifest, Unit
from trainshed_cluster.remote.content.shelf import NodeShelf
from trainshed_cluster.remote.content.trees import ByteSource, Torn, Unpacking

log = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a stream that the service's `Library.send` writes the unit of that path to. Raises OSError."""

_SHARE = 3
"""What is kept takes one of so many parts of its disk, which others need as well."""
_RESERVE = 64 << 20
"""Bytes that stay free on the disk."""
_WHERE = (
    "; it has to lie where it lies on the service's machine, so let that be where jobs may write on nodes, "
    "too ($TRAINSHED_CACHE)"
)


class NodeCache:
    """A node's cache. `root`: the service's cache directory, at the same path on the node. `limit`: most
    bytes of fetched units, beyond which the least recently used go; None = a third of the disk. `node`: its
    name, for messages."""

    def __init__(self, root: Path, *, limit: int | None = None, node: str = "this node") -> None:
        self._shelf = NodeShelf(root)
        self._limit = limit
        self._node = node
        self._leases: dict[str, int] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def have(self, manifest: Manifest, fetch: Fetch) -> None:
        """Return once all units of a manifest are there, to stay until `close`. Raises LaunchRejected (this
        node can never have them), EngineUnavailable; no incomplete unit is left then."""
        missing = await asyncio.to_thread(
            lambda: [path for path in manifest.outside if not Path(path).is_dir()]
        )
        if missing:
            raise LaunchRejected(
                f"{self._node} has no {', '.join(missing)}, which the job's environment needs of the "
                "machine: install the same there, share it with the service's machine, or give the service "
                "a Python of its own (pyenv, uv), which is sent along"
            )
        for unit in manifest.units:
            # Launches of one agent that need the same unit wait here; those of other agents wait for the
            # unit's lock.
            async with self._turns.setdefault(unit.path, asyncio.Lock()):
                if unit.path not in self._leases:
                    self._leases[unit.path] = await self._lease(unit, fetch)

    def close(self) -> None:
        """Release all locks; shims hold those of their programs' units."""
        for handle in self._leases.values():
            os.close(handle)
        self._leases.clear()

    async def _lease(self, unit: Unit, fetch: Fetch) -> int:
        """Return the handle that keeps a unit there, fetched if need be. Raises EngineUnavailable."""
        stream = _Stream(unit.path, fetch)
        try:
            return await asyncio.to_thread(self._have, unit, stream)
        except (Torn, OSError) as failure:
            raise EngineUnavailable(
                f"{self._node} did not get {unit.path}: {_in_words(failure)}"
            ) from failure
        finally:
            # If this call was cancelled, the thread reads the end.
            stream.close()

    # --- in threads ---

    def _have(self, unit: Unit, stream: "_Stream") -> int:
        if (handle := self._shelf.lease(unit)) is not None:
            return handle
        with self._shelf.locked(unit.path):
            record = self._shelf.record(unit.path)
            is_there = (
                record is not None and record.digest == unit.digest and Path(unit.path).is_dir()
            )
            if not is_there and not (record is None and self._shelf.is_finished(unit)):
                self._require_removable(unit)
                self._fetch(unit, stream)
            handle = self._shelf.lease(unit, whatever=True)
        if handle is None:
            raise Torn("it was removed at once")
        return handle

    def _require_removable(self, unit: Unit) -> None:
        """Remove what lies at the unit's path. Raises OSError if it cannot be."""
        is_ours = self._shelf.record(unit.path) is not None
        if self._shelf.take_away(unit.path):
            return
        if is_ours:
            raise BlockingIOError(
                errno.EBUSY,
                "programs on this node use what lay there before; it is replaced after them",
            )
        raise FileExistsError(
            errno.EEXIST,
            "what lies there was put there by others and is not finished; if nobody is at it, remove it",
        )

    def _fetch(self, unit: Unit, stream: ByteSource) -> None:
        """Request the unit, unpack it beside its path, move it there. The unit's lock is held. Raises Torn,
        OSError."""
        begun = time.monotonic()
        self._shelf.make_parents(unit)
        place = Path(unit.path).parent
        disk = shutil.disk_usage(place)
        limit = disk.total // _SHARE if self._limit is None else self._limit
        self._shelf.make_room(unit.bytes, limit, max(0, disk.free - _RESERVE))
        free = shutil.disk_usage(place).free
        if free < unit.bytes + _RESERVE:
            raise OSError(
                errno.ENOSPC,
                f"it takes {unit.bytes >> 20} MiB, and {free >> 20} MiB are free on the disk of {place}",
            )
        draft = self._shelf.draft(unit.path)
        try:
            unpacking = Unpacking(draft)
            if unpacking.take(stream) != unit.digest:
                raise Torn("it was built anew meanwhile")
            self._shelf.place(draft, unit, unpacking.bytes)
        except BaseException:
            shelves.remove(draft)
            raise
        took = time.monotonic() - begun
        log.info("%s is here: %.1f MB in %.1f s", unit.path, unit.bytes / 1e6, took)


class _Stream:
    """A unit as it comes from the service, for a thread to read. It is made in the loop, and requested at
    the first read."""

    def __init__(self, path: str, fetch: Fetch) -> None:
        self._path = path
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_closed = False

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; b"" = the end. Raises OSError."""
        return run_in_loop(self._loop, self._read(size))

    def close(self) -> None:
        """End the stream. In the loop."""
        self._is_closed = True
        # asyncio's TLS that was closed twice cannot be aborted any more.
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    async def _read(self, size: int) -> bytes:
        if self._streams is None and not self._is_closed:
            try:
                self._streams = await self._fetch(self._path)
            except OSError as failure:
                raise ConnectionError(f"the service is not reached: {failure}") from failure
        if self._streams is None or self._is_closed:
            self.close()
            return b""
        return await self._streams[0].read(size)


def _in_words(failure: Torn | OSError) -> str:
    if not isinstance(failure, OSError):
        return str(failure)
    where = f": {failure.filename}" if failure.filename else ""
    advice = _WHERE if isinstance(failure, PermissionError) else ""
    return f"{failure.strerror or failure}{where}{advice}"
