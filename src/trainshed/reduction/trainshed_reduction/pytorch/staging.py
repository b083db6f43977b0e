"""Tensors of a GPU come to the reducers through pinned memory, slice by slice, on streams of their own."""

from __future__ import annotations

import collections
import contextlib
import queue
from typing import Deque, Dict, Generator, Iterator, NamedTuple, Optional

import torch

from trainshed_reduction.pytorch.pipeline import Copies, Slice

SLICE = 4 << 20
"""Bytes: long enough for the bus, short enough that the reducers begin soon."""
_BUFFERS = 16
_AHEAD = 2
"""Copies that are begun before the one that is waited for is done."""


class _Buffer(NamedTuple):
    """`free`: when the copy out of it is done."""

    memory: torch.Tensor
    free: torch.cuda.Event


class CopyEvent:
    """The result is there when the stream that copies upwards has come to this event."""

    def __init__(self, device: torch.device, upwards: torch.cuda.Stream) -> None:
        self._device = device
        self._upwards = upwards
        self._event = torch.cuda.Event()
        self._event.record(upwards)

    def arrived(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def stream(self) -> "contextlib.AbstractContextManager[object]":
        return torch.cuda.stream(self._upwards)


class Staging(Copies):
    """Of one GPU. Holds 64 MiB of pinned memory from its first use on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._downwards = torch.cuda.Stream(device)
        self._upwards = torch.cuda.Stream(device)
        self._buffers: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        self._taken: Dict[int, _Buffer] = {}
        for _ in range(_BUFFERS):
            memory = torch.empty(SLICE, dtype=torch.uint8, pin_memory=True)
            self._buffers.put(_Buffer(memory, torch.cuda.Event(blocking=True)))

    def submitted(self, tensor: torch.Tensor) -> object:
        for stream in (self._downwards, self._upwards):
            tensor.record_stream(stream)
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        return ready

    @contextlib.contextmanager
    def sending(self, ready: object) -> Iterator[None]:
        assert isinstance(ready, torch.cuda.Event)
        with torch.cuda.stream(self._downwards):
            self._downwards.wait_event(ready)
            yield

    def share(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._upwards)

    def down(self, part: torch.Tensor) -> Generator[Slice, None, None]:
        begun: Deque[tuple[Slice, torch.cuda.Event]] = collections.deque()
        length = SLICE // part.element_size()
        try:
            for first in range(0, part.numel(), length):
                # A buffer that is never sent would be waited for in vain.
                while begun and (len(begun) >= _AHEAD or self._buffers.empty()):
                    yield _when_copied(*begun.popleft())
                begun.append(self._begin(part[first : first + length]))
            while begun:
                yield _when_copied(*begun.popleft())
        finally:
            for piece, _ in begun:
                self.release(piece)

    def _begin(self, origin: torch.Tensor) -> "tuple[Slice, torch.cuda.Event]":
        buffer = self._buffers.get()
        buffer.free.synchronize()
        host = buffer.memory[: origin.numel() * origin.element_size()].view(origin.dtype)
        host.copy_(origin, non_blocking=True)
        copied = torch.cuda.Event(blocking=True)
        copied.record(self._downwards)
        self._taken[host.data_ptr()] = buffer
        return Slice(host, origin), copied

    def receiving(self) -> "contextlib.AbstractContextManager[object]":
        return torch.cuda.stream(self._upwards)

    def up(self, piece: Slice) -> None:
        piece.origin.copy_(piece.host, non_blocking=True)

    def release(self, piece: Slice) -> None:
        buffer = self._taken.pop(piece.host.data_ptr())
        buffer.free.record(self._upwards)
        self._buffers.put(buffer)

    def arrival(self) -> Optional[CopyEvent]:
        return CopyEvent(self._device, self._upwards)


def _when_copied(piece: Slice, copied: torch.cuda.Event) -> Slice:
    copied.synchronize()
    return piece
