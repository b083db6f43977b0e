"""Tests that results are the rank-ordered sums for every order of frames and all broken connections."""

import contextlib
import itertools
import queue
import random
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reduction import native_library
from tests.reduction.ranks import NUMPY, ordered_sum, to_bfloat16
from tests.reduction.reducers import TOKEN
from tests.reduction.workers import SECONDS, Worker
from trainshed_reduction import proof, wire
from trainshed_reduction.native.library import Library
from trainshed_reduction.reducer.server import Server
from trainshed_reduction.wire import DType, Header, Kind, Reduction, Start

_numbers = itertools.count()


class ReducerThread:
    """A reducer's thread in this process."""

    def __init__(self, library: Library) -> None:
        self.said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._server = Server(
            self._listener, TOKEN, library=library, outlet=lambda what, value: self.said.put((what, value))
        )
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()

    def close(self) -> None:
        self._server.end()
        self._thread.join()
        self._listener.close()


@pytest.fixture(scope="module")
def serving() -> Iterator[ReducerThread]:
    made = ReducerThread(native_library.shared_library())
    yield made
    made.close()


class SimulatedWorker:
    """A rank that follows the protocol, one step per call."""

    def __init__(
        self, port: int, group: str, rank: int, inputs: list[list[bytes]], shapes: list[Header]
    ) -> None:
        self.port = port
        self.group = group
        self.rank = rank
        self.shapes = shapes
        self.inputs = inputs[rank]
        self.world = len(inputs)
        self.results: list[bytes] = []
        self.position: int | None = None
        self.worker: Worker | None = None

    @property
    def is_done(self) -> bool:
        return len(self.results) == len(self.shapes) and self.position == len(self.shapes)

    def step(self) -> None:
        """Do the next step that is possible, if any."""
        if self.worker is None:
            have = len(self.results)
            self.worker = Worker(self.port, self.rank, self.world, group=self.group, received=have)
            self.position = None
        elif self.position is not None and self.position < len(self.shapes):
            shape = self.shapes[self.position]
            is_here = self.position < len(self.results)
            data = (self.results if is_here else self.inputs)[self.position]
            header = shape._replace(
                kind=Kind.FINAL if is_here else Kind.DATA,
                rank=self.rank,
                acknowledged=len(self.results),
                ordinal=shape.operation + 1,
            )
            with contextlib.suppress(ConnectionError):
                self.worker.connection.sendall(wire.pack(header) + data)
            self.position += 1

    def receive(self, seconds: float = 0.0) -> None:
        if self.worker is None:
            return
        self.worker.connection.settimeout(SECONDS)
        if not select.select([self.worker.connection], [], [], seconds)[0]:
            return
        try:
            until = time.monotonic() + SECONDS
            header, data = proof.read_frame(self.worker.connection, until, wire.MAX_CHUNK)
        except ConnectionError:
            self.break_off()
            return
        if header.kind is Kind.STATUS:
            return  # On a slow machine, this thread may not have sent the missing chunk yet.
        if header.kind is Kind.START:
            self.position = wire.unpack_message(Start, data).position
            return
        shape = self.shapes[len(self.results)]
        assert (header.kind, header.operation, header.chunk) == (Kind.RESULT, shape.operation, shape.chunk)
        self.results.append(data)

    def break_off(self) -> None:
        if self.worker is not None:
            self.worker.connection.close()
            self.worker = None


def rank_ordered_sum(parts: list[bytes], shape: Header) -> bytes:
    dtype = DType(shape.dtype)
    arrays = [np.frombuffer(part, NUMPY[dtype]) for part in parts]
    return ordered_sum(arrays, dtype, Reduction(shape.reduction)).tobytes()


