"""One worker's connection: its frames, and who reads and sends them, here or the part in C.

Knows nothing of groups.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Generator, Optional, Tuple, Union

from trainshed_reduction.framing import FramedSocket
from trainshed_reduction.reducer.buffers import Block, Buffers
from trainshed_reduction.wire import Header, Kind, Malformed

if TYPE_CHECKING:
    from trainshed_reduction.native.reducing import NativeMember


class Connection(FramedSocket):
    def __init__(self, connection: socket.socket, buffers: Buffers) -> None:
        """`connection`: not blocking; TLS's handshake is done here."""
        super().__init__(connection)
        self._buffers = buffers
        self._block: Optional[Block] = None
        self.hello_only = True
        """Whoever is there has proved nothing yet: no other frame is taken."""
        self.native: Optional[NativeMember] = None
        """Who reads and sends in place of this one."""

    @property
    def unsent_bytes(self) -> int:
        """That wait to be sent, wherever."""
        return self.unsent if self.native is None else self.native.unsent

    @property
    def may_be_native(self) -> bool:
        """It is plain TCP, between two frames either way."""
        return self.is_between and not self.is_tls

    def come_back(self) -> None:
        """What the part in C has not sent is to be sent from here; it has read to the end."""
        if self.native is not None:
            rest, self.native = self.native.part(), None
            if rest:
                self.queue(rest)

    def place(self, header: Header) -> memoryview:
        if self.hello_only and header.kind is not Kind.HELLO:
            raise Malformed("HELLO must come first")
        if header.kind in (Kind.DATA, Kind.FINAL):
            self._block = self._buffers.take(header.nbytes)
            return self._block.data
        return memoryview(bytearray(header.nbytes))

    def read(self) -> "Generator[Tuple[Header, Union[Block, bytes]], None, None]":
        """`frames`, the payload of a chunk as a block."""
        for header, payload in self.frames():
            block, self._block = self._block, None
            yield header, bytes(payload) if block is None else block

    def send(self, frame: bytes, block: Optional[Block] = None) -> None:
        """After all that is to be sent already: a frame, or a header and the payload that belongs to it."""
        if self.native is not None:
            self.native.tell(frame)
            return
        self.queue(frame)
        if block is not None:
            self.queue(block.data, block)

    def end_sending(self) -> None:
        """The other side finds the end behind what was sent. Raises OSError."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.come_back()
        self.forget()
        self.socket.close()
