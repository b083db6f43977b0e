"""All-reduce for NumPy arrays, and for whatever shares its memory as one, without PyTorch's process groups.

Every rank is a process of the job with RANK and WORLD_SIZE in its environment. There is no native way to fall
back to: where reducers are missing, or the last one is lost, the call fails.
"""

from __future__ import annotations

import os
import threading
from typing import Dict, Tuple

import numpy as np
import numpy.typing as npt

from trainshed_reduction import process
from trainshed_reduction import settings as settings_module
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.wire import DType, Reduction

_DTYPES = {dtype.name.lower(): dtype for dtype in DType}
"""Keys are the names that NumPy and ml_dtypes use."""


_made: Dict[str, Communicator] = {}
"""This process's groups by name, each connected when it is first used."""
_making = threading.Lock()


def allreduce(
    array: npt.NDArray[np.generic], average: bool = False, group: str = "default"
) -> npt.NDArray[np.generic]:
    """Replace `array` by its sum over all ranks, added in rank order, or by its mean, and return it.

    `array`: of any shape, contiguous, writable, of type float32, float64, float16, bfloat16, int32 or int64;
    alike on all ranks. `group`: calls with one name are processed in their order, those with different names
    independently. Blocks until the result is there. Raises TypeError, ValueError (the array); ReductionFailed
    (a rank or the reducers are missing, or ranks disagree; the message says which).
    """
    # Untyped programs may pass anything.
    kind = str(getattr(array, "dtype", type(array).__name__))
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise TypeError("{} is not summed; only arrays of {}".format(kind, ", ".join(_DTYPES)))
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("the array must be writable and contiguous (numpy.ascontiguousarray)")
    if average and dtype.is_integer:
        raise TypeError("integers are only summed, not averaged")
    if _place()[1] == 1 or not array.size:
        return array
    data = array.reshape(-1).view(np.uint8).data
    reduction = Reduction.AVERAGE if average else Reduction.SUM
    operation = _group(group).issue(data, dtype, reduction)
    if operation is None:
        raise ReductionFailed("the last reducer was lost, and arrays have no other way")
    operation.wait()
    return array


def _group(name: str) -> Communicator:
    """Return the named group's communicator, connecting it at first. Raises ReductionFailed."""
    with _making:
        if name not in _made:
            _made[name] = _new_group(name)
        return _made[name]


def _new_group(name: str) -> Communicator:
    try:
        settings = settings_module.from_environ(os.environ)
    except (settings_module.Unusable, OSError) as error:
        raise ReductionFailed(f"the reducers' settings cannot be used: {error}") from error
    if settings is None:
        raise ReductionFailed(
            f"no reducers: {settings_module.REDUCERS} is not set (a job has them when its worker pool 2 runs "
            "a reduction-server image)"
        )
    rank, world = _place()
    made = Communicator(
        settings,
        group="arrays/" + name,
        rank=rank,
        world=world,
        reports=process.reports(),
        log=process.say if rank == 0 else lambda _: None,
    )
    made.start()
    process.close_at_exit(made)
    if rank == 0:
        process.tell("mode", made.describe())
    return made


def _place() -> Tuple[int, int]:
    """Return the rank and the number of ranks. Raises ReductionFailed."""
    texts = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    rank, world = (int(text) if text.isdecimal() else -1 for text in texts)
    if not 0 <= rank < world:
        raise ReductionFailed(
            f"RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r} do not say which rank of how many this is"
        )
    return rank, world
