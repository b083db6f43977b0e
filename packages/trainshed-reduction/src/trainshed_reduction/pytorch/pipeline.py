"""A pipeline for all-reduces with several steps. One thread passes tensors down to the reducers; another one
copies sums back up.

Therefore the copy of a slice, the transfer of the previous slice, and the copy of an earlier sum overlap.
Operations run in the order of calls, which is the same on all ranks.
"""

from __future__ import annotations

import functools
import queue
import threading
from typing import Callable, Dict, Iterator, NamedTuple, Optional

import torch

from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.operations import Operation, ReductionFailed
from trainshed_reduction.pytorch.hierarchy import Node
from trainshed_reduction.pytorch.work import (
    DTYPES,
    EXIT_TIMEOUT,
    Arrival,
    ReductionWork,
    bytes_of,
    on_stream,
)
from trainshed_reduction.wire import Reduction

# CPU tensors are already in the host's memory. GPU tensors are copied through pinned memory, slice by slice,
# on separate CUDA streams.

SLICE = 4 << 20
"""Bytes of a slice: large enough to use the bus well, small enough for the reducers to start early."""
_BUFFERS = 16


class Buffer(NamedTuple):
    """Pinned memory. `free`: the event after the last copy from this memory."""

    memory: torch.Tensor
    free: torch.cuda.Event


class Slice(NamedTuple):
    """A part of a tensor in the pipeline. `host`: its copy in the host's memory. `origin`: the part of the
    tensor to which its sum is written."""

    host: torch.Tensor
    origin: torch.Tensor
    buffer: Optional[Buffer] = None


class Copies:
    """Copies between tensors and the host's memory. This class is for CPU tensors, which need no copies. One
    thread calls `down` and another thread calls `up`. Each uses its own stream as the current stream."""

    downwards: Optional[torch.cuda.Stream] = None
    upwards: Optional[torch.cuda.Stream] = None

    def mark_ready(self, tensor: torch.Tensor) -> Optional[torch.cuda.Event]:
        """Return the event for which the stream `downwards` must wait before it reads the tensor. Call this
        in the program's own thread."""
        return None

    def share(self, tensor: torch.Tensor) -> None:
        """Make PyTorch keep a tensor that was created on the stream `downwards` until the stream `upwards`
        has used it."""

    def down(self, part: torch.Tensor) -> Iterator[Slice]:
        """Yield the slices of a tensor in the host's memory. The caller must consume all slices, and pass
        each one to `up`."""
        yield Slice(part, part)

    def up(self, piece: Slice, *, is_whole: bool) -> None:
        """Copy a slice's sum to the slice's origin. After a failure (not `is_whole`), only release the
        slice."""

    def arrival(self) -> Optional[Arrival]:
        """Return an object that marks the completion of all copies by `up` so far; None = they are already
        complete."""
        return None


