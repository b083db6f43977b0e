"""Runs the ranks of a group as threads of one process, each with its communicator. Provides data and expected
sums."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reduction.reducers import TOKEN, Address
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.operations import Operation
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import DType, Reduction

Array = NDArray[Any]
TEST_TIMEOUT = 60.0
"""Timeout of a test in seconds."""
NUMPY = {
    DType.FLOAT32: np.dtype("f4"),
    DType.FLOAT64: np.dtype("f8"),
    DType.FLOAT16: np.dtype("f2"),
    DType.BFLOAT16: np.dtype("u2"),
    DType.INT32: np.dtype("i4"),
    DType.INT64: np.dtype("i8"),
}


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def inputs(seed: int, rank: int, elements: int, dtype: DType) -> Array:
    generator = np.random.default_rng((seed, rank))
    if dtype.is_integer:
        whole = np.iinfo(np.int32 if dtype is DType.INT32 else np.int64)
        return generator.integers(whole.min, whole.max, elements, NUMPY[dtype], endpoint=True)
    values = generator.standard_normal(elements, dtype=np.float64)
    if dtype is DType.BFLOAT16:
        return to_bfloat16(values.astype(np.float32))
    return values.astype(NUMPY[dtype])


def ordered_sum(arrays: Sequence[Array], dtype: DType, reduction: Reduction) -> Array:
    """Sum in the order of ranks. Half types are added in fp32 and rounded once; a mean is divided before the
    rounding."""
    if dtype is DType.BFLOAT16:
        wide: Sequence[Array] = [from_bfloat16(addend) for addend in arrays]
    elif dtype is DType.FLOAT16:
        wide = [addend.astype(np.float32) for addend in arrays]
    else:
        wide = arrays
    whole = wide[0].copy()
    with np.errstate(over="ignore"):
        for addend in wide[1:]:
            whole += addend
    if reduction is Reduction.AVERAGE:
        whole /= whole.dtype.type(len(arrays))
    if dtype is DType.BFLOAT16:
        return to_bfloat16(whole)
    return whole.astype(NUMPY[dtype])


def expected_sum(seed: int, world: int, elements: int, dtype: DType, reduction: Reduction) -> Array:
    every = [inputs(seed, rank, elements, dtype) for rank in range(world)]
    return ordered_sum(every, dtype, reduction)


def settings(addresses: Sequence[Address], **more: Any) -> Settings:
    """Return settings with short timeouts, so that failures end a test soon."""
    quick = Settings(tuple(addresses), TOKEN, start_seconds=30.0, wait_seconds=30.0)
    return quick._replace(**more)


def issue(
    communicator: Communicator, array: Array, dtype: DType, reduction: Reduction = Reduction.SUM
) -> Operation:
    return communicator.issue(array.data.cast("B"), dtype, reduction)


class Ranks:
    """`world` communicators, each used by its own thread."""

    def __init__(self, config: Settings, world: int, group: str = "test") -> None:
        self.world = world
        self.lines: list[str] = []
        self.all = [
            Communicator(config, group=group, rank=rank, world=world, generation=1, log=self.lines.append)
            for rank in range(world)
        ]

    def run(self, act: Callable[[int, Communicator], object]) -> list[Any]:
        """Start each communicator, call `act` in its thread, and close it. Return the results; raise the
        first error."""
        results: list[Any] = [None] * self.world
        errors: list[BaseException] = []

        def rank(number: int) -> None:
            communicator = self.all[number]
            try:
                communicator.start()
                results[number] = act(number, communicator)
            except BaseException as error:
                errors.append(error)
            finally:
                communicator.close()

        threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TEST_TIMEOUT)
            assert not thread.is_alive(), self.lines
        if errors:
            raise errors[0]
        return results
