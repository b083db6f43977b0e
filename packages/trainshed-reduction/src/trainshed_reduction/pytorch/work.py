"""PyTorch's Work, which an all-reduce call returns, for operations that reducers execute."""

from __future__ import annotations

import contextlib
import datetime
import functools
import threading
from typing import Callable, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from trainshed_reduction import process
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.operations import Operation
from trainshed_reduction.wire import DType, Reduction

DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def reduction_of(operation: object, dtype: torch.dtype) -> Optional[Reduction]:
    """Return the reduction for an operation in AllreduceOptions, or None if reducers do not support it."""
    # Compare with ==. A ReduceOp equals a RedOpType but has another hash, so a dictionary does not find it.
    if operation == dist.ReduceOp.SUM:
        return Reduction.SUM
    if operation == dist.ReduceOp.AVG and dtype.is_floating_point:
        return Reduction.AVERAGE
    return None


def is_served(tensor: torch.Tensor, smallest: int) -> bool:
    """Return whether reducers support a tensor. It must be dense and contiguous, have a supported type, and
    have at least `smallest` bytes.

    The answer must be the same on all ranks, so it depends only on properties that are the same on all ranks.
    """
    return (
        type(tensor) in _PLAIN
        and tensor.dtype in DTYPES
        and tensor.numel() * tensor.element_size() >= max(1, smallest)
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor as a view. The view keeps the memory alive."""
    flat = tensor.detach().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())


class Arrival(NamedTuple):
    """Marks the arrival of a result on a GPU. `stream` copies the result to the tensor. The copy is complete
    when the stream reaches `event`."""

    stream: torch.cuda.Stream
    event: torch.cuda.Event


class ReductionWork(dist.Work):
    """PyTorch's Work for an all-reduce of `tensor`. `arrival`: called when the operation is done. Returns an
    object that marks the arrival of the result, or None if the result has already arrived."""

    def __init__(
        self,
        operation: Operation,
        tensor: torch.Tensor,
        arrival: "Callable[[], Optional[Arrival]]" = lambda: None,
    ) -> None:
        super().__init__()
        self.operation = operation
        self._tensor = tensor
        self._arrival = arrival
        self._future: Optional[torch.futures.Future[List[torch.Tensor]]] = None
        self._lock = threading.Lock()

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Wait for the result. Raises ReductionFailed if the operation failed, and RuntimeError after the
        timeout. 0 or None = no timeout."""
        seconds = timeout.total_seconds() if timeout else None
        if not self.operation.wait(seconds):
            raise RuntimeError("an all-reduce did not finish within {:g} s".format(seconds or 0))
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Make the current stream of the caller wait for the result."""
        arrival = self._arrival()
        if arrival is not None:
            torch.cuda.current_stream(self._tensor.device).wait_event(arrival.event)

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.operation.done()

    def is_success(self) -> bool:
        return self.operation.done() and self.operation.exception() is None

    def exception(self) -> Optional[BaseException]:
        return self.operation.exception() if self.operation.done() else None

    def result(self) -> List[torch.Tensor]:
        return [self._tensor]

    def get_future(self) -> "torch.futures.Future[List[torch.Tensor]]":
        """Return a future of [tensor]. The future's callbacks run in separate threads, so they may wait for
        further all-reduces."""
        with self._lock:
            if self._future is None:
                devices = [self._tensor.device] if self._tensor.is_cuda else []
                begun: torch.futures.Future[object] = torch.futures.Future(devices=devices)
                # If Python sets the exception of a future, C++ treats the future as successful. If a callback
                # raises the exception, C++ treats the future as failed. Therefore use a callback.
                self._future = begun.then(self._value)
                complete = functools.partial(self._complete, begun)
                self.operation.add_done_callback(lambda _: _callbacks.put(complete))
            return self._future

    def _complete(self, begun: "torch.futures.Future[object]") -> None:
        arrival = self._arrival()
        with on_stream(None if arrival is None else arrival.stream):
            begun.set_result(self.result())

    def _value(self, _: "torch.futures.Future[object]") -> List[torch.Tensor]:
        failure = self.operation.exception()
        if failure is not None:
            raise failure.with_traceback(None)
        return self.result()


def issue(
    communicator: Communicator, tensor: torch.Tensor, reduction: Reduction, ordinal: int
) -> ReductionWork:
    """Issue an all-reduce of a CPU tensor (`Communicator.issue`)."""
    data, dtype = bytes_of(tensor), DTYPES[tensor.dtype]
    return ReductionWork(communicator.issue(data, dtype, reduction, ordinal), tensor)


def on_stream(stream: Optional[torch.cuda.Stream]) -> "contextlib.AbstractContextManager[object]":
    """Make a CUDA stream the current stream in this context. None = do nothing. PyTorch's own function would
    initialize CUDA even for None."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


EXIT_TIMEOUT = 5.0
"""Maximum seconds to wait for the end of a thread when the process exits. If a thread were in PyTorch's code
when the interpreter ends, the process would abort."""
_THREAD = "trainshed-reduction-future"


class Callbacks:
    """Runs callbacks of futures. Each callback runs in its own thread, because a callback may wait for
    further all-reduces (as in PowerSGD)."""

    def put(self, task: "Callable[[], None]") -> None:
        try:
            threading.Thread(target=task, name=_THREAD, daemon=True).start()
        except RuntimeError:
            # No thread can be started: the limit of threads is reached, or the interpreter is exiting (since
            # Python 3.12). Run the callback in this thread instead.
            task()

    def close(self) -> None:
        for thread in threading.enumerate():
            if thread.name == _THREAD:
                thread.join(EXIT_TIMEOUT)


_callbacks = Callbacks()
process.close_at_exit(_callbacks)
