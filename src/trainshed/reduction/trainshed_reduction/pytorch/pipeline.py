"""All-reduces that take more than one step, in two threads: one brings tensors down to the reducers, one
brings sums up.

So that the copy of a slice, the way of the one before it, and what comes back of an earlier one overlap; and
in the order of calls, on all ranks alike.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Generator, NamedTuple, Optional

import torch

from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.operations import Operation
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.pytorch.fallback import Fallback
from trainshed_reduction.pytorch.hierarchy import Node
from trainshed_reduction.pytorch.tensors import DTYPES, bytes_of
from trainshed_reduction.pytorch.work import Arrival, ReductionWork
from trainshed_reduction.wire import Reduction

_END_SECONDS = 5.0


class Slice(NamedTuple):
    """A part of a tensor as it travels. `host`: on the CPU; `origin`: where its sum goes."""

    host: torch.Tensor
    origin: torch.Tensor


class Copies:
    """How tensors of a device come to the host's memory and back: here, of those that are there already.
    `sending` and `down` belong to one thread, `receiving` and `up` to another."""

    def submitted(self, tensor: torch.Tensor) -> object:
        """In the caller's thread, where its current stream tells when the tensor is ready; what `sending`
        waits for."""
        return None

    def sending(self, ready: object) -> "contextlib.AbstractContextManager[object]":
        return contextlib.nullcontext()

    def share(self, tensor: torch.Tensor) -> None:
        """It was made while `sending`, and is used while `receiving`, too."""

    def down(self, part: torch.Tensor) -> Generator[Slice, None, None]:
        yield Slice(part, part)

    def receiving(self) -> "contextlib.AbstractContextManager[object]":
        return contextlib.nullcontext()

    def up(self, piece: Slice) -> None:
        """Its sum goes back where it came from."""

    def release(self, piece: Slice) -> None:
        """It is not needed any more, once its copy is done."""

    def arrival(self) -> Optional[Arrival]:
        """Of what `up` was called for so far."""
        return None


class PipelinedOperation(Operation):
    """An all-reduce in the pipeline and, of a GPU, the `Arrival` of its result."""

    def __init__(
        self,
        ordinal: int,
        tensor: torch.Tensor,
        reduction: Reduction,
        copies: Copies,
        ready: object,
    ) -> None:
        super().__init__(ordinal)
        self.tensor = tensor
        self.reduction = reduction
        self.copies = copies
        self.ready = ready
        self.flat = tensor
        self.part = tensor
        self.arrival: Optional[Arrival] = None
        #: What has gone wrong so far; it is told when the job ends.
        self.error: Optional[ReductionFailed] = None

    def settled(self) -> None:
        """Waits until it is done or has failed."""
        self.exception()

    def fail(self, error: BaseException) -> None:
        """The first failure stays."""
        if self.error is None:
            own = error if isinstance(error, ReductionFailed) else ReductionFailed(str(error))
            own.__cause__ = None if own is error else error
            self.error = own

    # As its own Arrival: which is known when the job has ended.

    def arrived(self) -> None:
        if self.arrival is not None:
            self.arrival.arrived()

    def stream(self) -> "contextlib.AbstractContextManager[object]":
        return contextlib.nullcontext() if self.arrival is None else self.arrival.stream()


class Pipeline:
    """Takes all-reduces by `submit` from any thread; the order of calls is that of the operations."""

    def __init__(
        self, communicator: Communicator, after: Fallback, device: str, node: Optional[Node]
    ) -> None:
        """`after`: sums what is in the pipeline when the last reducer is lost."""
        self._communicator = communicator
        self._after = after
        self._node = node
        self._copies: dict[torch.device, Copies] = {}
        self._lock = threading.Lock()
        self._submitted = 0
        self._switch: Optional[int] = None
        self._closed = False
        self._jobs: queue.SimpleQueue[Optional[PipelinedOperation]] = queue.SimpleQueue()
        self._sent: queue.SimpleQueue[Optional[_Sent]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name="trainshed-reduction-" + device, daemon=True)
            for target in (self._send, self._receive)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, tensor: torch.Tensor, reduction: Reduction, ordinal: int
    ) -> Optional[ReductionWork]:
        """None: this one and all later ones are the native backend's."""
        copies = self._copies_of(tensor.device)
        with self._lock:
            if self._closed:
                raise ReductionFailed("the process group has been destroyed")
            if self._switch is not None and self._submitted >= self._switch:
                return None
            job = PipelinedOperation(ordinal, tensor, reduction, copies, copies.submitted(tensor))
            self._submitted += 1
            self._jobs.put(job)
        return ReductionWork(job, [tensor], job)

    def close(self) -> None:
        """After the communicator, which fails what is under way."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        # A thread that the interpreter's end finds in the middle of gloo's or CUDA's code would abort the
        # process.
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_END_SECONDS)

    def _copies_of(self, device: torch.device) -> Copies:
        made = self._copies.get(device)
        if made is None:
            if device.type == "cuda":
                from trainshed_reduction.pytorch.staging import Staging

                made = Staging(device)
            else:
                made = Copies()
            self._copies[device] = made
        return made

    def _send(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                self._sent.put(None)
                return
            try:
                with job.copies.sending(job.ready):
                    self._send_one(job)
            except Exception as error:
                # PyTorch's or the reducers': it is the operation's, and the thread goes on for the others.
                job.fail(error)
            self._sent.put(_Sent(job, None, None))
            if self._node is not None and self._node.is_one_at_a_time:
                job.settled()

    def _send_one(self, job: PipelinedOperation) -> None:
        job.flat = job.part = job.tensor.detach().view(-1)
        if self._node is not None:
            job.flat = self._node.padded(job.flat)
            job.copies.share(job.flat)
            job.part = self._node.scatter(job.flat, job.reduction is Reduction.AVERAGE)
        job.copies.share(job.part)
        with contextlib.closing(job.copies.down(job.part)) as pieces:
            for piece in pieces:
                try:
                    operation = self._issue(piece, job)
                except BaseException:
                    job.copies.release(piece)
                    raise
                self._sent.put(_Sent(job, piece, operation))

    def _issue(self, piece: Slice, job: PipelinedOperation) -> Optional[Operation]:
        dtype = DTYPES[piece.host.dtype]
        operation = self._communicator.issue(bytes_of(piece.host), dtype, job.reduction, job.number)
        if operation is None:
            if self._switch is None:
                # All ranks come here with the same slice, but with more or less in the queue behind it.
                with self._lock:
                    self._switch = self._after.largest(self._submitted)
            self._after.allreduce(piece.host, job.reduction)
        return operation

    def _receive(self) -> None:
        while True:
            sent = self._sent.get()
            if sent is None:
                if self._node is not None:
                    self._node.shutdown()
                return
            job, piece, operation = sent
            try:
                with job.copies.receiving():
                    if piece is None:
                        self._finish(job)
                    else:
                        if operation is not None:
                            operation.wait()
                        job.copies.up(piece)
            except Exception as error:
                # As in `_send`.
                job.fail(error)
            if piece is None:
                job.finish(job.error)
            else:
                job.copies.release(piece)

    def _finish(self, job: PipelinedOperation) -> None:
        if job.error is not None:
            return
        if self._node is not None:
            self._node.gather(job.flat, job.part)
            own = job.tensor.detach().view(-1)
            if job.flat.data_ptr() != own.data_ptr():
                own.copy_(job.flat[: own.numel()])
        job.arrival = job.copies.arrival()
        # The user's tensor alone stays until he drops it.
        job.flat = job.part = job.tensor


class _Sent(NamedTuple):
    """A slice on its way, or (no piece) the end of a job."""

    job: PipelinedOperation
    piece: Optional[Slice]
    operation: Optional[Operation]
