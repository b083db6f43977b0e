"""Records a replica's use of processors, memory, disk and GPUs in the directory of its log while it runs.

The first measurement is soon after the start. The next ones follow every `usage_every` seconds. The pause is
at least a thousand times as long as a measurement. The numbers are those of the control groups if the kernel
provides them, and otherwise sums over processes. Errors in this module never affect the program or its
record: lines that cannot be written are dropped.

A line of `usage.jsonl` is one of

    {"started": NS, "incarnation": N, "limit": BYTES, "cpus": N, "gpus": [UUID]}        at the
    program's start
    {"at": NS, "cpu": S, "memory": BYTES, "peak": BYTES, "processes": N, "gpus": [GPU],
    "disk": BYTES}                                                                  for each measurement

- `limit`: memory limit; 0 = no limit
- `cpus`: number of processors that the program may use
- `cpu`: seconds of processor time since the start
- `memory`: bytes in use, without cached files
- `peak`: the maximum of all measurements, or of a single process
- GPU: [busy seconds, bytes in use, total bytes, maximum bytes in use, degrees Celsius], with null for
  unreported values; the list is empty if no GPU could be measured
- `disk`: size of the program's files at the last measurement; 0 = not measured yet
- `last`: true in the last line of a run (incarnation)

The file only grows. To keep it small, the time between two stored measurements is at least a thousandth of
the program's age.
"""

import contextlib
import ctypes
import json
import math
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainshed.replica import protocol
from trainshed.replica.observe import growing_files
from trainshed.replica.observe import segments as log
from trainshed.replica.system import kernel, loop, processes

Entry = dict[str, Any]

FILE = "usage.jsonl"

_FIRST = (1.0, 1.0, 3.0, 5.0)
"""Seconds between the first measurements, which also provide measurements of short programs."""
_IDLE_FACTOR = 1000
_AGE_FRACTION = 1000
"""Minimum interval between stored measurements, as a fraction of a program's age (1/1000)."""


