"""The result of a call of all-reduce: PyTorch's Work over an operation of the reducers."""

from __future__ import annotations

import contextlib
import datetime
import queue
import threading
from typing import Callable, List, Optional, Protocol

import torch
import torch.distributed as dist

from trainshed_reduction.client.operations import Operation


class ReductionWork(dist.Work):
    """PyTorch's Work over an all-reduce by the reducers. `synchronize` makes the caller's stream wait for the
    result, which on a GPU may still be on its way."""

    def __init__(
        self, pending: Operation, tensors: List[torch.Tensor], arrival: "Optional[Arrival]" = None
    ) -> None:
        super().__init__()
        self._pending = pending
        self._tensors = tensors
        self._arrival = arrival
        self._future: Optional[torch.futures.Future[List[torch.Tensor]]] = None
        self._lock = threading.Lock()

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Raises ReductionFailed, RuntimeError (the time is over; 0 and None are without limit)."""
        seconds = timeout.total_seconds() if timeout else None
        if not self._pending.wait(seconds):
            raise RuntimeError("an all-reduce was not done within {:g} s".format(seconds or 0))
        self.synchronize()
        return True

    def synchronize(self) -> None:
        if self._arrival is not None:
            self._arrival.arrived()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._pending.done()

    def is_success(self) -> bool:
        return self._pending.done() and self._pending.exception() is None

    def exception(self) -> Optional[BaseException]:
        return self._pending.exception() if self._pending.done() else None

    def result(self) -> List[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        raise RuntimeError("an all-reduce has no source")

    def get_future(self) -> "torch.futures.Future[List[torch.Tensor]]":
        """Its value is [tensor]; what waits for it runs in a thread of its own, and may itself wait for
        others."""
        with self._lock:
            if self._future is None:
                devices = [each.device for each in self._tensors if each.is_cuda]
                begun: torch.futures.Future[object] = torch.futures.Future(devices=devices)
                # A future that is given an exception from Python looks successful to C++; one whose callback
                # raises does not.
                self._future = begun.then(self._value)
                self._pending.add_done_callback(
                    lambda _: _completions.put(lambda: self._complete(begun))
                )
            return self._future

    def _complete(self, begun: "torch.futures.Future[object]") -> None:
        if self._arrival is None:
            begun.set_result(self._tensors)
        else:
            with self._arrival.stream():
                begun.set_result(self._tensors)

    def _value(self, _: "torch.futures.Future[object]") -> List[torch.Tensor]:
        failure = self._pending.exception()
        if failure is not None:
            raise failure.with_traceback(None)
        return self._tensors


class Arrival(Protocol):
    """The arrival of a result on a GPU, whose copy may have been begun only."""

    def arrived(self) -> None:
        """Whatever the caller's current stream does from here on, it does after it."""
        ...

    def stream(self) -> "contextlib.AbstractContextManager[object]":
        """Within it, the current stream is one that has waited."""
        ...


class Completions:
    """Runs what waits for futures, not in the thread that moves the bytes: users' callbacks may wait for
    further all-reduces (PowerSGD's does). So there is always a thread that is free: one is made when all
    others are busy."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0

    def put(self, task: "Callable[[], None]") -> None:
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                threading.Thread(
                    target=self._run, name="trainshed-reduction-futures", daemon=True
                ).start()
        self._tasks.put(task)

    def _run(self) -> None:
        while True:
            self._tasks.get()()
            with self._lock:
                self._free += 1


_completions = Completions()
