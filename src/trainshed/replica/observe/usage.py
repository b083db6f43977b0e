"""A replica's use of processors, memory, disk, network and GPUs while it runs, written down beside its log.

Looks at it soon after the start and then every so many seconds; a look is followed by a rest of at least a
thousand times its own length. By control groups where the kernel counts there, else by adding up processes.
Nothing here may hurt the program or its record: what cannot be written is not written. Runs on Python 3.6.

A line of `usage.jsonl` is one of

    {"started": NS, "incarnation": N, "limit": BYTES, "cpus": N, "gpus": [UUID]}            the program was
    started
    {"at": NS, "cpu": S, "memory": BYTES, "peak": BYTES, "processes": N, "gpus": [GPU], "disk": BYTES,
    "net": [BYTES, BYTES]}                                                                  used by then

`limit`: of memory, 0 = none; `cpus`: processors that this machine has for it. `cpu`: seconds of processor
time since the start. `memory`: without cached files. `peak`: the most that a look has found, or that a single
process ever had. GPU: [seconds for which it was at work, bytes in use, bytes in all, most bytes in use], null
where it does not tell; the list is empty where nobody could be asked. `disk`: what its files took when they
were last measured, 0 = they were not. `net`: sent and received over TCP since the start (`network`); absent
where nobody tells. The last line of an incarnation has "last": true.

What only grows, grows over thinning as well: of more than 2,000 lines the newest 500 stay, and of the others
500 to 1,000, evenly spread over time.
"""

import os
import time

from trainshed.replica.observe import gpus, growing_files, network
from trainshed.replica.observe import segments as log
from trainshed.replica.system import loop, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

    Entry = dict[str, Any]
else:
    Entry = dict

FILE = "usage.jsonl"

_FIRST = (1.0, 1.0, 3.0, 5.0)
"""Seconds between the first looks, so that there is something to be seen of short programs."""
_SHARE = 1000