class Usage:
    """Measures the resource use of one run (incarnation) of a replica."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        directories: Sequence[str],
        shim: int,
        events: loop.Loop,
        *,
        disk: Callable[[], int] = lambda: 0,
    ) -> None:
        """The constructor opens no file. `directories`: the replica's control groups. `shim`: ID of the
        process whose descendants are measured. `disk`: returns the size of the replica's files in bytes
        (`Disk.used`)."""
        self._file: growing_files.Appender | None = None
        self._plan = plan
        self._every = plan.observation.usage_every
        self._directories = directories
        self._shim = shim
        self._events = events
        self._disk = disk
        self._watch: GpuWatcher | None = None
        self._first = [min(self._every, pause) for pause in _FIRST]
        self._begun = self._written = 0.0
        self._cpu = 0.0
        self._peak = 0
        self._seen: Entry = {}

    def start(self, started: int) -> None:
        self._begun = time.monotonic()
        observation = self._plan.observation
        try:
            self._file, _ = growing_files.reopen(os.path.join(observation.logs, FILE))
        except OSError:
            return
        self._write(
            {
                "started": started,
                "incarnation": self._plan.incarnation,
                "limit": self._plan.limits.memory_limit or 0,
                "cpus": len(os.sched_getaffinity(0)),
                "gpus": list(observation.gpus),
            }
        )
        if observation.gpus:
            # The fork may fail, for example after the end of the program's namespace. Then the GPUs are not
            # measured.
            with contextlib.suppress(OSError):
                self._watch = GpuWatcher(observation.gpus)
        self._look_after(0.0)

    def stop(self) -> None:
        """Measure disk and GPUs for the last time and stop all helper processes. Called after the program has
        ended."""
        if self._file is not None:
            self._note(processes=0, memory=0)
        self._end_watch()

    def seal(self, used: Any) -> None:
        """Write the last line. `used`: resource usage of all processes that the shim reaped
        (`resource.getrusage`). Call this before the control groups are removed."""
        last = self._seen
        if not last:
            return
        last["peak"] = max(self._peak, used.ru_maxrss * 1024)
        counted = _group_cpu(self._directories)
        last["cpu"] = self._sum(counted if counted >= 0 else used.ru_utime + used.ru_stime)
        last["last"] = True
        self._write(last)
        self._give_up()

    def _look_after(self, taken: float) -> None:
        pause = self._first.pop(0) if self._first else self._every
        self._events.after(max(pause, taken * _IDLE_FACTOR), self._measure)

    def _measure(self) -> None:
        if self._file is None:
            return
        begin, now = time.process_time(), time.monotonic()
        members = processes.programs(self._shim)
        memory = _group_memory(self._directories)
        cpu = _group_cpu(self._directories)
        self._sum(cpu if cpu >= 0 else processes.resource_use(self._shim)[0])
        self._note(len(members), memory if memory >= 0 else _memory_of(self._shim))
        if now - self._written >= (now - self._begun) / _AGE_FRACTION:
            self._written = now
            self._write(self._seen)
        self._look_after(time.process_time() - begin)

    def _write(self, entry: Entry) -> None:
        """Append a line. While the disk is full, lines are dropped. Only the first line that does not fit is
        kept in memory and written later."""
        if self._file is None:
            return
        try:
            if self._file.flush():
                self._file.append(json.dumps(entry).encode("utf-8") + b"\n")
        except OSError:
            self._give_up()

    def _sum(self, cpu: float) -> float:
        # The times of processes whose parent processes ignore SIGCHLD are lost. That must not decrease the
        # sum.
        self._cpu = max(self._cpu, round(cpu, 3))
        return self._cpu

    def _note(self, processes: int, memory: int) -> None:
        self._peak = max(self._peak, memory)
        self._seen = {
            "at": log.now(),
            "cpu": self._cpu,
            "memory": memory,
            "peak": self._peak,
            "processes": processes,
            "gpus": self._watch.read() if self._watch is not None else [],
            "disk": self._disk(),
        }

    def _give_up(self) -> None:
        self._end_watch()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _group_cpu(directories: Sequence[str]) -> float:
    """Return the processor time in seconds of all processes that were ever in a control group. Return -1 if
    no control group counts it."""
    for directory in directories:
        for line in processes.read(os.path.join(directory, "cpu.stat")).splitlines():
            if line.startswith(b"usage_usec "):
                return int(line.split()[1]) / 1e6
        text = processes.read(os.path.join(directory, "cpuacct.usage")).strip()
        if text.isdigit():
            return int(text) / 1e9
    return -1.0


def _group_memory(directories: Sequence[str]) -> int:
    """Return the bytes that a control group has in use, without cached files, or -1 if no control group
    counts them."""
    for directory in directories:
        for name in ("memory.current", "memory.usage_in_bytes"):
            text = processes.read(os.path.join(directory, name)).strip()
            if text.isdigit():
                lines = processes.read(os.path.join(directory, "memory.stat")).splitlines()
                values = dict(line.split(b" ", 1) for line in lines if b" " in line)
                # cgroup version 1 also reports sums that include all control groups below. The names of these
                # sums have a prefix.
                prefix = b"total_" if b"total_inactive_file" in values else b""
                cached = (b"inactive_file", b"active_file")
                return max(0, int(text) - sum(int(values.get(prefix + kind, 0)) for kind in cached))
    return -1


def _memory_of(shim: int) -> int:
    """Return the memory that a shim's replica uses, in bytes. Shared memory counts once if the kernel reports
    it."""
    sizes = processes.resident(shim)
    own = {process: processes.own_memory(process) for process in sizes} if len(sizes) > 1 else {}
    return sum(own[process] if own.get(process, -1) >= 0 else size for process, size in sizes.items())


Look = tuple[float, float, float, float]
"""One measurement of a GPU: recent load (0 to 1), bytes of memory in use, total bytes, degrees Celsius.
Unreported values are NaN. MIG parts, for example, do not report their load."""


LIBRARIES = ["libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"]
"""Search paths of the NVML library. The second is its path in a container with the driver."""

_EVERY = 1.0
_CELL = struct.Struct("=dddddd")
_UNKNOWN = float("nan")


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _measure_gpu(calls: Any, gpu: ctypes.c_void_p | None) -> Look:
    """Measure a GPU with `calls`, the NVML library."""
    busy = used = total = heat = _UNKNOWN
    if gpu is not None:
        rates, memory, degrees = _Utilization(), _Memory(), ctypes.c_uint()
        if calls.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(rates)) == 0:
            busy = rates.gpu / 100.0
        if calls.nvmlDeviceGetMemoryInfo(gpu, ctypes.byref(memory)) == 0:
            used, total = float(memory.used), float(memory.total)
        if calls.nvmlDeviceGetTemperature(gpu, 0, ctypes.byref(degrees)) == 0:
            heat = float(degrees.value)
    return busy, used, total, heat


class GpuWatcher:
    """Measures GPUs in a helper process. The helper starts after the program has started; `close` stops
    it."""

    def __init__(self, uuids: Sequence[str]) -> None:
        """Raises OSError if the helper cannot be forked."""
        import mmap  # Imported late: a module that is imported before a fork slows down the fork.

        self._count = len(uuids)
        self._cells = mmap.mmap(-1, max(1, self._count * _CELL.size))
        self._helper = kernel.fork_helper(lambda: _observe(uuids, self._cells), ())

    def read(self) -> list[list[float | None]]:
        """Return the last results in the format of a line, or [] if there are none yet."""
        cells = [_CELL.unpack_from(self._cells, n * _CELL.size) for n in range(self._count)]
        rows = cells if all(cell[0] for cell in cells) else []
        return [[_number(value) for value in row[1:]] for row in rows]

    def close(self) -> None:
        processes.end_child(self._helper)
        self._cells.close()


def _number(value: float) -> float | None:
    """Return a value in the format of a line. Bytes are integers."""
    return None if math.isnan(value) else int(value) if value.is_integer() else round(value, 3)


def _observe(uuids: Sequence[str], cells: Any) -> None:
    """Measure these GPUs or MIG parts repeatedly, until this process is killed. Returns if there is no
    driver."""
    kernel.name_process("ts-gpus")
    calls: Any = None
    for name in LIBRARIES:
        with contextlib.suppress(OSError):
            calls = calls or ctypes.CDLL(name)
    if calls is None or calls.nvmlInit_v2() != 0:
        return
    gpus: list[ctypes.c_void_p | None] = []
    for uuid in uuids:
        gpu = ctypes.c_void_p()
        failed = calls.nvmlDeviceGetHandleByUUID(uuid.encode("ascii"), ctypes.byref(gpu))
        gpus.append(None if failed else gpu)
    seconds, peaks = [_UNKNOWN] * len(gpus), [_UNKNOWN] * len(gpus)
    then = time.monotonic()
    while True:
        begin = time.monotonic()
        for number, gpu in enumerate(gpus):
            busy, used, total, heat = _measure_gpu(calls, gpu)
            # The recent load counts for the whole time since the previous measurement.
            if not math.isnan(busy):
                before = 0.0 if math.isnan(seconds[number]) else seconds[number]
                seconds[number] = before + busy * (begin - then)
            # max() returns its first argument if one argument is NaN, so only the second one may be NaN here.
            peaks[number] = used if math.isnan(peaks[number]) else max(peaks[number], used)
            cell = 1.0, seconds[number], used, total, peaks[number], heat
            _CELL.pack_into(cells, number * _CELL.size, *cell)
        then = begin
        time.sleep(_EVERY)
