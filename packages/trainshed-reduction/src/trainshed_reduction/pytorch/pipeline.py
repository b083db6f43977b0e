"""A pipeline for all-reduces with several steps. One thread copies tensors to the host's memory and sends
them to the reducers. Another thread copies the sums back to the tensors.

Therefore three steps overlap: the copy of a slice, the transfer of the previous slice, and the copy of an
earlier sum. Operations run in the order of calls, which is the same on all ranks.
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
from trainshed_reduction.pytorch.work import DTYPES, EXIT_TIMEOUT, Arrival, ReductionWork, bytes_of, on_stream
from trainshed_reduction.wire import Reduction

# CPU tensors are already in the host's memory. GPU tensors are copied slice by slice to pinned memory and
# back, each direction on its own CUDA stream.

SLICE = 4 << 20
"""Bytes of a slice: enough to use the bus well, and few enough for the reducers to start early."""
_BUFFERS = 16


class Buffer(NamedTuple):
    """A block of pinned memory. `free`: the event after which the memory may be overwritten."""

    memory: torch.Tensor
    free: torch.cuda.Event


class Slice(NamedTuple):
    """A slice of a tensor in the pipeline. `host`: the slice's copy in the host's memory. `origin`: the part
    of the tensor that receives the sum."""

    host: torch.Tensor
    origin: torch.Tensor
    buffer: Optional[Buffer] = None


class CpuCopies:
    """Transfers tensors to and from the host's memory. This base class copies nothing, because CPU tensors
    are already there. `GpuCopies` overrides it for GPU tensors.

    One thread calls `copy_to_host`, with `to_host_stream` as its current stream. Another thread calls
    `copy_from_host`, with `from_host_stream`.
    """

    to_host_stream: Optional[torch.cuda.Stream] = None
    from_host_stream: Optional[torch.cuda.Stream] = None

    def mark_ready(self, tensor: torch.Tensor) -> Optional[torch.cuda.Event]:
        """Return an event that occurs when the program's earlier operations on the tensor are done; None =
        they are done. `to_host_stream` must wait for the event before the stream reads the tensor. Call this
        in the program's own thread."""
        return None

    def share(self, tensor: torch.Tensor) -> None:
        """Delay the reuse of a tensor's memory by PyTorch until `from_host_stream` has used the tensor. The
        tensor was created on `to_host_stream`."""

    def copy_to_host(self, part: torch.Tensor) -> Iterator[Slice]:
        """Yield the slices of a tensor when they are in the host's memory. The caller must consume all
        slices, and pass each one to `copy_from_host`."""
        yield Slice(part, part)

    def copy_from_host(self, piece: Slice, *, is_whole: bool) -> None:
        """Copy the sum of a slice from the host's memory to the tensor (`piece.origin`). If the operation has
        failed (`is_whole` is false), only release the slice's buffer."""

    def arrival(self) -> Optional[Arrival]:
        """Return an object that marks the end of all copies that `copy_from_host` has started; None = all of
        them have ended."""
        return None


