"""Determines whether processes of a replica died of its memory limit, and enforces the limit where control
groups do not.

With a memory control group, the kernel enforces the limit, and its counter of kills is the evidence. Without
one, this module measures the processes several times a second and kills the largest one when together they
exceed the limit. The verdicts are the same, a moment later. It misses peaks between two measurements, and
shared memory that no process has mapped. Measuring costs at most a twentieth of a processor.

The verdict (spec/failures#out-of-memory): a replica ran out of memory if its main process died by a SIGKILL
that was not the shim's own, and a process of it was killed at the limit. Other kills are only counted.
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
        """A replica's shim, or the keeper of an installation."""

        def main_process(self) -> int: ...

        def has_ended(self) -> bool: ...


_DEATH_TIMEOUT = 2.0
"""Seconds for a killed process to release its memory before another one is killed."""
_POLL_INTERVAL = 0.1
_IDLE_FACTOR = 20
"""A measurement may take a twentieth of the time between two of them."""


class MemoryLimit:
    """The memory limit of one incarnation. `limit`: bytes. `shim`: supervises it."""

    def __init__(
        self,
        groups: cgroups.ControlGroups,
        limit: int | None,
        events: loop.Loop,
        shim: "Supervisor",
    ) -> None:
        self._groups = groups
        self._limit = limit or 0
        self._polled = self._limit > 0 and not groups.holds_memory
        self._events = events
        self._shim = shim
        self._victim = (0, 0, 0.0)
        self._killed = 0
        self._has_killed_main = False
        self._by_kernel = self._total = 0
        self._drilled = False

    def program_started(self) -> None:
        if self._polled:
            self._events.after(_POLL_INTERVAL, self._look)

    def drill(self) -> None:
        """Record that the main process is about to be killed as if it had run out of memory."""
        self._drilled = True

    def close(self) -> None:
        """Count the kills for the last time; the control groups may be removed after that."""
        self._by_kernel = self._groups.oom_kills()
        self._total = self._by_kernel + self._killed

    def verdict(self, killed_by: int | None) -> tuple[bool, int]:
        """Return whether the main process, which died by this external signal, ran out of memory, and how
        many other processes did."""
        if killed_by != signal.SIGKILL:
            return False, self._total
        is_victim = self._has_killed_main or self._by_kernel > 0
        return is_victim or self._drilled, self._total - is_victim

    def _look(self) -> None:
        if self._shim.has_ended():
            return
        begin = time.monotonic()
        self._hold()
        taken = time.monotonic() - begin
        self._events.after(max(_POLL_INTERVAL, taken * _IDLE_FACTOR), self._look)

    def _hold(self) -> None:
        sizes = processes.resident(os.getpid())
        if sum(sizes.values()) <= self._limit:
            return
        # Without memory counted twice, and without files, they may be within the limit.
        sizes |= {pid: own for pid in sizes if (own := processes.own_memory(pid)) >= 0}
        used = sum(sizes.values())
        victim, start, killed_at = self._victim
        is_dying = victim and protocol.process_start(victim) == start
        if used > self._limit and not (is_dying and time.monotonic() < killed_at + _DEATH_TIMEOUT):
            largest = max(sizes, key=lambda process: sizes[process])
            began = protocol.process_start(largest)
            if not began:
                return  # It has ended since it was measured.
            # A process that takes long to die is counted once.
            self._killed += (largest, began) != (victim, start)
            self._victim = (largest, began, time.monotonic())
            self._has_killed_main |= largest == self._shim.main_process()
            processes.send(largest, signal.SIGKILL)
