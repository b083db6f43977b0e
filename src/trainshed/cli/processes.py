"""Ends a process of this machine and waits for its end: woken by the kernel, never by looking again."""

import os
import select
import signal
import sys


class Process:
    """A running process, held so that its number cannot come to mean another one. Use it in a `with`."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError if there is none."""
        self._pid = pid
        self._descriptor = os.pidfd_open(pid) if sys.platform == "linux" else -1
        if self._descriptor < 0:
            os.kill(pid, 0)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *raised: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def terminate(self) -> None:
        """Send SIGTERM. Does nothing if the process has ended."""
        try:
            if sys.platform == "linux":
                signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)
            else:
                os.kill(self._pid, signal.SIGTERM)
        except ProcessLookupError:
            return

    def wait(self, seconds: float) -> bool:
        """Whether the process ended within so many seconds."""
        if sys.platform == "linux":
            readable, _, _ = select.select([self._descriptor], [], [], seconds)
            return bool(readable)
        return self._wait_kqueue(seconds)

    def _wait_kqueue(self, seconds: float) -> bool:
        if sys.platform == "linux" or sys.platform == "win32":
            raise AssertionError("only BSDs and macOS have kqueue")
        events = select.kqueue()
        try:
            ending = select.kevent(
                self._pid,
                filter=select.KQ_FILTER_PROC,
                flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
                fflags=select.KQ_NOTE_EXIT,
            )
            return bool(events.control([ending], 1, seconds))
        except ProcessLookupError:
            return True
        finally:
            events.close()
