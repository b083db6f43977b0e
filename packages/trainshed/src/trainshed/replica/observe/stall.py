"""The stall watchdog detects a program that makes no progress, and makes it print its stacks. A quiet program
may still make progress.

Progress since the last sample is one of:

- any output
- any byte that the replica's processes read or write (`rchar` and `wchar` of proc(5): files and pipes, but
  not `send` on sockets), or that its storage endpoint forwards
- processor time: more than 0.5 % of one processor since the last sample, or since the last progress

A program that waits for its peers by spinning, or that polls constantly, does not count as stalled.

After the limit, the watchdog stops every process. So the stacks are of one moment, and no process reacts to
another's death. Then it continues the Python processes one by one with SIGABRT: the main process first, and
children after their parents. On SIGABRT, `faulthandler` (enabled in the program's environment) prints the
stacks of all threads. If children came first, a thread that waits for a child would return from its wait
before its stack is printed.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from trainshed.replica import protocol
from trainshed.replica.system import loop, processes

if TYPE_CHECKING:
    from trainshed.replica.supervisor.shim import Shim

_BUSY = 0.005
"""A program that uses more than this fraction of one processor makes progress."""
_TICK = 0.01
"""Resolution of the kernel's processor times, in seconds."""
_SAMPLES = 10
_MIN_PAUSE = 0.2
_DUMP_SECONDS = 2.0
_ONE_DUMP_SECONDS = 0.5
_DUMP_PAUSE = 0.01


class Sample(NamedTuple):
    """A replica's counters at one moment: bytes of output, seconds of processor time, bytes read and
    written."""

    output: int
    cpu: float
    io_bytes: int


class StallDetector:
    """Decides whether a program counts as stalled, based only on samples. Times are seconds of any monotonic
    clock."""

    def __init__(self, after: float, now: float, sample: Sample) -> None:
        self._after = after
        #: Seconds between two samples.
        self.pause = max(_MIN_PAUSE, after / _SAMPLES)
        self._last = self._progress = sample
        self._last_at = self._progress_at = now

    def is_over(self, now: float, sample: Sample) -> bool:
        """Process the next sample. Return whether the program has made no progress for too long."""
        # A late sample shows that the machine was paused, perhaps with the program: ignore that time.
        was_paused = now - self._last_at > 2 * self.pause + 1
        if was_paused or self._is_progress(now, sample):
            self._progress, self._progress_at = sample, now
        self._last, self._last_at = sample, now
        return now - self._progress_at >= self._after

    def _is_progress(self, now: float, sample: Sample) -> bool:
        if sample.output != self._last.output or sample.io_bytes != self._last.io_bytes:
            return True
        for before, at in ((self._last, self._last_at), (self._progress, self._progress_at)):
            if sample.cpu - before.cpu - _TICK > _BUSY * (now - at):
                return True
        return False


class Watchdog:
    """Watches one program from its start, and ends it if it stalls."""

    def __init__(
        self, after: float, events: loop.Loop, shim: "Shim", relay: "Callable[[], int | None]"
    ) -> None:
        """`after`: seconds without progress before the program counts as stalled. `shim`: supervises the
        program, and kills it after a stall. `relay`: returns the process ID of the storage endpoint's relay,
        or None while no relay runs."""
        self._after = after
        self._events = events
        self._shim = shim
        self._relay = relay
        self._detector = StallDetector(after, time.monotonic(), self._sample())
        events.after(self._detector.pause, self._check)

    def _sample(self) -> Sample:
        cpu, io_bytes = processes.resource_use(os.getpid())
        relay = self._relay()
        # The relay runs only to forward bytes, so its processor time counts as progress.
        return Sample(
            self._shim.transcript.read, cpu, io_bytes + (processes.running_time(relay) if relay else 0)
        )

    def _check(self) -> None:
        if self._shim.has_ended():
            return
        # Output waits because the disk is full, which is not the program's fault. So restart the time without
        # progress.
        if self._shim.transcript.waits:
            self._detector = StallDetector(self._after, time.monotonic(), self._sample())
        if self._detector.is_over(time.monotonic(), self._sample()):
            self._shim.end_stalled()
        else:
            self._events.after(self._detector.pause, self._check)


class Dump:
    """Makes a replica's Python processes print their stacks, which terminates them. `log`: writes a line of
    the service into the log. `done`: called when the last process has exited, or at the deadline; it must
    kill the remaining processes. Before this call, the shim must ignore the main process's exit."""

    def __init__(
        self, shim: int, main: int, events: loop.Loop, log: Callable[[str], None], done: Callable[[], None]
    ) -> None:
        self._events = events
        self._log = log
        self._done = done
        self._deadline = time.monotonic() + _DUMP_SECONDS
        self._next_at = 0.0
        self._now = (0, 0)
        members = processes.programs(shim)
        for process in members:
            processes.send(process, signal.SIGSTOP)
        members.sort(key=lambda process: process != main)
        self._waiting = [process for process in members if processes.has_handler(process, signal.SIGABRT)]
        if not self._waiting:
            log("No process of this replica is a Python that can print its stacks.")
        self._step()

    def _step(self) -> None:
        """Continue with the next process after the current one has exited or reached its deadline."""
        now = time.monotonic()
        process, start = self._now
        if process and protocol.process_start(process) == start and now < self._next_at:
            self._events.after(_DUMP_PAUSE, self._step)
        elif self._waiting and now < self._deadline:
            self._wake(self._waiting.pop(0), now)
            self._events.after(_DUMP_PAUSE, self._step)
        else:
            self._done()

    def _wake(self, process: int, now: float) -> None:
        # Imported late: a module that is imported before a fork slows down the fork.
        import resource

        name = processes.read("/proc/%d/comm" % process).decode("utf-8", "replace").strip()
        self._log("Stacks of process %d (%s):" % (process, name))
        # Disable the process's core dump, because SIGABRT would cause one.
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(process, resource.RLIMIT_CORE, (0, 0))
        self._now = (process, protocol.process_start(process))
        self._next_at = min(now + _ONE_DUMP_SECONDS, self._deadline)
        # Send SIGABRT before SIGCONT, so that the process aborts as soon as it continues.
        processes.send(process, signal.SIGABRT)
        processes.send(process, signal.SIGCONT)