def _work(world: int, source: random.Random) -> tuple[list[Header], list[list[bytes]]]:
    """Return some operations with a few chunks each, and the input of every rank."""
    shapes: list[Header] = []
    for operation in range(source.randint(1, 3)):
        dtype = source.choice(list(DType))
        reduction = Reduction.SUM if dtype.is_integer else source.choice(list(Reduction))
        step, total = source.randint(1, 4), source.randint(1, 12)
        for chunk in range(-(-total // step)):
            size = min(step, total - chunk * step) * dtype.itemsize
            shapes.append(Header(Kind.DATA, dtype, reduction, 0, chunk, operation, total, step, size))
    generator = np.random.default_rng(source.randrange(2**32))

    def part(shape: Header) -> bytes:
        count = shape.nbytes // DType(shape.dtype).itemsize
        values = generator.normal(0, 1000, count)
        if shape.dtype == DType.BFLOAT16:
            return to_bfloat16(values.astype(np.float32)).tobytes()
        return values.astype(NUMPY[DType(shape.dtype)]).tobytes()

    return shapes, [[part(shape) for shape in shapes] for _ in range(world)]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(world=st.integers(1, 4), source=st.randoms(use_true_random=False))
def test_result_is_the_rank_ordered_sum_for_every_arrival_order_of_frames(
    serving: ReducerThread, world: int, source: random.Random
) -> None:
    """spec/reduction#losses: The order of arrival is random, and connections break at random times, also
    while results are in flight."""
    shapes, inputs = _work(world, source)
    group = f"orders {next(_numbers)}"
    workers = [SimulatedWorker(serving.port, group, rank, inputs, shapes) for rank in range(world)]
    for _ in range(source.randint(0, 60)):
        worker = source.choice(workers)
        action = source.randrange(12)
        if action == 0:
            worker.break_off()
        elif action < 5:
            worker.receive()
        else:
            worker.step()
    deadline = time.monotonic() + SECONDS
    while not all(worker.is_done for worker in workers):
        assert time.monotonic() < deadline
        for worker in workers:
            worker.step()
            worker.receive(0.001)
    for worker in workers:
        worker.break_off()
        for shape, result, *parts in zip(shapes, worker.results, *inputs, strict=True):
            assert result == rank_ordered_sum(parts, shape)


def _group(serving: ReducerThread, received: Sequence[int], name: str = "") -> list[Worker]:
    """Connect the ranks of a group. `received`: the number of results that each rank has."""
    name = name or f"group {next(_numbers)}"
    workers = [
        Worker(serving.port, rank, len(received), group=name, received=has)
        for rank, has in enumerate(received)
    ]
    assert {worker.start().position for worker in workers} == {min(received)}
    return workers


def test_reducer_forwards_a_known_result_only_to_ranks_that_lack_the_result(serving: ReducerThread) -> None:
    """spec/reduction#exactness: Ranks without the result get exactly the bytes of the FINAL frame."""
    first, second = _group(serving, [1, 0])
    second.send(bytes(4))
    first.send(b"7777", kind=Kind.FINAL)
    assert second.result() == b"7777"
    for worker in (first, second):
        worker.send(bytes(8), operation=1)
    assert first.result() == second.result() == bytes(8)


def test_reducer_acknowledges_only_results_that_all_ranks_have_received(serving: ReducerThread) -> None:
    """spec/reduction#exactness: A rank may release a result only after that."""
    first, second = _group(serving, [0, 0])
    for position in range(3):
        first.send(bytes(4), operation=position, acknowledged=position)
        second.send(bytes(4), operation=position, acknowledged=min(position, 1))
        assert first.frame()[0].acknowledged == second.frame()[0].acknowledged == min(position, 1)


@pytest.mark.parametrize("has_it", [True, False])
def test_group_recovers_from_a_lost_connection_after_a_rank_has_left(
    serving: ReducerThread, has_it: bool
) -> None:
    """spec/reduction#losses: Ranks with its results send them. If no rank has them, the error reports
    this."""
    name = f"left {next(_numbers)}"
    members = _group(serving, [0, 0, 0], name)
    for worker in members:
        worker.send(bytes(4))
    for worker in members:
        worker.result()
    members[2].bye()
    assert members[2].end() == ""
    members[0].connection.close()
    assert members[1].end() == ""
    first = Worker(serving.port, 0, 3, group=name)
    second = Worker(serving.port, 1, 3, group=name, received=int(has_it))
    assert first.start().position == second.start().position == 0
    first.send(bytes(4))
    second.send(b"3333", kind=Kind.FINAL if has_it else Kind.DATA)
    if has_it:
        assert first.result() == b"3333"
    else:
        assert first.end() == second.end() == "rank 2 has left the group after operation 1"
