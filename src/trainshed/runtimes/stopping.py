"""Ending a build, or what an image tool does, with everything that it has started."""

import contextlib
import os
import signal
import subprocess
import threading

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


class Stop:
    """Ends one build: what it runs is killed with all that this started, and nothing more of it starts."""

    def __init__(self) -> None:
        self.asked = False
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def ask(self) -> None:
        """From any thread. The build then raises BuildFailed."""
        with self._lock:
            self.asked = True
            for process in self._running:
                kill(process)

    def began(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.add(process)
            if self.asked:
                kill(process)

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, with its group."""
    # Only while it is not yet waited for, so that the number cannot belong to somebody else.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
