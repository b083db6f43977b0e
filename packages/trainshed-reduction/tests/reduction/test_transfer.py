"""Tests of `NativeTransfer` with simulated reducers: order and credit of frames
(spec/reduction#flow-control), complete results, and rejection of invalid frames."""

import contextlib
import gc
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

from tests.reduction.native_library import shared_library
from trainshed_reduction import wire
from trainshed_reduction.native.library import Lost, Message, Result
from trainshed_reduction.native.transfer import Event, Frame, NativeTransfer
from trainshed_reduction.wire import DType, Header, Kind

TEST_TIMEOUT = 60.0
"""Timeout of a test's waits in seconds."""


class ReceivedFrame(NamedTuple):
    header: Header
    payload: bytes


class ScriptedReducer:
    """The reducer's end of a lane, the connection between a worker and one thread. `buffer`: bytes of the
    system's socket buffers; 0 = default. `tcp`: use a TCP connection instead of a socket pair."""

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
        self.arrived: list[ReceivedFrame] = []
        self._bytes = bytearray()

    def read(self, most: int = 1 << 20) -> int:
        """Read the available bytes, and return their number."""
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
            self.arrived.append(ReceivedFrame(header, bytes(self._bytes[wire.HEADER.size : end])))
            del self._bytes[:end]
        return len(data)

    def close(self) -> None:
        self.own.close()
        self.worker.close()


def chunk(
    operation: int, index: int, payload: bytes | bytearray | memoryview, row: float = 0, *, of: int = 1000
) -> Frame:
    """Return the DATA frame of a chunk, in an operation of `of` equal chunks of 4-byte elements. Its result
    replaces the payload."""
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
    return Header(kind, DType.FLOAT32, 0, 0, index, operation, total, step, size, acknowledged, operation)


def result(operation: int, index: int, payload: bytes, acknowledged: int = 0) -> bytes:
    head = header(Kind.RESULT, operation, index, len(payload), acknowledged=acknowledged)
    return wire.pack(head) + payload


def message(kind: Kind, text: bytes) -> bytes:
    return wire.pack(Header(kind, nbytes=len(text))) + text


def run_until(
    transfer: NativeTransfer, reducers: list[ScriptedReducer], done: Callable[[list[Event]], object]
) -> list[Event]:
    """Move bytes on both sides until `done` returns True for the list of all events. Return the events."""
    events: list[Event] = []
    limit = time.monotonic() + TEST_TIMEOUT
    while not done(events):
        assert time.monotonic() < limit, (events, [reducer.arrived for reducer in reducers])
        events += transfer.run(0.001)
        for reducer in reducers:
            reducer.read()
    return events


def settle(transfer: NativeTransfer, reducers: list[ScriptedReducer]) -> list[Event]:
    """Move bytes on both sides until no more bytes move."""
    events: list[Event] = []
    idle = 0
    while idle < 3:
        more = transfer.run(0.005)
        events += more
        idle = 0 if sum([reducer.read() for reducer in reducers]) or more else idle + 1
    return events


Make = Callable[[int, int], NativeTransfer]
"""Creates a transfer from the number of lanes (connections) and the credit (maximum bytes in flight)."""
PLENTY = 1 << 30


@pytest.fixture
def make() -> Iterator[Make]:
    with contextlib.ExitStack() as at_end:

        def create(lanes: int, credit: int) -> NativeTransfer:
            return at_end.enter_context(contextlib.closing(NativeTransfer(shared_library(), lanes, credit)))

        yield create


@pytest.fixture
def reducers() -> Iterator[Callable[..., ScriptedReducer]]:
    with contextlib.ExitStack() as at_end:

        def create(buffer: int = 0, *, tcp: bool = False) -> ScriptedReducer:
            return at_end.enter_context(contextlib.closing(ScriptedReducer(buffer, tcp=tcp)))

        yield create


Reducers = Callable[..., ScriptedReducer]


def attach(transfer: NativeTransfer, lane: int, reducer: ScriptedReducer, position: int = 0) -> None:
    transfer.attach(lane, reducer.worker, position, position)


def of(events: list[Event], kind: type) -> list[object]:
    return [event for event in events if isinstance(event, kind)]


def test_credit_limits_the_unanswered_data_on_all_reducer_connections_together(
    make: Make, reducers: Reducers
) -> None:
    """spec/reduction#flow-control: The credit fills rate-limited links, and no more."""
    both = [reducers(), reducers()]
    transfer = make(2, 3000)
    for lane, reducer in enumerate(both):
        attach(transfer, lane, reducer)
        for index in range(5):
            transfer.push(lane, chunk(lane, index, bytearray(1000), row=index))
    settle(transfer, both)
    assert sum(len(peer.arrived) for peer in both) == 3
    answered = [0, 0]
    for total in range(4, 11):
        lane = max((0, 1), key=lambda peer: len(both[peer].arrived) - answered[peer])
        both[lane].own.send(result(lane, answered[lane], bytes(1000)))
        answered[lane] += 1
        settle(transfer, both)
        assert sum(len(peer.arrived) for peer in both) == total


