"""Ending a build in its middle, with everything that it has started."""

import contextlib
import os
import signal
import subprocess
import threading


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
