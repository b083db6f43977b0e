"""A simple worker for tests of reducers: it blocks, and has one connection to a reducer (lane) and one
operation at a time."""

import time
from typing import Any

import numpy as np

from tests.reduction.reducers import TOKEN
from trainshed_reduction import proof, wire
from trainshed_reduction.wire import DType, Header, Hello, Kind, Reduction, Start

SECONDS = 60.0


class ConversationEnded(Exception):
    """The reducer ended the conversation with this text."""


class Worker:
    """A worker. The constructor connects and authenticates it, and raises the errors of `proof.connect`."""

    def __init__(
        self,
        port: int,
        rank: int,
        world: int,
        *,
        group: str = "group",
        generation: int = 1,
        received: int = 0,
        lane: int = 0,
        token: bytes = TOKEN,
        seconds: float = SECONDS,
    ) -> None:
        self.rank = rank
        self.statuses: list[str] = []
        hello = Hello(proof.group_digest(group), generation, rank, world, lane, received)
        self.connection, self.accept = proof.connect(("127.0.0.1", port), token, hello, seconds)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def frame(self, seconds: float = SECONDS) -> tuple[Header, bytes]:
        """Return the next frame other than STATUS. Raises ConversationEnded, OSError."""
        deadline = time.monotonic() + seconds
        while True:
            header, payload = proof.read_frame(self.connection, deadline, wire.MAX_CHUNK)
            if header.kind is Kind.ERROR:
                raise ConversationEnded(payload.decode())
            if header.kind is not Kind.STATUS:
                return header, payload
            self.statuses.append(payload.decode())

    def status(self) -> str:
        header, payload = proof.read_frame(self.connection, time.monotonic() + SECONDS)
        assert header.kind is Kind.STATUS, header
        return payload.decode()

    def start(self) -> Start:
        header, payload = self.frame()
        assert header.kind is Kind.START, header
        return wire.unpack_message(Start, payload)

    def header(
        self,
        data: bytes,
        dtype: DType,
        *,
        operation: int = 0,
        ordinal: int | None = None,
        chunk: int = 0,
        total: int = 0,
        step: int = 0,
        reduction: Reduction = Reduction.SUM,
        kind: Kind = Kind.DATA,
        acknowledged: int = 0,
    ) -> Header:
        """Return a header. Default `total`: an operation of one chunk. Default `ordinal`: a program without
        native operations."""
        count = len(data) // dtype.itemsize
        return Header(
            kind,
            dtype,
            reduction,
            self.rank,
            chunk,
            operation,
            total or count,
            step or count,
            len(data),
            acknowledged,
            operation + 1 if ordinal is None else ordinal,
        )

    def send(self, data: bytes, dtype: DType = DType.FLOAT32, **fields: Any) -> None:
        """Send a chunk. `fields`: as for `header`."""
        self.connection.sendall(wire.pack(self.header(data, dtype, **fields)) + data)

    def send_array(self, array: "np.ndarray[Any, Any]", **fields: Any) -> None:
        self.send(array.tobytes(), DType[array.dtype.name.upper()], **fields)

    def bye(self) -> None:
        self.connection.sendall(proof.frame(Kind.BYE))

    def result(self) -> bytes:
        header, payload = self.frame()
        assert header.kind is Kind.RESULT, header
        return payload

    def end(self) -> str:
        """Return the reducer's last message; "" if it closes the connection without a message."""
        try:
            while True:
                self.frame()
        except ConversationEnded as ended:
            return str(ended)
        except ConnectionError:
            return ""