def test_frames_with_lower_row_numbers_are_sent_first_on_all_reducer_connections(
    make: Make, reducers: Reducers
) -> None:
    """spec/reduction: This order holds across all lanes (connections to reducers), so that ranks start with
    different reducers."""
    first, second = reducers(), reducers()
    transfer = make(2, 3000)
    attach(transfer, 0, first)
    attach(transfer, 1, second)
    for lane, row in enumerate((5, 1.5)):
        for index in range(3):
            transfer.push(lane, chunk(lane, index, bytearray(1000), row=row + index))
    settle(transfer, [first, second])
    # The lower rows have used the credit, but every lane (connection) may send one chunk.
    assert (len(first.arrived), len(second.arrived)) == (1, 3)


def test_reducer_that_does_not_read_does_not_block_frames_to_other_reducers(
    make: Make, reducers: Reducers
) -> None:
    """spec/reduction: A reducer that does not read is skipped."""
    slow, quick = reducers(4096), reducers()
    transfer = make(2, PLENTY)
    attach(transfer, 0, slow)
    attach(transfer, 1, quick)
    for index in range(4):
        transfer.push(0, chunk(0, index, bytearray(40_000), row=index))
        transfer.push(1, chunk(1, index, bytearray(1000), row=index + 0.5))
    settle(transfer, [quick])
    assert len(quick.arrived) == 4
    assert transfer.unsent() == 4
    settle(transfer, [slow, quick])
    assert len(slow.arrived) == 4


def test_frame_header_contains_the_number_of_results_received_so_far(make: Make, reducers: Reducers) -> None:
    """spec/reduction#exactness: Retained results are released when all ranks have them."""
    transfer, reducer = make(1, 1), reducers()
    attach(transfer, 0, reducer, position=10)
    for index in range(3):
        transfer.push(0, chunk(0, index, bytearray(1000)))
    for index in range(3):
        run_until(transfer, [reducer], lambda _, count=index + 1: len(reducer.arrived) == count)
        reducer.own.send(result(0, index, bytes(1000), acknowledged=9 + index))
    events = settle(transfer, [reducer])
    assert [frame.header.acknowledged for frame in reducer.arrived] == [10, 11, 12]
    assert of(events, Result)[-1] == Result(0, 12)
    assert transfer.acknowledged == [11]


def test_received_results_are_sent_to_the_new_reducer_after_a_reducer_loss(
    make: Make, reducers: Reducers
) -> None:
    """spec/reduction#losses: The results are sent as FINAL frames. FINAL frames get no result, and use no
    credit."""
    old, new = reducers(), reducers()
    transfer = make(1, 1000)
    attach(transfer, 0, old)
    data = bytearray(b"mine" * 250)
    transfer.push(0, chunk(0, 0, data))
    run_until(transfer, [old], lambda _: old.arrived)
    old.own.send(result(0, 0, bytes(1000))[:500])
    settle(transfer, [old])
    transfer.attach(0, new.worker, 3, 5)
    assert transfer.acknowledged == [3]
    transfer.push(0, final(0, 3, b"done" * 250))
    transfer.push(0, final(0, 4, b"gone" * 250))
    transfer.push(0, chunk(0, 5, data))
    transfer.push(0, final(0, 6, b"late" * 250))
    run_until(transfer, [new], lambda _: len(new.arrived) == 4)
    expected = [Kind.FINAL, Kind.FINAL, Kind.DATA, Kind.FINAL]
    assert [frame.header.kind for frame in new.arrived] == expected
    assert [frame.header.acknowledged for frame in new.arrived] == [5, 5, 5, 5]
    assert data == b"mine" * 250
    new.own.send(result(0, 5, b"sums" * 250, acknowledged=4))
    assert run_until(transfer, [new], len) == [Result(0, 5)]
    assert data == b"sums" * 250
    transfer.push(0, final(0, 7, b"last" * 250))
    run_until(transfer, [new], lambda _: len(new.arrived) == 5)
    assert new.arrived[-1].header.acknowledged == 8


