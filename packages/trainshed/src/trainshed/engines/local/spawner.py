"""Keeps a zygote running, passes requests to it, and starts a new one when it is dead or hangs.

`trainshed.replica.zygote` is its own side.

The requests of a hung zygote reach the new one exactly once: when it is killed, the handles of requests that
it has not read are closed, which their callers see; what it has begun lives on, and the slot's lock refuses a
second start.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trainshed.engines.port import EngineUnavailable, LevelUnavailable
from trainshed.eventloop.background import begin, in_turns
from trainshed.replica import protocol
from trainshed.replica.system import cgroups, trees, unix_sockets

log = logging.getLogger(__name__)

_START = "import sys; sys.path.insert(0, sys.argv[1]); from trainshed.replica import zygote; zygote.run(0)"
_ENVIRONMENT: Final = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "LD_BIND_NOW": "1"}
"""A zygote's. Functions of libraries are looked up in it at once, not again in each fork that calls them."""
PATIENCE: Final = 10.0
"""Seconds after which a zygote that does not read what it is given counts as hung. Well below a lease."""
_FULL_PAUSE: Final = 0.002
"""Seconds until it is given more, if it has not read what it was given."""
_END: Final = 2.0
"""Seconds that one has to end in."""


class ZygoteHandle:
    """A running zygote, from the point of view of the process that started it."""

    __slots__ = ("_is_reaped", "_turn", "connection", "pid")

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection
        connection.setblocking(False)
        self._turn = asyncio.Lock()
        self._is_reaped = False

    async def request(self, message: protocol.Message, handle: int) -> None:
        """Hand over one request and a copy of `handle`, which stays open meanwhile; requests go one after the
        other. Raises OSError: nothing was started, because the zygote is dead, or took nothing for `PATIENCE`
        seconds (TimeoutError)."""
        line = protocol.encode(message)
        async with self._turn, asyncio.timeout(PATIENCE):
            sent = 0
            try:
                while not sent:
                    try:
                        sent = unix_sockets.send_some(self.connection, line, handle)
                    except BlockingIOError:
                        await asyncio.sleep(_FULL_PAUSE)
                if rest := line[sent:]:
                    await asyncio.get_running_loop().sock_sendall(self.connection, rest)
            except BaseException:
                if sent:
                    self.kill()  # The stream is useless after half a line.
                raise

    def kill(self) -> None:
        """Kill it. Shims go on; requests that it has not read are lost."""
        if not self._is_reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def dismiss(self, *, at_once: bool = False) -> None:
        """Close as `close` does, without blocking the loop. `at_once`: kill it instead of waiting for its
        end."""
        if at_once or self._turn.locked():
            self.kill()
        # Tasks that waited to hand something over no longer use the connection.
        async with self._turn:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End it and reap it; one that hangs is killed. Shims go on. Blocks for some seconds at most."""
        self.connection.close()
        if not self._reap():
            self.kill()
            self._reap()

    def _reap(self) -> bool:
        deadline = time.monotonic() + _END
        while not self._is_reaped and time.monotonic() < deadline:
            try:
                self._is_reaped = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
            except ChildProcessError:
                self._is_reaped = True  # Something else in this process has reaped it.
            if not self._is_reaped:
                time.sleep(0.002)
        return self._is_reaped


def start() -> ZygoteHandle:
    """Start a zygote as a new interpreter, at any time. Returns in a millisecond; requests may follow at
    once."""
    ours, theirs = socket.socketpair()
    source = str(Path(__file__).resolve().parents[3])
    options = ["-B"] if sys.dont_write_bytecode else []
    with theirs:
        process = subprocess.Popen(
            [sys.executable, *options, "-I", "-S", "-E", "-c", _START, source],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_ENVIRONMENT,
        )
    cgroups.enlist(process.pid)
    # The handle's own close reaps it; Popen must not warn about a child still running.
    process.returncode = 0
    return ZygoteHandle(process.pid, ours)


_PROBE_SECONDS = 30.0
_PROBES = 3
"""How often somebody may be killed who tries what this machine allows."""

POOL: Final = 6
"""Idle shims: so many programs start without waiting for forks. Each takes some two megabytes with its
main process."""


class Spawner:
    """The zygote of an engine, replaced when it fails. `handle`: a zygote that already runs, or None."""

    def __init__(self, handle: ZygoteHandle | None) -> None:
        self._handle = handle
        self._level = ""
        self._lock = asyncio.Lock()

    async def request(self, message: protocol.Message, connection: socket.socket) -> None:
        """Have a shim forked with `connection` as its own. Raises EngineUnavailable.

        Returning means handed over, not forked: if the zygote dies first, `connection`'s other end is closed.
        """
        for _ in range(3):
            handle = self._handle or await self._replace(None)
            try:
                await handle.request(message, connection.fileno())
            except OSError:
                await self._replace(handle)
            else:
                return
        raise EngineUnavailable(
            "the process that starts programs ends as soon as it is started; run `trainshed doctor`"
        )

    async def replace_hung(self) -> None:
        """Replace the zygote, which has not taken up a request in time. What it has begun lives on, and
        whoever waits for another request asks the new one."""
        if (handle := self._handle) is not None:
            log.warning("the zygote (process %d) is replaced: a start takes long", handle.pid)
            await self._replace(handle)

    async def probe(self, directory: Path, levels: Sequence[str]) -> tuple[str, dict[str, str]]:
        """Return the first of these sandbox levels (`protocol.LEVEL_*`) that works on this machine, "" =
        none, and by level why those before it do not. Raises LevelUnavailable if that could not be found
        out."""
        for _ in range(_PROBES):
            if answer := await self._try_levels(directory, levels):
                result = json.loads(answer)
                if "failed" in result:
                    raise LevelUnavailable(result["failed"])
                return result["level"], result["refused"]
        raise LevelUnavailable("isolation cannot be probed: whoever tried it was killed")

    async def _try_levels(self, directory: Path, levels: Sequence[str]) -> bytes:
        """Return the answer of the process that tried; empty if it was killed, most likely with its
        zygote."""
        ours, theirs = socket.socketpair()
        with theirs:
            await self.request({"probe": str(directory), "levels": list(levels)}, theirs)
        ours.setblocking(False)
        with ours, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_SECONDS):
                return await asyncio.get_running_loop().sock_recv(ours, 4096)
        return b""

    async def keep_pool(self, level: str) -> None:
        """Keep some idle shims of that level ready, of this zygote and of later ones."""
        self._level = level
        await self._ask_for_pool(self._handle or await self._replace(None))

    async def _ask_for_pool(self, handle: ZygoteHandle) -> None:
        # No answer is needed, but each request comes with a handle.
        nothing = os.open(os.devnull, os.O_RDONLY)
        wish: protocol.Message = {"pool": POOL, "level": self._level}
        try:
            with contextlib.suppress(OSError):
                await handle.request(wish, nothing)
        finally:
            os.close(nothing)

    async def close(self) -> None:
        if self._handle is not None:
            await self._handle.dismiss()
            self._handle = None

    async def _replace(self, dead: ZygoteHandle | None) -> ZygoteHandle:
        async with self._lock:
            if self._handle is None or self._handle is dead:
                self._handle = None
                if dead is not None:
                    await dead.dismiss(at_once=True)
                try:
                    self._handle = await asyncio.to_thread(start)
                except OSError as error:
                    raise EngineUnavailable(
                        f"the process that starts programs cannot be started ({error}); free memory or "
                        "processes"
                    ) from error
                if self._level:
                    await self._ask_for_pool(self._handle)
            return self._handle


_PAUSE = 5.0
_AT_ONCE = 500
"""Trees that a process is told to delete."""


class Sweeper:
    """Empties a directory some seconds after the first call of `later`."""

    def __init__(self, trash: Path) -> None:
        self._trash = trash
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None

    def later(self) -> None:
        """Note that there is something to delete."""
        self._is_wanted = True
        if self._task is None or self._task.done():
            self._task = begin(self._sweep(), "emptying the trash")

    async def _sweep(self) -> None:
        while self._is_wanted:
            await asyncio.sleep(_PAUSE)
            self._is_wanted = False
            trees_left = [str(tree) for tree in self._trash.iterdir()]
            async for some in in_turns(trees_left, _AT_ONCE):
                with contextlib.suppress(OSError):  # No process can be started: it is tried again.
                    process = await asyncio.create_subprocess_exec(
                        *trees.deletion(some), stderr=subprocess.DEVNULL
                    )
                    await process.wait()

    async def close(self) -> None:
        """Stop; the rest of the trash is deleted after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
