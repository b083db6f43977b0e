"""The node's side of content: it fetches everything that a launch needs, once however many agents ask.

A unit stays as long as an agent that was given it lives, or a program that runs in it: both hold shared
locks. Nothing slow happens on the loop: a process for each fetched unit unpacks it (`unpacking`).
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

from trainshed.engines.port import EngineUnavailable, LaunchRejected
from trainshed.eventloop.background import begin, joined
from trainshed_cluster.remote.content.frames import PIECE
from trainshed_cluster.remote.content.manifest import Manifest, Unit
from trainshed_cluster.remote.content.shelf import NodeShelf
from trainshed_cluster.remote.own_process import own_process

log = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a stream that the service's `Library.send` writes the unit of that path to. Raises OSError."""


class NodeCache:
    """A node's cache. `root`: the service's cache directory, at the same path on the node. `limit`: most
    bytes of fetched units, beyond which the least recently used go; 0 = a third of the disk. `node`: its
    name, for messages."""

    def __init__(
        self,
        root: Path,
        *,
        limit: int = 0,
        node: str = "this node",
    ) -> None:
        self._shelf = NodeShelf(root)
        self._limit = limit
        self._node = node
        self._leases: dict[str, int] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._helpers: set[asyncio.Task[int]] = set()

    async def have(self, manifest: Manifest, fetch: Fetch) -> None:
        """Return once all units of a manifest are there, to stay until `close`. Raises LaunchRejected (this
        node can never have them), EngineUnavailable; no incomplete unit is left then."""
        missing = await asyncio.to_thread(_missing, manifest.outside)
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
                    await self._have(unit, fetch)

    def close(self) -> None:
        """Release all locks; shims hold those of their programs' units."""
        for handle in self._leases.values():
            os.close(handle)
        self._leases.clear()

    async def _have(self, unit: Unit, fetch: Fetch) -> None:
        if await self._lease(unit):
            return
        begun = asyncio.get_running_loop().time()
        child = await asyncio.create_subprocess_exec(
            *own_process(
                "content.unpacking",
                str(self._shelf.root),
                str(self._limit),
                json.dumps(asdict(unit)),
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=PIECE,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            word, why = await _line(child.stdout)
            if word == "need":
                word, why = await self._feed(unit.path, fetch, child.stdin, child.stdout)
            if word in ("have", "done") and not await self._lease(unit, whatever=True):
                word, why = "failed", "it was removed at once"
            if word == "done":
                took = asyncio.get_running_loop().time() - begun
                log.info("%s is here: %.1f MB in %.1f s", unit.path, unit.bytes / 1e6, took)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            raise
        finally:
            # The process goes on until the unit is synced to disk, which need not be waited for.
            child.stdin.close()
            helper = begin(child.wait(), f"{unit.path}: its helper's end")
            self._helpers.add(helper)
            helper.add_done_callback(self._helpers.discard)
        if word not in ("have", "done"):
            raise EngineUnavailable(
                f"{self._node} did not get {unit.path}: {why or 'its helper was killed'}"
            )

    async def _feed(
        self,
        path: str,
        fetch: Fetch,
        into: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
    ) -> tuple[str, str]:
        """Pass what the service sends to the helper, until that has reported a result."""
        try:
            reader, writer = await fetch(path)
        except OSError as failure:
            return "failed", f"the service is not reached: {failure}"
        pouring = joined(_pour(reader, into))
        telling = joined(_line(answers))
        try:
            await asyncio.wait((pouring, telling), return_when=asyncio.FIRST_COMPLETED)
            if not telling.done():
                # If the helper has ended, uvloop raises RuntimeError because its handle is closed.
                with contextlib.suppress(OSError, RuntimeError):
                    await pouring
                # The stream has ended: the helper now says whether it was complete.
                if not telling.done():
                    with contextlib.suppress(OSError, RuntimeError):
                        into.write_eof()
            return await telling
        finally:
            for task in (pouring, telling):
                task.cancel()
            await asyncio.gather(pouring, telling, return_exceptions=True)
            writer.close()

    async def _lease(self, unit: Unit, *, whatever: bool = False) -> bool:
        """Take a shared lock on a unit; return whether it is there. `whatever`: the helper that holds the
        unit's lock has said that it is there, so that it is not checked."""
        handle = await asyncio.to_thread(self._shelf.lease, unit, whatever=whatever)
        if handle is None:
            return False
        self._leases[unit.path] = handle
        return True


def _missing(paths: tuple[str, ...]) -> list[str]:
    return [path for path in paths if not Path(path).is_dir()]


async def _pour(reader: asyncio.StreamReader, into: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        into.write(piece)
        await into.drain()


async def _line(answers: asyncio.StreamReader) -> tuple[str, str]:
    """Read a line of the helper: its first word, and the rest; "" if the helper was killed."""
    word, _, rest = (await answers.readline()).decode(errors="replace").strip().partition(" ")
    return word, rest