def test_connection_loss_in_the_middle_of_a_result_does_not_change_the_tensor(
    make: Make, reducers: Reducers
) -> None:
    """spec/reduction#losses: The step completes with the exact result."""
    transfer, reducer = make(2, PLENTY), reducers()
    attach(transfer, 1, reducer)
    data = [bytearray(b"mine" * 250) for _ in range(3)]
    for index, piece in enumerate(data):
        transfer.push(1, chunk(0, index, piece))
    run_until(transfer, [reducer], lambda _: len(reducer.arrived) == 3)
    reducer.own.send(result(0, 0, b"sums" * 250) + result(0, 1, b"sums" * 250)[:-1])
    reducer.own.close()
    events = run_until(transfer, [], lambda events: of(events, Lost))
    assert events == [Result(1, 0), Lost(1, "the other side closed the connection")]
    assert data == [b"sums" * 250, b"mine" * 250, b"mine" * 250]
    # Frames pushed before the next connection are dropped.
    transfer.push(1, chunk(0, 3, bytearray(1000)))
    assert transfer.unsent() == 0
    assert transfer.run(0) == []
    again = reducers()
    attach(transfer, 1, again, position=1)
    transfer.push(1, chunk(0, 1, data[1]))
    run_until(transfer, [again], lambda _: again.arrived)
    again.own.send(result(0, 1, b"sums" * 250))
    assert run_until(transfer, [again], len) == [Result(1, 1)]


def test_error_of_a_reducer_is_reported_before_the_end_of_its_connection(
    make: Make, reducers: Reducers
) -> None:
    """spec/reduction#reports: A rank receives the error even while it sends."""
    transfer, reducer = make(1, PLENTY), reducers(4096)
    attach(transfer, 0, reducer)
    transfer.push(0, chunk(0, 0, bytearray(1 << 20)))
    transfer.run(0)
    reducer.own.send(message(Kind.ERROR, b"rank 3 did it"))
    reducer.own.close()
    messages, lost = run_until(transfer, [], lambda events: of(events, Lost))
    assert isinstance(messages, Message) and messages.payload == b"rank 3 did it"
    assert isinstance(lost, Lost) and lost.cause


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.DATA, Kind.FINAL, Kind.RESULT}))
def test_message_longer_than_the_limit_ends_the_connection(
    make: Make, reducers: Reducers, kind: Kind
) -> None:
    """spec/reduction: Frames have a maximum length."""
    limit = wire.MAX_TEXT
    transfer, reducer = make(1, PLENTY), reducers()
    attach(transfer, 0, reducer)
    reducer.own.send(message(kind, b"x" * limit) + message(kind, b"x" * (limit + 1)))
    messages, lost = run_until(transfer, [], lambda events: of(events, Lost))
    assert messages == Message(0, wire.Header(kind, nbytes=limit), b"x" * limit)
    assert isinstance(lost, Lost) and lost.cause == wire.VIOLATION


STRANGE = {
    "magic": b"HTTP/1.1 200 OK\r\n" * 4,
    "kind": b"TSR2\x63" + bytes(wire.HEADER.size - 5),
    "operation": result(8, 0, bytes(400)),
    "chunk": result(7, 1, bytes(400)),
    "length": wire.pack(header(Kind.RESULT, 7, 0, 400)._replace(nbytes=396)),
    "size": result(7, 0, bytes(404)),
    "type": wire.pack(header(Kind.RESULT, 7, 0, 400)._replace(dtype=DType.INT32)),
    "bounds": wire.pack(header(Kind.RESULT, 7, 1000, 400)),
    "huge": wire.pack(header(Kind.RESULT, 7, 0, 400)._replace(nbytes=2**32 - 1)),
}


@pytest.mark.parametrize("case", STRANGE)
def test_invalid_frame_ends_the_connection(make: Make, reducers: Reducers, case: str) -> None:
    """spec/reduction#security: Frames are limited, and no byte of an invalid frame is written to a tensor."""
    transfer, reducer = make(1, PLENTY), reducers()
    attach(transfer, 0, reducer)
    mine = bytearray(b"mine" * 100)
    transfer.push(0, chunk(7, 0, mine))
    run_until(transfer, [reducer], lambda _: reducer.arrived)
    reducer.own.send(STRANGE[case])
    (lost,) = run_until(transfer, [], len)
    assert isinstance(lost, Lost) and lost.cause == wire.VIOLATION
    assert mine == b"mine" * 100


def test_result_for_a_frame_that_was_not_sent_closes_the_connection(make: Make, reducers: Reducers) -> None:
    """spec/reduction#security: No byte of it is written to a tensor."""
    nothing, half, again = reducers(), reducers(4096), reducers(4096)
    transfer = make(3, PLENTY)
    for lane, reducer in enumerate((nothing, half, again)):
        attach(transfer, lane, reducer)
    # A result that is sent again precedes the frame without a result.
    later = bytearray(b"mine" * 100)
    transfer.push(2, final(0, 0, bytes(400_000)))
    transfer.push(2, chunk(0, 1, later))
    again.own.send(result(0, 1, bytes(400)))
    transfer.push(1, final(0, 0, bytes(400)))
    mine = bytearray(b"mine" * 100_000)
    transfer.push(1, chunk(0, 1, bytearray(400_000)))
    transfer.push(1, chunk(0, 2, mine))
    nothing.own.send(result(0, 0, bytes(400)))
    half.own.send(result(0, 2, bytes(400_000))[:400])
    events = run_until(transfer, [], lambda events: len(events) == 3)
    causes = {event.lane: event.cause for event in events if isinstance(event, Lost)}
    assert causes[0] == causes[2] == wire.VIOLATION
    assert causes[1]
    assert mine == b"mine" * 100_000 and later == b"mine" * 100


