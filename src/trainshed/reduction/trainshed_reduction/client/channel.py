"""One lane of the transfer in Python: the frames that go out on its connection, and the results that are due."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from typing import Deque, List, Optional, Tuple

from trainshed_reduction import wire
from trainshed_reduction.client.port import Frame
from trainshed_reduction.wire import Header


class Channel:
    """`position`: of the first frame that is pushed. Credit, and the order over all lanes, are the transfer's to keep."""

    __slots__ = (
        "awaited",
        "begun",
        "blocked",
        "borrowed",
        "buffer",
        "connection",
        "got",
        "header",
        "index",
        "parts",
        "pushed",
        "queue",
        "secured",
        "under_way",
    )

    def __init__(self, index: int, connection: socket.socket, position: int) -> None:
        self.index = index
        self.connection = connection
        self.secured = isinstance(connection, ssl.SSLSocket)
        self.queue: Deque[Frame] = deque()  # not begun
        self.parts: List[memoryview] = []  # what is left to send of the frame that was begun
        self.awaited: Deque[Tuple[int, Frame]] = deque()  # position and frame of results to come
        self.pushed = position  # the next frame's
        self.begun = position
        self.under_way = 0  # bytes begun whose results are not back
        self.blocked = False
        self.borrowed = False  # the handle is somebody else's to close
        self.buffer = memoryview(bytearray(64 << 10))
        self.got = 0
        self.header: Optional[Header] = None

    @property
    def sends(self) -> bool:
        return bool(self.parts or self.queue)

    @property
    def row(self) -> float:
        return self.queue[0].row if not self.parts else -1.0

    def push(self, frame: Frame) -> None:
        if frame.target is not None:
            self.awaited.append((self.pushed, frame))
        self.pushed += 1
        self.queue.append(frame)

    def begin(self) -> None:
        """Make the next frame ready to be written."""
        frame = self.queue.popleft()
        self.begun += 1
        has = self.awaited[0][0] if self.awaited else self.pushed
        header = wire.pack(frame.header._replace(acknowledged=has))
        self.parts = [memoryview(header), frame.payload]

    def write(self) -> None:
        """Send until the frame is out or the system takes no more. Raises OSError."""
        while self.parts:
            if self.secured:
                count = self.connection.send(self.parts[0])
            else:
                count = self.connection.sendmsg(self.parts)
            while self.parts and count >= len(self.parts[0]):
                count -= len(self.parts.pop(0))
            if count:
                self.parts[0] = self.parts[0][count:]

    def check(self, header: Header) -> None:
        """Of a RESULT that begins. Raises Malformed: it is not the one that is due."""
        if not self.awaited or self.awaited[0][0] >= self.begun:
            raise wire.Malformed("a result came for a chunk that was not sent")
        sent = self.awaited[0][1].header
        if (header.operation, header.chunk, header.dtype, header.nbytes) != (
            sent.operation,
            sent.chunk,
            sent.dtype,
            sent.nbytes,
        ):
            raise wire.Malformed(
                "the result of chunk {} of operation {} came in place of chunk {} of operation {}".format(
                    header.chunk, header.ordinal, sent.chunk, sent.ordinal
                )
            )
