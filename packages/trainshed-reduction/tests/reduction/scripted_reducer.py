"""The other end of a lane, which a test plays by hand."""

import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from trainshed_reduction import wire
from trainshed_reduction.native.transfer import Event, Frame, NativeTransfer
from trainshed_reduction.wire import DType, Header, Kind

PATIENCE = 60.0
"""Seconds after which a test that waits has failed."""


class Arrived(NamedTuple):
    header: Header
    payload: bytes


class ScriptedReducer:
    """`buffer`: bytes that the system takes from either side before it says no; 0: its own choice. `tcp`: a
    connection over the loopback, in place of a pair of sockets."""

    def __init__(self, buffer: int = 0, *, tcp: bool = False) -> None:
        if tcp:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self.worker = socket.create_connection(listener.getsockname())
                self.own, _ = listener.accept()
        else:
            self.worker, self.own = socket.socketpair()
        for end in (self.worker, self.own):
            if buffer:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            end.setblocking(False)
        self.arrived: list[Arrived] = []
        self._bytes = bytearray()

    def read(self, most: int = 1 << 20) -> int:
        """Takes what is there; how much that was."""
        try:
            data = self.own.recv(most)
        except BlockingIOError:
            return 0
        self._bytes += data
        while len(self._bytes) >= wire.HEADER.size:
            header = wire.unpack(self._bytes[: wire.HEADER.size])
            end = wire.HEADER.size + header.nbytes
            if len(self._bytes) < end:
                break
            self.arrived.append(Arrived(header, bytes(self._bytes[wire.HEADER.size : end])))
            del self._bytes[:end]
        return len(data)

    def close(self) -> None:
        self.own.close()
        self.worker.close()


def chunk(
    operation: int,
    index: int,
    payload: bytes | bytearray | memoryview,
    row: float = 0,
    *,
    of: int = 1000,
) -> Frame:
    """DATA of an operation of `of` equal chunks of bytes in fours; its result takes the payload's place."""
    data = memoryview(payload)
    return Frame(header(Kind.DATA, operation, index, len(data), of=of), data, data, row)


def final(operation: int, index: int, payload: bytes, row: float = 0) -> Frame:
    data = memoryview(bytearray(payload))
    return Frame(header(Kind.FINAL, operation, index, len(data)), data, None, row)


def header(
    kind: Kind, operation: int, index: int, size: int, *, acknowledged: int = 0, of: int = 1000
) -> Header:
    step = size // 4
    total = of * step
    return Header(
        kind, DType.FLOAT32, 0, 0, index, operation, total, step, size, acknowledged, operation
    )


def result(operation: int, index: int, payload: bytes, acknowledged: int = 0) -> bytes:
    return (
        wire.pack(header(Kind.RESULT, operation, index, len(payload), acknowledged=acknowledged))
        + payload
    )


def message(kind: Kind, text: bytes) -> bytes:
    return wire.pack(Header(kind, nbytes=len(text))) + text


def run_until(
    transfer: NativeTransfer, reducers: list[ScriptedReducer], done: Callable[[list[Event]], object]
) -> list[Event]:
    """Both sides go on until `done` says so of all events, which are returned."""
    events: list[Event] = []
    limit = time.monotonic() + PATIENCE
    while not done(events):
        assert time.monotonic() < limit, (events, [reducer.arrived for reducer in reducers])
        events += transfer.run(0.001)
        for reducer in reducers:
            reducer.read()
    return events


def settle(transfer: NativeTransfer, reducers: list[ScriptedReducer]) -> list[Event]:
    """Both sides go on until nothing moves of its own accord."""
    events: list[Event] = []
    idle = 0
    while idle < 3:
        more = transfer.run(0.005)
        events += more
        idle = 0 if sum([reducer.read() for reducer in reducers]) or more else idle + 1
    return events
