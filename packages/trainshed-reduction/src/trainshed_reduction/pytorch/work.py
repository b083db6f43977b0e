"""The result of a call of all-reduce: PyTorch's Work over an operation of the reducers."""

from __future__ import annotations

import contextlib
import datetime
import functools
import queue
import threading
from typing import Callable, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.operations import Operation
from trainshed_reduction.pytorch.tensors import DTYPES, bytes_of
from trainshed_reduction.wire import Reduction


class Arrival(NamedTuple):
    """A result is on its GPU when `stream`, which copies it there, has come to `event`."""

    stream: torch.cuda.Stream
    event: torch.cuda.Event


class ReductionWork(dist.Work):
    """PyTorch's Work over an all-reduce of `tensor`. `arrival`: asked when the operation is done; None: the
    result is there already."""

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
        """Wait for the result. Raises ReductionFailed, RuntimeError (time is over; 0 and None: no limit)."""
        seconds = timeout.total_seconds() if timeout else None
        if not self.operation.wait(seconds):
            raise RuntimeError("an all-reduce was not done within {:g} s".format(seconds or 0))
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Let the caller's current stream go on only after the result is there."""
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
        """Return a future of [tensor]. Its callbacks run in a thread of their own, and may wait for further
        all-reduces."""
        with self._lock:
            if self._future is None:
                devices = [self._tensor.device] if self._tensor.is_cuda else []
                begun: torch.futures.Future[object] = torch.futures.Future(devices=devices)
                # A future that is given an exception from Python looks successful to C++; one whose callback
                # raises does not.
                self._future = begun.then(self._value)
                complete = functools.partial(self._complete, begun)
                self.operation.add_done_callback(lambda _: _completions.put(complete))
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
    communicator: Communicator,
    tensor: torch.Tensor,
    reduction: Reduction,
    ordinal: int,
    rate: Optional[int] = None,
) -> Optional[ReductionWork]:
    """Issue an all-reduce of a CPU tensor, as `Communicator.issue` does."""
    data, dtype = bytes_of(tensor), DTYPES[tensor.dtype]
    operation = communicator.issue(data, dtype, reduction, ordinal, rate)
    return None if operation is None else ReductionWork(operation, tensor)


def on_stream(stream: Optional[torch.cuda.Stream]) -> "contextlib.AbstractContextManager[object]":
    """Make the stream the current one; None: do nothing (PyTorch's own with None would initialize CUDA)."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


class Completions:
    """Runs callbacks of futures, outside the thread that moves the bytes: users' callbacks may wait for
    further all-reduces (PowerSGD's does). So there is always a free thread: one is made when all others are
    busy."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0

    def put(self, task: "Callable[[], None]") -> None:
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                name = "trainshed-reduction-futures"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        self._tasks.put(task)

    def _run(self) -> None:
        while True:
            self._tasks.get()()
            with self._lock:
                self._free += 1


_completions = Completions()
