"""Starting a zygote and talking to it (`trainshed.replica.zygote` is its own side)."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from trainshed.replica import protocol
from trainshed.replica.system import unix_sockets

_START = "import sys; sys.path.insert(0, sys.argv[1]); from trainshed.replica import zygote; zygote.run(0)"


PATIENCE: Final = 10.0
"""Seconds after which a zygote that does not read what it is given counts as hung. Well below a lease."""
_END: Final = 2.0
"""Seconds that one has to end in."""


class ZygoteHandle:
    """A running zygote as its starter sees it."""

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
        async with self._turn:
            sent = 0
            try:
                while sent < len(line):
                    try:
                        if sent:
                            sent += self.connection.send(line[sent:])
                        else:
                            sent = unix_sockets.send_some(self.connection, line, handle)
                    except BlockingIOError:
                        await self._until_writable()
            except BaseException:
                if sent:
                    self.kill()  # Nobody could go on after half a line.
                raise

    async def ping(self) -> None:
        """Return when it has taken up all requests so far. Raises OSError, as `request` does."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours:
            with theirs:
                await self.request({"ping": True}, theirs.fileno())
            async with asyncio.timeout(PATIENCE):
                await asyncio.get_running_loop().sock_recv(ours, 1)

    async def _until_writable(self) -> None:
        loop, number, writable = (
            asyncio.get_running_loop(),
            self.connection.fileno(),
            asyncio.Event(),
        )
        loop.add_writer(number, writable.set)
        try:
            async with asyncio.timeout(PATIENCE):
                await writable.wait()
        finally:
            loop.remove_writer(number)

    def kill(self) -> None:
        """End it at once, whatever it does. Shims go on; requests that it has not read are lost."""
        if not self._is_reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def dismiss(self, *, at_once: bool = False) -> None:
        """As `close`; `at_once`: without waiting for it to end by itself."""
        if at_once or self._turn.locked():
            self.kill()
        async with (
            self._turn
        ):  # Whoever waited to hand something over has let go of the connection.
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Let it end and reap it; one that hangs is killed. Shims go on. Blocks for some seconds at most."""
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
                self._is_reaped = True  # Somebody else reaps this process's children.
            if not self._is_reaped:
                time.sleep(0.002)
        return self._is_reaped


def start() -> ZygoteHandle:
    """Start a zygote as a new interpreter, at any time. Returns in a millisecond; requests may follow at
    once."""
    ours, theirs = socket.socketpair()
    source = str(Path(__file__).resolve().parents[3])
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-E", "-c", _START, source],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
        )
    # The handle's own close reaps it; Popen must not warn about a child still running.
    process.returncode = 0
    return ZygoteHandle(process.pid, ours)
