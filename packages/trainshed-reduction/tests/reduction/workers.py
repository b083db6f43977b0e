"""A worker of few words for tests of reducers: blocking, one lane, one thing after the other."""

import time
from typing import Any

import numpy as np

from tests.reduction.reducers import TOKEN
from trainshed_reduction import proof, wire
from trainshed_reduction.wire import DType, Header, Hello, Kind, Reduction, Start

SECONDS = 60.0


class Ended(Exception):
    """The reducer ended the conversation, with this text."""


class Worker:
    """Connected, and let in, when it is made. Raises what `proof.connect` raises."""

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
        """The next one that is no STATUS. Raises Ended, OSError."""
        deadline = time.monotonic() + seconds
        while True:
            header, payload = proof.read_frame(self.connection, deadline, wire.MAX_CHUNK)
            if header.kind is Kind.ERROR:
                raise Ended(payload.decode())
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
        """Without `total`, of an operation of one chunk; without `ordinal`, one of a program that has no
        others."""
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
        """A chunk; `fields` as of `header`."""
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
        """What the reducer says in the end; "" if it only closes the connection."""
        try:
            while True:
                self.frame()
        except Ended as ended:
            return str(ended)
        except ConnectionError:
            return ""