class GpuCopies(CpuCopies):
    """Transfers tensors of one GPU to and from the host's memory, in slices. Uses 64 MiB of pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.to_host_stream: torch.cuda.Stream = torch.cuda.Stream(device)
        self.from_host_stream: torch.cuda.Stream = torch.cuda.Stream(device)
        self._buffers: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            memory = torch.empty(SLICE, dtype=torch.uint8, pin_memory=True)
            self._buffers.put(Buffer(memory, torch.cuda.Event(blocking=True)))

    def mark_ready(self, tensor: torch.Tensor) -> torch.cuda.Event:
        for stream in (self.to_host_stream, self.from_host_stream):
            tensor.record_stream(stream)
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        return ready

    def share(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.from_host_stream)

    def copy_to_host(self, part: torch.Tensor) -> Iterator[Slice]:
        # Start the copy of each slice before yielding the previous slice, so that the copy and the caller's
        # work overlap.
        before = None
        for origin in part.split(SLICE // part.element_size()):
            buffer = self._buffers.get()
            buffer.free.synchronize()
            host = buffer.memory[: origin.numel() * origin.element_size()].view(origin.dtype)
            host.copy_(origin, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)
            copied.record(self.to_host_stream)
            if before is not None:
                yield _await_copy(*before)
            before = Slice(host, origin, buffer), copied
        if before is not None:
            yield _await_copy(*before)

    def copy_from_host(self, piece: Slice, *, is_whole: bool) -> None:
        assert piece.buffer is not None
        if is_whole:
            piece.origin.copy_(piece.host, non_blocking=True)
        piece.buffer.free.record(self.from_host_stream)
        self._buffers.put(piece.buffer)

    def arrival(self) -> Arrival:
        event = torch.cuda.Event()
        event.record(self.from_host_stream)
        return Arrival(self.from_host_stream, event)


def _await_copy(piece: Slice, copied: torch.cuda.Event) -> Slice:
    copied.synchronize()
    return piece


class _Job(Operation):
    """An all-reduce in the pipeline. `ready`: the event after which the tensor can be read; None = it can be
    read now."""

    def __init__(
        self,
        ordinal: int,
        tensor: torch.Tensor,
        reduction: Reduction,
        copies: CpuCopies,
        ready: "Optional[torch.cuda.Event]",
    ) -> None:
        super().__init__(ordinal)
        self.tensor = tensor
        self.reduction = reduction
        self.copies = copies
        self.ready = ready
        self.arrival: Optional[Arrival] = None
        #: The first error. It is raised when all slices have left the pipeline.
        self.error: Optional[ReductionFailed] = None

    def fail(self, error: BaseException) -> None:
        if self.error is None:
            own = error if isinstance(error, ReductionFailed) else ReductionFailed(str(error))
            own.__cause__ = None if own is error else error
            self.error = own


class _TaskThread:
    """A thread that runs tasks in order. A task must not raise exceptions."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._has_ended = False
        self.put = self._tasks.put
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let the thread end after all queued tasks."""
        self.put(self._stop)

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(EXIT_TIMEOUT)

    def _run(self) -> None:
        # Keep no reference to the last task while waiting for the next one, because the task refers to a
        # tensor.
        while not self._has_ended:
            self._tasks.get()()

    def _stop(self) -> None:
        self._has_ended = True


class Pipeline:
    """Runs all-reduces in the order in which `submit` is called. Any thread may call it."""

    def __init__(self, communicator: Communicator, device: str, node: Optional[Node]) -> None:
        self._communicator = communicator
        self._node = node
        self._copies: Dict[torch.device, CpuCopies] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._sender, self._receiver = (_TaskThread("trainshed-reduction-" + device) for _ in range(2))

    def submit(self, tensor: torch.Tensor, reduction: Reduction, ordinal: int) -> ReductionWork:
        """Start an all-reduce. Raises ReductionFailed if the pipeline is closed."""
        with self._lock:
            if self._closed:
                raise ReductionFailed("this all-reduce was called after its process group was destroyed")
            copies = self._copies.get(tensor.device)
            if copies is None:
                copies = GpuCopies(tensor.device) if tensor.is_cuda else CpuCopies()
                self._copies[tensor.device] = copies
            job = _Job(ordinal, tensor, reduction, copies, copies.mark_ready(tensor))
            self._sender.put(lambda: self._send(job))
        return ReductionWork(job, tensor, lambda: job.arrival)

    def close(self) -> None:
        """End the threads. Close the communicator before this, so that unfinished operations fail."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._sender.put(self._end)
            self._sender.end()
        self._sender.join()
        self._receiver.join()

    # ---- the sender thread

    def _send(self, job: _Job) -> None:
        flat = part = job.tensor.detach().view(-1)
        try:
            with on_stream(job.copies.to_host_stream):
                if job.copies.to_host_stream is not None and job.ready is not None:
                    job.copies.to_host_stream.wait_event(job.ready)
                if self._node is not None:
                    flat = self._node.pad(flat)
                    job.copies.share(flat)
                    part = self._node.scatter(flat, job.reduction is Reduction.AVERAGE)
                    job.copies.share(part)
                for piece in job.copies.copy_to_host(part):
                    operation = self._issue(job, piece)
                    self._receiver.put(functools.partial(self._copy_back, job, piece, operation))
        except Exception as error:
            # An error of PyTorch fails only this operation. The thread continues with the next operation.
            job.fail(error)
        self._receiver.put(functools.partial(self._finish, job, flat, part))
        if self._node is not None and self._node.is_one_at_a_time:
            job.exception()  # Start the next job only after this job has ended.

    def _issue(self, job: _Job, piece: Slice) -> Optional[Operation]:
        """Issue the all-reduce of a slice, and return it; None = the whole operation has failed."""
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
            self._receiver.put(self._node.shutdown)
        self._receiver.end()

    # ---- the receiver thread

    def _copy_back(self, job: _Job, piece: Slice, operation: Optional[Operation]) -> None:
        try:
            if operation is not None:
                operation.wait()
        except ReductionFailed as error:
            job.fail(error)
        try:
            with on_stream(job.copies.from_host_stream):
                job.copies.copy_from_host(piece, is_whole=job.error is None)
        except Exception as error:
            # Fail only this operation, as in `_send`.
            job.fail(error)

    def _finish(self, job: _Job, flat: torch.Tensor, part: torch.Tensor) -> None:
        try:
            if job.error is None:
                with on_stream(job.copies.from_host_stream):
                    if self._node is not None:
                        self._node.gather(flat, part)
                        own = job.tensor.detach().view(-1)
                        if flat.data_ptr() != own.data_ptr():
                            own.copy_(flat[: own.numel()])
                    job.arrival = job.copies.arrival()
        except Exception as error:
            job.fail(error)
        job.finish(job.error)
