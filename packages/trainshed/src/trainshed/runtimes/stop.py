"""Stops builds and image tools, with every process that they have started."""

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
"""Runs a command, and kills it and everything that it started when its standard input ends: if the service is
killed, nothing may go on building or keep an image tool's lock."""

_PATIENCE = 5.0
"""Seconds for a process to end everything that it started after it was asked to."""


class Stop:
    """Stops one build: its processes are killed with everything that they started, and it starts no more."""

    def __init__(self) -> None:
        self.is_asked = False
        self._running: dict[subprocess.Popen[bytes], Callable[[], None]] = {}
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Stop the build, which then raises BuildFailed. May be called from any thread."""
        with self._lock:
            self.is_asked = True
            for end in self._running.values():
                end()

    def check(self) -> None:
        """Raise BuildFailed if it was asked for at the end of the service."""
        if self.is_asked:
            raise BuildFailed("The service is being stopped; this is built at its next start.")

    def began(self, process: subprocess.Popen[bytes], end: Callable[[], None]) -> None:
        """Note that a process of the build runs. `end`: ends it, without waiting; called at once if a stop
        was asked for."""
        with self._lock:
            self._running[process] = end
            if self.is_asked:
                end()

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.pop(process, None)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, together with its group."""
    # Only while nobody has waited for it, since its id could belong to another process afterwards.
    if process.returncode is None:
        # What a rootless image tool starts may belong to other users.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def end_by(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Close the line of a process that supervises others, which then ends them all; kill it if it takes too
    long. Does not wait."""
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_WR)
    late = threading.Timer(_PATIENCE, kill, [process])
    late.daemon = True
    late.start()
