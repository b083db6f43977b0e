"""Runs a zygote, sends requests to it, and replaces it when it is dead or hangs. `trainshed.replica.zygote`
is the zygote's own part.

A hung zygote is killed, which closes the file descriptors of its unread requests. The callers detect this,
and repeat these requests once, to the new zygote. The shims of the old zygote continue, and the slot's lock
prevents a second start.
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
from trainshed.replica import protocol
from trainshed.replica.system import cgroups, unix_sockets

log = logging.getLogger(__name__)

_START = "import sys; sys.path.insert(0, sys.argv[1]); from trainshed.replica import zygote; zygote.run(0)"
_ENVIRONMENT: Final = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "LD_BIND_NOW": "1"}
"""Environment of a zygote. With LD_BIND_NOW, forks need not resolve library functions."""
REQUEST_TIMEOUT: Final = 10.0
"""Number of seconds after which a zygote that does not read its requests counts as hung. It is much shorter
than the time after which a silent shim counts as lost (lease)."""
_FULL_INTERVAL: Final = 0.002
"""Seconds between two attempts to write to a zygote whose socket buffer is full."""
_EXIT_TIMEOUT: Final = 2.0
"""Seconds to wait for the exit of a zygote."""


class ZygoteHandle:
    """A running zygote, as its parent process sees it."""

    __slots__ = ("_is_reaped", "_turn", "connection", "pid")

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection
        connection.setblocking(False)
        self._turn = asyncio.Lock()
        self._is_reaped = False

    async def request(self, message: protocol.Message, handle: int) -> None:
        """Send one request and a copy of the file descriptor `handle`, which must stay open until then.
        Requests are sent one by one. Raises OSError if nothing was started: the zygote is dead, or read
        nothing for `REQUEST_TIMEOUT` seconds (TimeoutError)."""
        line = protocol.encode(message)
        async with self._turn, asyncio.timeout(REQUEST_TIMEOUT):
            sent = 0
            try:
                while not sent:
                    try:
                        sent = unix_sockets.send_available(self.connection, line, handle)
                    except BlockingIOError:
                        await asyncio.sleep(_FULL_INTERVAL)
                if rest := line[sent:]:
                    await asyncio.get_running_loop().sock_sendall(self.connection, rest)
            except BaseException:
                if sent:
                    self.kill()  # The zygote has received a part of a line, and would misread later requests.
                raise

    def kill(self) -> None:
        """Kill the zygote. Its shims continue; unread requests are lost."""
        if not self._is_reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def dismiss(self, *, at_once: bool = False) -> None:
        """Close the zygote without blocking the event loop. `at_once`: kill it first."""
        if at_once or self._turn.locked():
            self.kill()
        # Close the connection only when no other task is sending a request on it.
        async with self._turn:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Have the zygote exit, and reap it; kill it if it hangs. Its shims continue. Blocks for a few
        seconds at most."""
        self.connection.close()
        if not self._reap():
            self.kill()
            self._reap()

    def _reap(self) -> bool:
        deadline = time.monotonic() + _EXIT_TIMEOUT
        while not self._is_reaped and time.monotonic() < deadline:
            try:
                self._is_reaped = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
            except ChildProcessError:
                self._is_reaped = True  # Other code in this process has already reaped it.
            if not self._is_reaped:
                time.sleep(0.002)
        return self._is_reaped


def start() -> ZygoteHandle:
    """Start a zygote in a new interpreter. Returns within a millisecond. Requests may follow immediately."""
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
    # `ZygoteHandle.close` reaps it; Popen must not warn about a running child.
    process.returncode = 0
    return ZygoteHandle(process.pid, ours)


_PROBE_TIMEOUT = 30.0
_MAX_PROBES = 3
"""Maximum number of probes in a row. A probe is repeated if its process was killed."""

POOL: Final = 6
"""Number of idle shims, and therefore of programs that can start without waiting for forks. Each uses about
two megabytes, including its main process."""


class Spawner:
    """Runs the zygote of an engine, and replaces it when it fails. `handle`: a running zygote, or None."""

    def __init__(self, handle: ZygoteHandle | None) -> None:
        self._handle = handle
        self._level = ""
        self._lock = asyncio.Lock()

    async def request(self, message: protocol.Message, connection: socket.socket) -> None:
        """Request a shim that uses `connection` as its own connection. Raises EngineUnavailable.

        Returns after the request is sent, before the fork. If the zygote then dies, the peer of `connection`
        detects a closed connection.
        """
        for _ in range(3):
            handle = self._handle or await self._replace(None)
            try:
                await handle.request(message, connection.fileno())
            except OSError:
                await self._replace(handle)
            else:
                return
        raise EngineUnavailable("the process that starts programs exits immediately; run `trainshed doctor`")

    async def replace_hung(self) -> None:
        """Replace a zygote that has not handled a request in time. Its shims continue, and callers repeat
        their waiting requests."""
        if (handle := self._handle) is not None:
            log.warning("replacing the zygote (process %d), because a start takes long", handle.pid)
            await self._replace(handle)

    async def probe(self, directory: Path, levels: Sequence[str]) -> tuple[str, dict[str, str]]:
        """Find the first of these sandbox levels (`protocol.LEVEL_*`) that works on this machine. Returns
        that level ("" if none works), and the reason for each level before it. Raises LevelUnavailable."""
        for _ in range(_MAX_PROBES):
            if answer := await self._try_levels(directory, levels):
                result = json.loads(answer)
                if "failed" in result:
                    raise LevelUnavailable(result["failed"])
                return result["level"], result["refused"]
        raise LevelUnavailable("isolation cannot be probed: the probing process was killed; try again")

    async def _try_levels(self, directory: Path, levels: Sequence[str]) -> bytes:
        """Return the response of the probing process. It is empty if the process was killed, most likely
        together with the zygote."""
        ours, theirs = socket.socketpair()
        with theirs:
            await self.request({"probe": str(directory), "levels": list(levels)}, theirs)
        ours.setblocking(False)
        with ours, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_TIMEOUT):
                return await asyncio.get_running_loop().sock_recv(ours, 4096)
        return b""

    async def keep_pool(self, level: str) -> None:
        """Keep some idle shims of the isolation level `level` ready, in this zygote and its successors."""
        self._level = level
        await self._ask_for_pool(self._handle or await self._replace(None))

    async def _ask_for_pool(self, handle: ZygoteHandle) -> None:
        # This request has no response, but each request must have a file descriptor.
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
