"""All-reduce for NumPy arrays, and for whatever gives its memory as one: programs without PyTorch's process
groups.

Every rank is a process of the job and knows itself by RANK and WORLD_SIZE. There is no native way to fall
back to: where reducers are missing, or the last one is lost, the call fails.
"""

from __future__ import annotations

import os
import threading
from typing import Dict, Mapping

import numpy as np
import numpy.typing as npt

from trainshed_reduction import process
from trainshed_reduction import settings as settings_module
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.wire import DType, Reduction

_DTYPES = {dtype.name.lower(): dtype for dtype in DType}
"""By what NumPy calls them, and ml_dtypes."""


class Groups:
    """The process's groups by name, each connected when it is first used."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._made: Dict[str, Communicator] = {}
        self._lock = threading.Lock()

    def of(self, name: str) -> Communicator:
        """Raises ReductionFailed."""
        with self._lock:
            made = self._made.get(name)
            if made is None:
                made = self._made[name] = self._make(name)
            return made

    def close(self) -> None:
        for made in self._made.values():
            made.close()

    def _make(self, name: str) -> Communicator:
        try:
            settings = settings_module.from_environ(self._environ)
        except (settings_module.Unusable, OSError) as error:
            raise ReductionFailed(f"the reducers' settings cannot be used: {error}") from error
        if settings is None:
            raise ReductionFailed(
                f"no reducers: {settings_module.REDUCERS} is not set (a job has them when its worker pool "
                "2 runs a reduction-server image)"
            )
        rank, world = place(self._environ)
        made = Communicator(
            settings,
            group="arrays/" + name,
            rank=rank,
            world=world,
            reports=process.reports(),
            log=process.say if rank == 0 else _silence,
        )
        made.start()
        if rank == 0:
            process.tell("mode", made.describe())
        return made


def allreduce(
    array: npt.NDArray[np.generic], average: bool = False, group: str = "default"
) -> npt.NDArray[np.generic]:
    """Replace `array` by its sum over all ranks, in rank order, or by its mean; returns it.

    `array`: of any shape, contiguous, writable, of type float32, float64, float16, bfloat16, int32 or int64;
    alike on all ranks. `group`: calls of one name are answered in their order, calls of different names
    independently. Blocks until the result is there. Raises TypeError, ValueError (the array); ReductionFailed
    (a rank or the reducers are missing, or ranks disagree; the message says which).
    """
    # What has not been checked for types.
    given = str(getattr(array, "dtype", type(array).__name__))
    dtype = _DTYPES.get(given)
    if dtype is None:
        raise TypeError("{} is not summed; only arrays of {}".format(given, ", ".join(_DTYPES)))
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("the array must be writable and contiguous (numpy.ascontiguousarray)")
    if average and dtype.is_integer:
        raise TypeError("integers are only summed, not averaged")
    if place(os.environ)[1] == 1 or not array.size:
        return array
    data = array.reshape(-1).view(np.uint8).data
    reduction = Reduction.AVERAGE if average else Reduction.SUM
    operation = _groups.of(group).issue(data, dtype, reduction)
    if operation is None:
        raise ReductionFailed("the last reducer was lost, and arrays have no other way")
    operation.wait()
    return array


def place(environ: Mapping[str, str]) -> tuple[int, int]:
    """Rank, and number of ranks. Raises ReductionFailed."""
    try:
        rank, world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        if not 0 <= rank < world:
            raise ValueError
    except (KeyError, ValueError):
        raise ReductionFailed(
            "RANK={!r} and WORLD_SIZE={!r} do not say which rank of how many this is".format(
                environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
            )
        ) from None
    return rank, world


def _silence(_: str) -> None:
    pass


_groups = Groups(os.environ)
process.close_at_exit(_groups)
