"""Detects whether processes of a replica were killed at its memory limit, and enforces the limit where the
kernel does not.

With a memory control group, the kernel enforces the limit and counts its kills. Without one, this module
measures the processes several times a second. If their sum exceeds the limit, it kills the largest one. It
does not see peaks between two measurements, nor shared memory that no process has mapped. Measuring uses at
most a twentieth of a processor.

A replica ran out of memory (spec/failures#out-of-memory) if both conditions apply. Other kills are only
counted.

- A SIGKILL that the shim did not send for another reason ended its main process.
- One of its processes was killed at the limit.
"""

import os
import signal
import time
from typing import TYPE_CHECKING

from trainshed.replica import protocol
from trainshed.replica.system import cgroups, loop, processes

if TYPE_CHECKING:
    from typing import Protocol

    class Supervisor(Protocol):
        """The supervisor of the limited processes: the shim of a replica, or the keeper of an installation
        (`runtimes.keeper`)."""

        def main_process(self) -> int: ...

        def has_ended(self) -> bool: ...


_DEATH_TIMEOUT = 2.0
"""Number of seconds that a killed process has to release its memory before another process is killed."""
_POLL_INTERVAL = 0.1
_IDLE_FACTOR = 20
"""After each measurement, wait for at least this multiple of its duration."""


class MemoryLimit:
    """Enforces the memory limit of one run (incarnation) of a replica. `limit`: bytes, None = unlimited.
    `shim`: the supervisor of its processes."""

    def __init__(
        self, groups: cgroups.ControlGroups, limit: int | None, events: loop.Loop, shim: "Supervisor"
    ) -> None:
        self._groups = groups
        self._limit = limit or 0
        self._polled = self._limit > 0 and not groups.has_memory_group
        self._events = events
        self._shim = shim
        self._victim = (0, 0, 0.0)
        self._killed = 0
        self._has_killed_main = False
        self._by_kernel = self._total = 0
        self._drilled = False

    def program_started(self) -> None:
        if self._polled:
            self._events.after(_POLL_INTERVAL, self._poll)

    def drill(self) -> None:
        """For a drill (a fault that the user ordered), count the next kill of the main process as a lack of
        memory."""
        self._drilled = True

    def close(self) -> None:
        """Read the number of kills for the last time. Call this before the control groups are removed."""
        self._by_kernel = self._groups.oom_kills()
        self._total = self._by_kernel + self._killed

    def verdict(self, killed_by: int | None) -> tuple[bool, int]:
        """Return whether the main process ran out of memory, and the number of other processes that did.
        `killed_by`: the external signal that ended the main process; None if no signal did."""
        if killed_by != signal.SIGKILL:
            return False, self._total
        is_victim = self._has_killed_main or self._by_kernel > 0
        return is_victim or self._drilled, self._total - is_victim

    def _poll(self) -> None:
        if self._shim.has_ended():
            return
        begin = time.monotonic()
        self._enforce()
        duration = time.monotonic() - begin
        self._events.after(max(_POLL_INTERVAL, duration * _IDLE_FACTOR), self._poll)

    def _enforce(self) -> None:
        sizes = processes.resident(os.getpid())
        if sum(sizes.values()) <= self._limit:
            return
        # Measure again, exactly: without mapped files, and with shared memory counted once.
        sizes |= {pid: own for pid in sizes if (own := processes.own_memory(pid)) >= 0}
        used = sum(sizes.values())
        victim, start, killed_at = self._victim
        is_dying = victim and protocol.process_start(victim) == start
        if used > self._limit and not (is_dying and time.monotonic() < killed_at + _DEATH_TIMEOUT):
            largest = max(sizes, key=lambda process: sizes[process])
            began = protocol.process_start(largest)
            # The process has already exited, so its memory is free.
            if not began:
                return
            # Count a process once, even if it takes long to exit and is killed again.
            self._killed += (largest, began) != (victim, start)
            self._victim = (largest, began, time.monotonic())
            self._has_killed_main |= largest == self._shim.main_process()
            processes.send(largest, signal.SIGKILL)
