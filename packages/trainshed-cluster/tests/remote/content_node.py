"""A node of its own: mounts in which a service's cache directory is empty, and agents in them."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from trainshed_cluster.remote.content.library import Library
from trainshed_cluster.remote.content.manifest import Manifest

_AGENT = """
import asyncio, json, sys
from pathlib import Path
from trainshed_cluster.remote.content.cache import NodeCache
from trainshed_cluster.remote.content.manifest import Manifest, Unit

async def main():
    root, limit, door, manifest = sys.argv[1:]
    given = json.loads(manifest)
    units = tuple(Unit(**{**u, "parents": tuple(map(tuple, u["parents"]))}) for u in given["units"])
    cache = NodeCache(Path(root), limit=int(limit), node="node3")
    async def fetch(path):
        reader, writer = await asyncio.open_unix_connection(door)
        writer.write(path.encode() + b"\\n")
        return reader, writer
    try:
        await cache.have(Manifest(units, tuple(given["outside"])), fetch)
    except Exception as failure:
        print(type(failure).__name__, failure, flush=True)
    else:
        print("have", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class Door:
    """Where nodes fetch. `cut`: break each stream off after so many bytes; None = do not."""

    def __init__(self, library: Library, path: Path) -> None:
        self.path = path
        self.fetched: list[str] = []
        self.cut: int | None = None
        self.is_cut = asyncio.Event()
        self.is_sent = asyncio.Event()
        self._library = library

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator[Self]:
        server = await asyncio.start_unix_server(self._serve, self.path)
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).decode().strip()
        self.fetched.append(path)
        if self.cut is None:
            await self._library.send(path, writer)
            self.is_sent.set()
            return
        inner = self.path.with_name(f"cut{len(self.fetched)}")
        server = await asyncio.start_unix_server(
            lambda _, pipe: self._library.send(path, pipe), inner
        )
        whole, _ = await asyncio.open_unix_connection(inner)
        with contextlib.suppress(asyncio.IncompleteReadError):
            writer.write(await whole.readexactly(self.cut))
            await writer.drain()
            self.is_cut.set()
        server.close()
        if self.cut:
            writer.close()


class Node:
    """`size`: of its cache's disk, as mount(8) takes it."""

    def __init__(self, root: Path, door: Path, size: str = "1g") -> None:
        self.root = root
        self._door = door
        script = f"mount -t tmpfs -o mode=755,size={size} tmpfs {root} && echo up && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"

    def close(self) -> None:
        self._holder.communicate()

    def run(self, *command: str) -> str:
        """What a command on the node prints; its failure is the caller's."""
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def names(self) -> set[str]:
        """What lies in its cache, without what the cache keeps for itself."""
        names = self.run("find", str(self.root), "-mindepth", "1", "-printf", "%P\n").split("\n")
        return {name for name in names if name and not name.startswith(".node")}

    async def agent(self, manifest: Manifest, limit: int = 0) -> "Agent":
        """One that has begun to fetch."""
        process = await asyncio.create_subprocess_exec(
            *(*self._enter, sys.executable, "-c", _AGENT),
            *(str(self.root), str(limit), str(self._door), json.dumps(asdict(manifest))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return Agent(process)

    @property
    def _enter(self) -> Sequence[str]:
        return ["nsenter", "-m", "-t", str(self._holder.pid)]


class Agent:
    """A process on a node that has asked for content, and keeps it until it leaves."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def answer(self) -> str:
        """ "have", or what it could not."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode().strip()

    async def leave(self) -> None:
        await self.process.communicate(b"")

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()