class Usage:
    """What one incarnation uses, look by look."""

    __slots__ = (
        "_cpu",
        "_directories",
        "_disk",
        "_events",
        "_every",
        "_first",
        "_gpus",
        "_guardian",
        "_incarnation",
        "_limit",
        "_peak",
        "_place",
        "_seen",
        "_sheet",
        "_traffic",
        "_watch",
        "_watched",
    )

    def __init__(
        self,
        logs: str,
        incarnation: int,
        *,
        every: float,
        limit: int,
        gpus: "Sequence[str]",
        directories: "Sequence[str]",
        guardian: int,
        events: loop.Loop,
        disk: "Callable[[], int]" = lambda: 0,
        place: "tuple[str, int]" = ("", 0),
        watch: "Callable[[Sequence[str]], gpus.GpuWatcher]" = gpus.GpuWatcher,
    ) -> None:
        """Touches nothing. `logs`: the directory of the replica's log. `place`: its own address, and the port
        of its endpoint there."""
        self._sheet = growing_files.SampleFile(os.path.join(logs, FILE))
        self._incarnation = incarnation
        #: Seconds between two looks.
        self._every = every
        #: Bytes of memory; 0 = none.
        self._limit = limit
        #: Uuids of its own.
        self._gpus = list(gpus)
        #: Its control groups.
        self._directories = list(directories)
        self._guardian = guardian
        self._events = events
        #: Says how many bytes its files take (`Disk.used`).
        self._disk = disk
        self._place = place
        self._traffic: "network.Traffic | None" = None
        #: Makes who looks at its GPUs.
        self._watched = watch
        self._watch: "gpus.GpuWatcher | None" = None
        self._first = [min(every, pause) for pause in _FIRST]
        self._cpu = 0.0
        self._peak = 0
        self._seen: "Entry" = {}

    def begin(self, started: int) -> None:
        """The program runs since then (ns): look at it from now on."""
        try:
            self._sheet.open()
            self._sheet.append(
                {
                    "started": started,
                    "incarnation": self._incarnation,
                    "limit": self._limit,
                    "cpus": _cpus(),
                    "gpus": self._gpus,
                }
            )
        except OSError:
            self._give_up()
            return
        if self._gpus:
            try:
                self._watch = self._watched(self._gpus)
            except OSError:
                pass  # Nobody can be forked, for one into the namespace of a program that is over already.
        try:
            self._traffic = network.Traffic(*self._place)
        except OSError:
            pass  # This system does not tell.
        self._look_after(0.0)

    def stop(self) -> None:
        """The program is over, its control groups are still there: look for the last time, and leave no
        process."""
        if self._sheet.is_open:
            self._see()
        self._end_watch()

    def seal(self, used: "Any") -> None:
        """The guardian was waited for, and with it all that it had waited for: these are the resources that
        they `used` (`os.wait4`)."""
        last = self._seen
        if not self._sheet.is_open or not last:
            return
        scale = 1024 if os.path.isdir("/proc/self") else 1
        last["peak"] = max(self._peak, used.ru_maxrss * scale)
        # Where there is no /proc it is not known otherwise.
        last["cpu"] = last["cpu"] or round(used.ru_utime + used.ru_stime, 3)
        last["last"] = True
        try:
            self._sheet.append(last)
        except OSError:
            pass  # Nobody misses it as much as the record that comes next.
        self._give_up()

    def _look_after(self, taken: float) -> None:
        pause = self._first.pop(0) if self._first else self._every
        self._events.after(max(pause, taken * _SHARE), self._look)

    def _look(self) -> None:
        if not self._sheet.is_open:
            return
        begin = time.process_time()
        self._see()
        try:
            self._sheet.append(self._seen)
        except OSError:
            self._give_up()
            return
        self._look_after(time.process_time() - begin)

    def _see(self) -> None:
        at = log.now()
        family = processes.family(self._guardian)
        memory = _group_memory(self._directories)
        if memory < 0:
            memory = _memory_of(self._guardian)
        cpu = _group_cpu(self._directories)
        if cpu < 0:
            cpu = processes.used(self._guardian)[0]
        # Of who died with a killed guardian nobody has the time any more.
        self._cpu = max(self._cpu, cpu)
        self._peak = max(self._peak, memory)
        gpus = self._watch.read() if self._watch is not None else []
        self._seen = {
            "at": at,
            "cpu": round(self._cpu, 3),
            "memory": memory,
            "peak": self._peak,
            "processes": len(family),
            "gpus": [[gpu.busy, gpu.used, gpu.total, gpu.peak] for gpu in gpus],
            "disk": self._disk(),
        }
        moved = self._moved(family)
        if moved is not None:
            self._seen["net"] = moved

    def _moved(self, family: "Sequence[int]") -> "tuple[int, int] | None":
        if self._traffic is None:
            return None
        try:
            return self._traffic.read(family)
        except OSError:
            self._traffic.close()
            self._traffic = None
            return None

    def _give_up(self) -> None:
        self._end_watch()
        self._sheet.close()

    def _end_watch(self) -> None:
        if self._traffic is not None:
            self._traffic.close()
            self._traffic = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _cpus() -> int:
    ask = getattr(os, "sched_getaffinity", None)
    return len(ask(0)) if ask is not None else os.cpu_count() or 1


def _group_cpu(directories: "Sequence[str]") -> float:
    """Seconds of processor time of all that was ever in a group; -1 where none of them counts."""
    for directory in directories:
        for line in processes.read(os.path.join(directory, "cpu.stat")).splitlines():
            if line.startswith(b"usage_usec "):
                return int(line.split()[1]) / 1e6
        text = processes.read(os.path.join(directory, "cpuacct.usage")).strip()
        if text.isdigit():
            return int(text) / 1e9
    return -1.0


def _group_memory(directories: "Sequence[str]") -> int:
    """Bytes that a group has in use, without files that are only cached; -1 where none of them counts."""
    for directory in directories:
        for name in ("memory.current", "memory.usage_in_bytes"):
            text = processes.read(os.path.join(directory, name)).strip()
            if text.isdigit():
                statistics = processes.read(os.path.join(directory, "memory.stat"))
                return max(0, int(text) - _cached(statistics))
    return -1


def _cached(statistics: bytes) -> int:
    values = dict(line.split(b" ", 1) for line in statistics.splitlines() if b" " in line)
    # Version 1 has a sum over all groups below as well.
    prefix = b"total_" if b"total_inactive_file" in values else b""
    return sum(int(values.get(prefix + name, 0)) for name in (b"inactive_file", b"active_file"))


def _memory_of(guardian: int) -> int:
    """Bytes of memory of a guardian's processes; what they share is counted once where the system tells."""
    sizes = processes.resident(guardian)
    own = {process: processes.own_memory(process) for process in sizes} if len(sizes) > 1 else {}
    return sum(
        own[process] if own.get(process, -1) >= 0 else size for process, size in sizes.items()
    )
