"""All-reduces that take more than one step, in two threads: one brings tensors down to the reducers, one
brings sums up.

So the copy of a slice, the transfer of the one before it, and the copy back of an earlier one overlap.
Operations keep the order of calls, on all ranks alike.
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

# Brings tensors into the host's memory and back. Tensors of the CPU are there already; those of a GPU are
# copied through pinned memory, slice by slice, on CUDA streams of their own.

SLICE = 4 << 20
"""Bytes of a slice: long enough for the bus, short enough that the reducers begin soon."""
_BUFFERS = 16


class Buffer(NamedTuple):
    """Pinned memory. `free`: when the last copy out of it is done."""

    memory: torch.Tensor
    free: torch.cuda.Event


class Slice(NamedTuple):
    """A part of a tensor as it travels. `host`: on the CPU; `origin`: where its sum goes."""

    host: torch.Tensor
    origin: torch.Tensor
    buffer: Optional[Buffer] = None


class Copies:
    """The copies of tensors that are in the host's memory already: none are made. `down` is called by one
    thread, `up` by another, each with its stream as the current one."""

    downwards: Optional[torch.cuda.Stream] = None
    upwards: Optional[torch.cuda.Stream] = None

    def submitted(self, tensor: torch.Tensor) -> Optional[torch.cuda.Event]:
        """Return the event that `downwards` has to wait for before it reads the tensor. Called in the
        program's own thread."""
        return None

    def share(self, tensor: torch.Tensor) -> None:
        """Have PyTorch keep the tensor, which was made on `downwards`, until `upwards` has used it, too."""

    def down(self, part: torch.Tensor) -> Iterator[Slice]:
        """Yield the slices of a tensor, in the host's memory. All must be taken, and each given to `up`."""
        yield Slice(part, part)

    def up(self, piece: Slice, *, is_whole: bool) -> None:
        """Copy a slice's sum to where the slice came from; not if something failed (`is_whole` is False)."""

    def arrival(self) -> Optional[Arrival]:
        """Return when all that `up` was called for so far has arrived; None: it has."""
        return None


class Staging(Copies):
    """The copies of one GPU's tensors. Holds 64 MiB of pinned memory from its first use on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.downwards: torch.cuda.Stream = torch.cuda.Stream(device)
        self.upwards: torch.cuda.Stream = torch.cuda.Stream(device)
        self._buffers: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            memory = torch.empty(SLICE, dtype=torch.uint8, pin_memory=True)
            self._buffers.put(Buffer(memory, torch.cuda.Event(blocking=True)))

    def submitted(self, tensor: torch.Tensor) -> torch.cuda.Event:
        for stream in (self.downwards, self.upwards):
            tensor.record_stream(stream)
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        return ready

    def share(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.upwards)

    def down(self, part: torch.Tensor) -> Iterator[Slice]:
        # Each copy is begun before the one before it is awaited and given to the reducers.
        before = None
        for origin in part.split(SLICE // part.element_size()):
            buffer = self._buffers.get()
            buffer.free.synchronize()
            host = buffer.memory[: origin.numel() * origin.element_size()].view(origin.dtype)
            host.copy_(origin, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)
            copied.record(self.downwards)
            if before is not None:
                yield _when_copied(*before)
            before = Slice(host, origin, buffer), copied
        if before is not None:
            yield _when_copied(*before)

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


def _when_copied(piece: Slice, copied: torch.cuda.Event) -> Slice:
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
        #: The first error; it is raised when nothing of the job is under way any more.
        self.error: Optional[ReductionFailed] = None

    def fail(self, error: BaseException) -> None:
        if self.error is None:
            own = error if isinstance(error, ReductionFailed) else ReductionFailed(str(error))
            own.__cause__ = None if own is error else error
            self.error = own


class _TaskThread:
    """A thread that runs the tasks that it is given, in order. Tasks raise nothing."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._has_ended = False
        self.put = self._tasks.put
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread after all tasks that were put so far."""
        self.put(self._stop)

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(EXIT_TIMEOUT)

    def _run(self) -> None:
        # No name holds a task, which may hold a tensor, while the next one is awaited.
        while not self._has_ended:
            self._tasks.get()()

    def _stop(self) -> None:
        self._has_ended = True


class Pipeline:
    """Takes all-reduces by `submit` from any thread; the order of calls is that of the operations."""

    def __init__(self, communicator: Communicator, device: str, node: Optional[Node]) -> None:
        self._communicator = communicator
        self._node = node
        self._copies: Dict[torch.device, Copies] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._down, self._up = (_TaskThread("trainshed-reduction-" + device) for _ in range(2))

    def submit(self, tensor: torch.Tensor, reduction: Reduction, ordinal: int) -> ReductionWork:
        """Begin an all-reduce. Raises ReductionFailed."""
        with self._lock:
            if self._closed:
                raise ReductionFailed("the process group has been destroyed")
            copies = self._copies.get(tensor.device)
            if copies is None:
                copies = Staging(tensor.device) if tensor.is_cuda else Copies()
                self._copies[tensor.device] = copies
            job = _Job(ordinal, tensor, reduction, copies, copies.submitted(tensor))
            self._down.put(lambda: self._send(job))
        return ReductionWork(job, tensor, lambda: job.arrival)

    def close(self) -> None:
        """End the threads. The communicator is closed before, which fails what is under way."""
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
                    flat = self._node.padded(flat)
                    job.copies.share(flat)
                    part = self._node.scatter(flat, job.reduction is Reduction.AVERAGE)
                    job.copies.share(part)
                for piece in job.copies.down(part):
                    operation = self._issue(job, piece)
                    self._up.put(functools.partial(self._bring_up, job, piece, operation))
        except Exception as error:
            # An error of PyTorch's fails the operation, and the thread goes on for the others.
            job.fail(error)
        self._up.put(functools.partial(self._finish, job, flat, part))
        if self._node is not None and self._node.is_one_at_a_time:
            job.exception()  # Waits until it is done.

    def _issue(self, job: _Job, piece: Slice) -> Optional[Operation]:
        """Issue a slice; None: the job has failed."""
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
            # As in `_send`, and below as well.
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
