"""Memory for payloads, used again as soon as nobody holds it."""

from __future__ import annotations

from typing import Dict, List

import numpy as np

_SPARE_BYTES = 64 << 20


class Block:
    """Bytes of one payload; they go back where they came from with the last reference to it."""

    __slots__ = ("_home", "data")

    def __init__(self, data: memoryview, home: "Buffers") -> None:
        self.data = data
        self._home = home

    def __del__(self) -> None:
        self._home.take_back(self.data)


class Buffers:
    """Blocks, made as needed; who asks for them sets the bounds. Keeps 64 MiB of those that came back at
    most."""

    def __init__(self) -> None:
        self._spare: Dict[int, List[memoryview]] = {}
        self._spare_bytes = 0
        self.used_bytes = 0
        """In blocks that somebody holds."""

    def take(self, nbytes: int) -> Block:
        """A block with whatever was in it before."""
        self.used_bytes += nbytes
        spare = self._spare.get(nbytes)
        if spare:
            self._spare_bytes -= nbytes
            return Block(spare.pop(), self)
        return Block(np.empty(nbytes, np.uint8).data, self)

    def take_back(self, data: memoryview) -> None:
        self.used_bytes -= len(data)
        if self._spare_bytes + len(data) > _SPARE_BYTES:
            self._spare.clear()
            self._spare_bytes = 0
        self._spare.setdefault(len(data), []).append(data)
        self._spare_bytes += len(data)
