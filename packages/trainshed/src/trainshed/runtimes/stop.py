"""Stops builds and image tools together with every process that they have started."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable

from trainshed.runtimes.port import BuildFailed

OVERSEEN = """
exec 3<&0 </dev/null
"$@" 3<&- & main=$!
{ read -r never; kill -KILL 0; } <&3 3<&- >/dev/null 2>&1 & watcher=$!
exec 3<&-
wait "$main"; status=$?
kill "$watcher"
exit "$status"
"""
"""Shell program that runs a command, and kills it with all its descendants when its standard input ends. So
if the service is killed, no build continues and no lock of an image tool remains."""

_END_TIMEOUT = 5.0
"""Timeout in seconds for a process to end its descendants on request."""


class Stop:
    """Stops one build: kills its processes and all their descendants, and prevents new ones."""

    def __init__(self) -> None:
        self.is_asked = False
        self._running: dict[subprocess.Popen[bytes], Callable[[], None]] = {}
        self._lock = threading.Lock()

    def request(self) -> None:
        """Stop the build, which then raises BuildFailed. Thread-safe."""
        with self._lock:
            self.is_asked = True
            for end in self._running.values():
                end()

    def check(self) -> None:
        """Raise BuildFailed if a stop was requested."""
        if self.is_asked:
            raise BuildFailed(
                "The build was stopped, because the service is stopping. The service builds again after its "
                "next start."
            )

    def register(self, process: subprocess.Popen[bytes], end: Callable[[], None]) -> None:
        """Register a running process of the build. `end`: ends the process without waiting. It is called
        immediately if the build was stopped."""
        with self._lock:
            self._running[process] = end
            if self.is_asked:
                end()

    def unregister(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.pop(process, None)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a process group, together with its group."""
    # Kill the process only before it is reaped. After that, its ID could belong to another process.
    if process.returncode is None:
        # Ignore processes that cannot be killed: some processes of a rootless image tool belong to other
        # users.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def end_through(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Close the connection `line` to a process that supervises a run. The process then ends the run and
    exits. If it does not exit in time, kill it. Does not wait."""
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_WR)
    late = threading.Timer(_END_TIMEOUT, kill, [process])
    late.daemon = True
    late.start()
