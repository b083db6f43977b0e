"""Brings tensors into the host's memory and back. Tensors of the CPU are there already; those of a GPU are
copied through pinned memory, slice by slice, on CUDA streams of their own."""

from __future__ import annotations

import queue
from typing import Iterator, NamedTuple, Optional

import torch

from trainshed_reduction.pytorch.work import Arrival

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
