"""Starting a zygote and talking to it (`trainshed.replica.zygote` is its own side)."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from trainshed.replica import handover, protocol

_START = "import sys; sys.path.insert(0, sys.argv[1]); from trainshed.replica import zygote; zygote.run(0)"


class ZygoteHandle:
    """A running zygote as its starter sees it."""

    __slots__ = ("connection", "pid")

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection

    def request(self, message: protocol.Message, handle: int) -> None:
        """Hand over one request and a copy of `handle`. Raises OSError: the zygote is dead, nothing was started."""
        handover.send(self.connection, protocol.encode(message), handle)

    def kill(self) -> None:
        """End it at once, whatever it does. Shims go on; requests that it has not read are lost."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let it end and reap it. Shims go on."""
        self.connection.close()
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            return  # Somebody else reaps this process's children.


def start() -> ZygoteHandle:
    """Start a zygote as a new interpreter, at any time. Returns in a millisecond; requests may follow at once."""
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
