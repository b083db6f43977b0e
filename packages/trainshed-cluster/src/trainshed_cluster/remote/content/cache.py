"""Fetches the content of launches to a node's cache.

A unit is a directory that the service sends as a whole, such as an environment. All agents of the node share
the cache, and a unit is fetched only once. Agents and programs hold shared locks on their units, and locked
units are not removed. Slow work such as unpacking runs in threads.
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
from trainshed_cluster.remote.content import node_units
from trainshed_cluster.remote.content.manifest import Manifest, Unit
from trainshed_cluster.remote.content.node_units import NodeUnits
from trainshed_cluster.remote.content.trees import ByteSource, TransferError, Unpacking

log = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a stream on which the service sends the directory with the given path (`Library.send`). Raises
OSError."""

_CACHE_DIVISOR = 3
"""The cache uses at most the size of the disk divided by this number."""
_MIN_FREE_BYTES = 64 << 20
"""Minimum number of free bytes that the cache leaves on the disk."""
_CACHE_HINT = (
    "; it needs the same path as on the service's machine. Choose a cache that is writable on nodes, "
    "too ($TRAINSHED_CACHE)"
)


class NodeCache:
    """A node's cache of the directories that the service has sent (units).

    Args:
        root: The service's cache directory, at the same path on the node.
        limit: Maximum bytes of fetched units. The least recently used units are removed first. None = a third
            of the disk.
        node: Name of the node in messages.
    """

    def __init__(self, root: Path, *, limit: int | None = None, node: str = "this node") -> None:
        self._units = NodeUnits(root)
        self._limit = limit
        self._node = node
        self._leases: dict[str, int] = {}
        self._unit_locks: dict[str, asyncio.Lock] = {}

    async def fetch_all(self, manifest: Manifest, fetch: Fetch) -> None:
        """Fetch all missing directories (units) of a manifest, and protect all its units from removal until
        `close`. A failure leaves no incomplete unit. Raises LaunchRejected if this node lacks a directory
        that the service does not send, and EngineUnavailable for other failures."""
        missing = await asyncio.to_thread(
            lambda: [path for path in manifest.outside if not Path(path).is_dir()]
        )
        if missing:
            raise LaunchRejected(
                f"{self._node} has no {', '.join(missing)}, which the job's environment requires from the "
                "machine. Install it there, share it with the service's machine, or give the service "
                "its own Python (pyenv, uv), which is sent to nodes"
            )
        for unit in manifest.units:
            # Other launches of this agent that need the same directory wait for this lock. Launches of other
            # agents wait for the directory's lock on the node.
            async with self._unit_locks.setdefault(unit.path, asyncio.Lock()):
                if unit.path not in self._leases:
                    self._leases[unit.path] = await self._lease(unit, fetch)

    def close(self) -> None:
        """Release all locks that this agent holds on fetched directories (units). The shims of running
        programs still hold their own locks on the directories that they use."""
        for handle in self._leases.values():
            os.close(handle)
        self._leases.clear()

    async def _lease(self, unit: Unit, fetch: Fetch) -> int:
        """Lock a unit, which is a directory in the node's cache, and return the file descriptor that holds
        the lock. Fetches the unit first if it is missing. Raises EngineUnavailable if it cannot be fetched.
        """
        stream = _Stream(unit.path, fetch)
        try:
            return await asyncio.to_thread(self._ensure_unit, unit, stream)
        except (TransferError, OSError) as failure:
            raise EngineUnavailable(
                f"{self._node} did not receive {unit.path}: {_in_words(failure)}"
            ) from failure
        finally:
            # If this task is cancelled, a thread may still read the stream. Close the stream, so that the
            # thread ends.
            stream.close()

    # --- methods that run in threads ---

    def _ensure_unit(self, unit: Unit, stream: "_Stream") -> int:
        if (handle := self._units.lease(unit)) is not None:
            return handle
        with self._units.lock_unit(unit.path):
            record = self._units.record(unit.path)
            is_there = record is not None and record.digest == unit.digest and Path(unit.path).is_dir()
            if not is_there and not (record is None and self._units.is_finished(unit)):
                self._require_removable(unit)
                self._fetch(unit, stream)
            handle = self._units.lease(unit, any_digest=True)
        if handle is None:
            raise TransferError("another process removed the directory")
        return handle

    def _require_removable(self, unit: Unit) -> None:
        """Remove any files at the path of a unit, which is a directory to fetch. Raises OSError if they must
        not be removed."""
        is_ours = self._units.record(unit.path) is not None
        if self._units.remove_unit(unit.path):
            return
        if is_ours:
            raise BlockingIOError(
                errno.EBUSY,
                "programs on this node use the previous version of the directory; it is replaced when they "
                "have ended",
            )
        raise FileExistsError(
            errno.EEXIST,
            "the existing files were not fetched and are incomplete; if no process is writing them, remove "
            "them",
        )

    def _fetch(self, unit: Unit, stream: ByteSource) -> None:
        """Fetch a unit (a directory): unpack it into a temporary directory, and move that to the unit's path.
        The caller holds the unit's lock. Raises TransferError if the received data is incomplete, and
        OSError."""
        begun = time.monotonic()
        self._units.make_parents(unit)
        place = Path(unit.path).parent
        disk = shutil.disk_usage(place)
        limit = disk.total // _CACHE_DIVISOR if self._limit is None else self._limit
        self._units.free_space(unit.bytes, limit, max(0, disk.free - _MIN_FREE_BYTES))
        free = shutil.disk_usage(place).free
        if free < unit.bytes + _MIN_FREE_BYTES:
            raise OSError(
                errno.ENOSPC,
                f"the directory needs {unit.bytes >> 20} MiB, but only {free >> 20} MiB are free on the "
                f"disk of {place}",
            )
        draft = self._units.draft(unit.path)
        try:
            unpacking = Unpacking(draft)
            if unpacking.unpack(stream) != unit.digest:
                raise TransferError("the service rebuilt the directory during the transfer")
            self._units.place(draft, unit, unpacking.bytes)
        except BaseException:
            node_units.remove(draft)
            raise
        took = time.monotonic() - begun
        log.info("received %s: %.1f MB in %.1f s", unit.path, unit.bytes / 1e6, took)


class _Stream:
    """The stream on which the service sends a directory (a unit). A thread reads from it, and the first read
    opens it. Create this object in the event loop."""

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
        """End the stream. Call this in the event loop."""
        self._is_closed = True
        # asyncio cannot abort a TLS transport that was closed twice, so close it only once.
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    async def _read(self, size: int) -> bytes:
        if self._streams is None and not self._is_closed:
            try:
                self._streams = await self._fetch(self._path)
            except OSError as failure:
                raise ConnectionError(f"cannot connect to the service: {failure}") from failure
        if self._streams is None or self._is_closed:
            self.close()
            return b""
        return await self._streams[0].read(size)


def _in_words(failure: TransferError | OSError) -> str:
    if not isinstance(failure, OSError):
        return str(failure)
    where = f": {failure.filename}" if failure.filename else ""
    advice = _CACHE_HINT if isinstance(failure, PermissionError) else ""
    return f"{failure.strerror or failure}{where}{advice}"
