"""A stop for builds and image tools: ends one with everything that it has started."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable

OVERSEEN = """
exec 3<&0 </dev/null
"$@" 3<&- & main=$!
{ read -r never; kill -KILL 0; } <&3 3<&- >/dev/null 2>&1 & watcher=$!
exec 3<&-
wait "$main"; status=$?
kill "$watcher"
exit "$status"
"""
"""Runs a command, and kills it with all that it started as soon as its standard input is at an end: nothing
may go on building, or keep an image tool's lock, when the service was killed."""


_PATIENCE = 5.0
"""Seconds in which a process that was asked to end all that it started has to have done so."""


class Stop:
    """Ends one build: what it runs is killed with all that this started, and nothing more of it starts."""

    def __init__(self) -> None:
        self.asked = False
        self._running: dict[subprocess.Popen[bytes], Callable[[], None]] = {}
        self._lock = threading.Lock()

    def ask(self) -> None:
        """From any thread. The build then raises BuildFailed."""
        with self._lock:
            self.asked = True
            for end in self._running.values():
                end()

    def began(self, process: subprocess.Popen[bytes], end: Callable[[], None]) -> None:
        """`end`: ends it, without waiting for that."""
        with self._lock:
            self._running[process] = end
            if self.asked:
                end()

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.pop(process, None)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, with its group."""
    # Only while it is not yet waited for, so that the number cannot belong to somebody else.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def end_by(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Have a process that keeps others, and ends at the end of its line, end them all; kill it if it does
    not."""
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_WR)
    late = threading.Timer(_PATIENCE, kill, [process])
    late.daemon = True
    late.start()