def test_tensor_memory_is_released_after_its_result(make: Make, reducers: Reducers) -> None:
    """spec/reduction: Tensors are neither copied nor retained, nor freed during the transfer."""
    transfer, reducer = make(1, PLENTY), reducers(4096)
    attach(transfer, 0, reducer)
    held = list[weakref.ref[object]]()

    def push(index: int) -> None:
        data = np.full(8_000, index, np.float32)
        held.append(weakref.ref(data))
        transfer.push(0, chunk(0, index, data.data.cast("B")))

    for index in range(3):
        push(index)
    gc.collect()
    assert all(reference() is not None for reference in held)
    settle(transfer, [reducer])
    for index, reference in enumerate(reducer.arrived):
        assert reference.payload == np.full(8_000, index, np.float32).tobytes()
    for index in range(2):
        reducer.own.setblocking(True)
        sender = threading.Thread(target=reducer.own.sendall, args=(result(0, index, bytes(32_000)),))
        sender.start()
        run_until(transfer, [], len)
        sender.join()
    assert [reference() is None for reference in held] == [True, True, False]
    transfer.detach(0)
    assert held[2]() is None


def test_results_on_many_busy_connections_are_written_to_the_correct_tensors(
    make: Make, reducers: Reducers
) -> None:
    """spec/reduction#exactness: Every result reaches its target, in the order of its lane (connection). The
    streams arrive in pieces of any size."""
    chance = random.Random(6)
    lanes = [reducers(chance.choice((4096, 0))) for _ in range(70)]
    transfer = make(len(lanes), 100_000)
    data = [[bytearray(b"mine" * chance.randrange(1, 3000)) for _ in range(6)] for _ in lanes]
    for lane, reducer in enumerate(lanes):
        attach(transfer, lane, reducer)
    for index in range(6):
        for lane, frames in enumerate(data):
            transfer.push(lane, chunk(index, lane, frames[index], row=index))
    answers = [bytearray() for _ in lanes]
    answered = [0] * len(lanes)
    events = list[Event]()
    limit = time.monotonic() + TEST_TIMEOUT
    while len(events) < 6 * len(lanes):
        assert time.monotonic() < limit
        events += transfer.run(0.001)
        for lane, reducer in enumerate(lanes):
            reducer.read(chance.randrange(1, 60_000))
            while answered[lane] < len(reducer.arrived):
                index = answered[lane]
                answers[lane] += result(index, lane, b"sums" * (len(data[lane][index]) // 4))
                answered[lane] += 1
            if answers[lane]:
                try:
                    count = reducer.own.send(answers[lane][: chance.randrange(1, 60_000)])
                except BlockingIOError:
                    continue
                del answers[lane][:count]
    for lane in range(len(lanes)):
        assert [event for event in events if isinstance(event, Result) and event.lane == lane] == [
            Result(lane, position) for position in range(6)
        ]
    assert all(event == b"sums" * (len(event) // 4) for frames in data for event in frames)
    assert transfer.unsent() == 0


def test_frame_with_a_wrong_length_is_rejected(reducers: Reducers) -> None:
    """spec/reduction: The caller gets the error before any byte is read or written out of bounds."""
    transfer = NativeTransfer(shared_library(), 1, PLENTY)
    attach(transfer, 0, reducers())
    good = chunk(0, 0, bytearray(400))
    for bad in (
        good._replace(payload=memoryview(bytearray(396))),
        good._replace(target=memoryview(bytearray(396))),
    ):
        with pytest.raises(ValueError, match="does not have the length"):
            transfer.push(0, bad)
    with pytest.raises((TypeError, ValueError, BufferError)):
        transfer.push(0, good._replace(target=memoryview(bytes(400))))
    assert transfer.unsent() == 0
    transfer.close()


def test_unusable_socket_raises_os_error(make: Make) -> None:
    """spec/reduction#losses: A lost connection ends the lane (the link to one reducer), not the process."""
    transfer = make(1, PLENTY)
    with socket.socket() as closed:
        pass  # The socket is closed now.
    with pytest.raises(OSError):
        transfer.attach(0, closed, 0, 0)
    transfer.push(0, Frame(header(Kind.DATA, 0, 0, 4), memoryview(bytes(4)), None, 0))
    assert transfer.run(0) == []
