"""Measures the load of a replica's own GPUs by the driver's library (NVML) through ctypes.

Loading and initialising the library may take seconds, and a broken GPU may block any call; so a forked helper
calls it, and the shim reads the results from shared memory. Without library, driver or GPU there are no
results. The helper measures once a second, or less often so that it takes at most a thousandth of a
processor.
"""

import ctypes
import math
import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainshed.replica.system import kernel

Look = tuple[float, float, float]

"""How much of the last moments a GPU was at work (0 to 1), bytes of memory in use, bytes that it has.
What it does not tell is not a number: parts of GPUs do not say how busy they are."""


LIBRARIES = ["libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"]
"""Where it is looked for; the second is where a driver lies that came in a container."""

_EVERY = 1.0
_SHARE = 1000
_CELL = struct.Struct("=ddddd")
_UNKNOWN = float("nan")


class NoDriver(Exception):
    """There is no NVML library, or no driver that answers it."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Library:
    """The NVML library, initialised for the GPUs with these `uuids`, including parts of GPUs."""

    def __init__(self, uuids: Sequence[str], loaded: Any = None) -> None:
        """`loaded`: an object with its functions, None = load the library. Raises NoDriver."""
        self._calls = _load() if loaded is None else loaded
        if self._calls.nvmlInit_v2() != 0:
            raise NoDriver("the driver does not answer")
        self._handles = [self._handle(uuid) for uuid in uuids]

    def _handle(self, uuid: str) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        failed = self._calls.nvmlDeviceGetHandleByUUID(uuid.encode("ascii"), ctypes.byref(handle))
        return None if failed else handle

    def look(self) -> list[Look]:
        """Measure each GPU."""
        return [self._look(handle) for handle in self._handles]

    def _look(self, handle: ctypes.c_void_p | None) -> Look:
        busy = used = total = _UNKNOWN
        if handle is not None:
            rates, memory = _Utilization(), _Memory()
            if self._calls.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
                busy = rates.gpu / 100.0
            if self._calls.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
                used, total = float(memory.used), float(memory.total)
        return busy, used, total


def _load() -> Any:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NoDriver("there is no libnvidia-ml.so.1")


class Gpu:
    """The measurements of one GPU since the program's start. None = the GPU does not report it."""

    def __init__(self, busy: float, used: float, total: float, peak: float) -> None:
        #: Seconds for which it was busy.
        self.busy = None if math.isnan(busy) else round(busy, 3)
        #: Bytes of its memory in use.
        self.used = None if math.isnan(used) else int(used)
        self.total = None if math.isnan(total) else int(total)
        #: Most bytes of memory that were in use at once.
        self.peak = None if math.isnan(peak) else int(peak)


class GpuSums:
    """Sums the measurements of one GPU."""

    def __init__(self) -> None:
        self._busy = self._peak = _UNKNOWN

    def add(self, look: Look, seconds: float) -> tuple[float, float, float, float]:
        """Add a measurement, `seconds` after the last one; return the arguments of a `Gpu`."""
        busy, used, total = look
        if not math.isnan(busy):
            self._busy = (0.0 if math.isnan(self._busy) else self._busy) + busy * seconds
        if not math.isnan(used):
            self._peak = used if math.isnan(self._peak) else max(self._peak, used)
        return self._busy, used, total, self._peak


class GpuWatcher:
    """The helper process and its results. It is created after the program has started; `close` ends it."""

    def __init__(
        self, uuids: Sequence[str], library: Callable[[Sequence[str]], Library] = Library
    ) -> None:
        """Raises OSError if the helper cannot be forked."""
        import mmap  # Imported late: every module that is imported before makes every fork slower.

        self._count = len(uuids)
        self._cells = mmap.mmap(-1, max(1, self._count * _CELL.size))
        parent = os.getpid()
        self._helper = os.fork()
        if self._helper == 0:
            try:
                kernel.help_parent(parent)
                kernel.name_process("ts-gpus")
                kernel.close_all(handle for handle in kernel.open_handles() if handle > 2)
                _observe(library(uuids), self._cells)
            finally:
                os._exit(0)

    def read(self) -> list[Gpu]:
        """Return the last results; [] if there are none yet."""
        cells = [_CELL.unpack_from(self._cells, n * _CELL.size) for n in range(self._count)]
        return [Gpu(*cell[1:]) for cell in cells] if all(cell[0] for cell in cells) else []

    def close(self) -> None:
        os.kill(self._helper, signal.SIGKILL)
        os.waitpid(self._helper, 0)
        self._cells.close()


def _observe(library: Library, cells: Any) -> None:
    """Measure repeatedly, until killed."""
    sums: list[GpuSums] = []
    then = time.monotonic()
    while True:
        begin = time.monotonic()
        for number, look in enumerate(library.look()):
            if number == len(sums):
                sums.append(GpuSums())
            # The load of the last moments counts for the whole time since the last measurement.
            cell = sums[number].add(look, begin - then)
            _CELL.pack_into(cells, number * _CELL.size, 1.0, *cell)
        then = begin
        time.sleep(max(_EVERY, (time.monotonic() - begin) * _SHARE))