class Staging(Copies):
    """Copies slices between the tensors of one GPU and the host's memory. Uses 64 MiB of pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.downwards: torch.cuda.Stream = torch.cuda.Stream(device)
        self.upwards: torch.cuda.Stream = torch.cuda.Stream(device)
        self._buffers: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            memory = torch.empty(SLICE, dtype=torch.uint8, pin_memory=True)
            self._buffers.put(Buffer(memory, torch.cuda.Event(blocking=True)))

    def mark_ready(self, tensor: torch.Tensor) -> torch.cuda.Event:
        for stream in (self.downwards, self.upwards):
            tensor.record_stream(stream)
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        return ready

    def share(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.upwards)

    def down(self, part: torch.Tensor) -> Iterator[Slice]:
        # Start each copy before waiting for the previous copy and passing its slice to the reducers.
        before = None
        for origin in part.split(SLICE // part.element_size()):
            buffer = self._buffers.get()
            buffer.free.synchronize()
            host = buffer.memory[: origin.numel() * origin.element_size()].view(origin.dtype)
            host.copy_(origin, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)
            copied.record(self.downwards)
            if before is not None:
                yield _await_copy(*before)
            before = Slice(host, origin, buffer), copied
        if before is not None:
            yield _await_copy(*before)

    def up(self, piece: Slice, *, is_whole: bool) -> None:
        assert piece.buffer is not None
        if is_whole:
            piece.origin.copy_(piece.host, non_blocking=True)
        piece.buffer.free.record(self.upwards)
        self._buffers.put(piece.buffer)

    def arrival(self) -> Arrival:
        event = torch.cuda.Event()
        event.record(self.upwards)
        return Arrival(self.upwards, event)


def _await_copy(piece: Slice, copied: torch.cuda.Event) -> Slice:
    copied.synchronize()
    return piece


class _Job(Operation):
    """An all-reduce in the pipeline. `ready`: the event after which its tensor can be read."""

    def __init__(
        self,
        ordinal: int,
        tensor: torch.Tensor,
        reduction: Reduction,
        copies: Copies,
        ready: "Optional[torch.cuda.Event]",
    ) -> None:
        super().__init__(ordinal)
        self.tensor = tensor
        self.reduction = reduction
        self.copies = copies
        self.ready = ready
        self.arrival: Optional[Arrival] = None
        #: The first error, raised after all slices have finished.
        self.error: Optional[ReductionFailed] = None

    def fail(self, error: BaseException) -> None:
        if self.error is None:
            own = error if isinstance(error, ReductionFailed) else ReductionFailed(str(error))
            own.__cause__ = None if own is error else error
            self.error = own


class _TaskThread:
    """A thread that runs tasks in order. Tasks must not raise."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._has_ended = False
        self.put = self._tasks.put
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread after all queued tasks."""
        self.put(self._stop)

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(EXIT_TIMEOUT)

    def _run(self) -> None:
        # While waiting for the next task, keep no reference to the last task and its tensor.
        while not self._has_ended:
            self._tasks.get()()

    def _stop(self) -> None:
        self._has_ended = True


class Pipeline:
    """Runs all-reduces in the order of calls of `submit`, which any thread may call."""

    def __init__(self, communicator: Communicator, device: str, node: Optional[Node]) -> None:
        self._communicator = communicator
        self._node = node
        self._copies: Dict[torch.device, Copies] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._down, self._up = (_TaskThread("trainshed-reduction-" + device) for _ in range(2))

    def submit(self, tensor: torch.Tensor, reduction: Reduction, ordinal: int) -> ReductionWork:
        """Start an all-reduce. Raises ReductionFailed."""
        with self._lock:
            if self._closed:
                raise ReductionFailed("the process group has been destroyed")
            copies = self._copies.get(tensor.device)
            if copies is None:
                copies = Staging(tensor.device) if tensor.is_cuda else Copies()
                self._copies[tensor.device] = copies
            job = _Job(ordinal, tensor, reduction, copies, copies.mark_ready(tensor))
            self._down.put(lambda: self._send(job))
        return ReductionWork(job, tensor, lambda: job.arrival)

    def close(self) -> None:
        """End the threads. Close the communicator first, so that unfinished operations fail."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._down.put(self._end)
            self._down.end()
        self._down.join()
        self._up.join()

    # ---- the thread downwards

    def _send(self, job: _Job) -> None:
        flat = part = job.tensor.detach().view(-1)
        try:
            with on_stream(job.copies.downwards):
                if job.copies.downwards is not None and job.ready is not None:
                    job.copies.downwards.wait_event(job.ready)
                if self._node is not None:
                    flat = self._node.pad(flat)
                    job.copies.share(flat)
                    part = self._node.scatter(flat, job.reduction is Reduction.AVERAGE)
                    job.copies.share(part)
                for piece in job.copies.down(part):
                    operation = self._issue(job, piece)
                    self._up.put(functools.partial(self._bring_up, job, piece, operation))
        except Exception as error:
            # An error of PyTorch fails only this operation; the thread continues.
            job.fail(error)
        self._up.put(functools.partial(self._finish, job, flat, part))
        if self._node is not None and self._node.is_one_at_a_time:
            job.exception()  # Wait until the job has ended.

    def _issue(self, job: _Job, piece: Slice) -> Optional[Operation]:
        """Issue a slice's operation and return it; None = the job has failed."""
        if job.error is not None:
            return None
        data, dtype = bytes_of(piece.host), DTYPES[piece.host.dtype]
        try:
            return self._communicator.issue(data, dtype, job.reduction, job.number)
        except Exception as error:
            job.fail(error)
            return None

    def _end(self) -> None:
        if self._node is not None:
            self._up.put(self._node.shutdown)
        self._up.end()

    # ---- the thread upwards

    def _bring_up(self, job: _Job, piece: Slice, operation: Optional[Operation]) -> None:
        try:
            if operation is not None:
                operation.wait()
        except ReductionFailed as error:
            job.fail(error)
        try:
            with on_stream(job.copies.upwards):
                job.copies.up(piece, is_whole=job.error is None)
        except Exception as error:
            # As in `_send`.
            job.fail(error)

    def _finish(self, job: _Job, flat: torch.Tensor, part: torch.Tensor) -> None:
        try:
            if job.error is None:
                with on_stream(job.copies.upwards):
                    if self._node is not None:
                        self._node.gather(flat, part)
                        own = job.tensor.detach().view(-1)
                        if flat.data_ptr() != own.data_ptr():
                            own.copy_(flat[: own.numel()])
                    job.arrival = job.copies.arrival()
        except Exception as error:
            job.fail(error)
        job.finish(job.error)
