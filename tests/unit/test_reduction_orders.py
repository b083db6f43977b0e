"""What a reducer makes of frames that come in any order, with any breaks: always the rank-ordered sum."""

import random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.reduction_desk import Desk, numbers, sums
from trainshed_reduction.reducer.groups import Member
from trainshed_reduction.wire import DType, Header, Kind, Reduction


class SimulatedWorker:
    """A rank that does what the protocol says, one step at a time."""

    def __init__(
        self, desk: Desk, rank: int, inputs: list[list[bytes]], shapes: list[Header]
    ) -> None:
        self.desk = desk
        self.rank = rank
        self.shapes = shapes
        self.inputs = inputs[rank]
        self.world = len(inputs)
        self.results: list[bytes] = []
        self.read = 0
        self.member: Member | None = None

    def step(self) -> bool:
        """Does the next thing that there is to do, if any."""
        desk, member = self.desk, self.member
        if member is None or member in desk.dismissed:
            self.member = desk.join(self.rank, self.world, received=len(self.results))
            self.read = 0
            return True
        if member not in desk.starts or member.position == len(self.shapes):
            return False
        position = member.position
        shape = self.shapes[position]
        is_here = position < len(self.results)
        desk.send(
            member,
            self.results[position] if is_here else self.inputs[position],
            DType(shape.dtype),
            kind=Kind.FINAL if is_here else Kind.DATA,
            reduction=Reduction(shape.reduction),
            operation=shape.operation,
            chunk=shape.chunk,
            total=shape.total,
            step=shape.step,
            acknowledged=len(self.results),
        )
        return True

    def receive(self) -> bool:
        member = self.member
        waiting = self.desk.results.get(member, [])[self.read :] if member else []
        if member is None or member in self.desk.dismissed or not waiting:
            return False
        header, data = waiting[0]
        shape = self.shapes[len(self.results)]
        assert (header.operation, header.chunk) == (shape.operation, shape.chunk)
        self.results.append(data)
        self.read += 1
        return True

    def break_off(self) -> None:
        if self.member is not None and self.member not in self.desk.dismissed:
            self.desk.dismissed[self.member] = ""
            self.desk.lose(self.member)


def rank_ordered(parts: list[bytes], shape: Header) -> bytes:
    """The result by the plainest means."""
    half = {DType.FLOAT16: np.float16, DType.BFLOAT16: None}
    dtype = DType(shape.dtype)
    full: Any = {
        DType.FLOAT64: np.float64,
        DType.INT32: np.int32,
        DType.INT64: np.int64,
    }.get(dtype, np.float32)

    def widened(data: bytes) -> Any:
        if dtype is DType.BFLOAT16:
            return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        return np.frombuffer(data, half.get(dtype, full)).astype(full)

    total = widened(parts[0])
    for part in parts[1:]:
        total = total + widened(part)
    if shape.reduction == Reduction.AVERAGE:
        total = total / full(len(parts))
    if dtype is DType.BFLOAT16:
        # Of the two neighbours the nearer one, of two equally near ones the even.
        below = total.view(np.uint32) >> 16
        cut = total.view(np.uint32) & 0xFFFF
        up = (cut > 0x8000) | ((cut == 0x8000) & (below & 1 == 1))
        return (below + up).astype(np.uint16).tobytes()
    return total.astype(half.get(dtype, full)).tobytes()


def _work(world: int, source: random.Random) -> tuple[list[Header], list[list[bytes]]]:
    """Some operations of a few chunks each, and every rank's input."""
    shapes: list[Header] = []
    for operation in range(source.randint(1, 3)):
        dtype = source.choice(list(DType))
        reduction = Reduction.SUM if dtype.is_integer else source.choice(list(Reduction))
        step, total = source.randint(1, 4), source.randint(1, 12)
        for chunk in range(-(-total // step)):
            count = min(step, total - chunk * step)
            shapes.append(
                Header(
                    Kind.DATA,
                    dtype,
                    reduction,
                    0,
                    chunk,
                    operation,
                    total,
                    step,
                    count * dtype.itemsize,
                )
            )
    generator = np.random.default_rng(source.randrange(2**32))

    def part(shape: Header) -> bytes:
        count = shape.nbytes // DType(shape.dtype).itemsize
        values = generator.normal(0, 1000, count)
        match DType(shape.dtype):
            case DType.BFLOAT16:
                return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
            case dtype:
                return values.astype(dtype.name.lower()).tobytes()

    return shapes, [[part(shape) for shape in shapes] for _ in range(world)]


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(world=st.integers(1, 4), source=st.randoms(use_true_random=False))
def test_every_result_is_the_rank_ordered_sum(world: int, source: random.Random) -> None:
    """spec/reduction#losses: whatever the order of arrival, and however often connections break, with results
    on their way."""
    desk = Desk()
    shapes, inputs = _work(world, source)
    workers = [SimulatedWorker(desk, rank, inputs, shapes) for rank in range(world)]
    for _ in range(source.randint(0, 60)):
        worker = source.choice(workers)
        action = source.randrange(12)
        if action == 0:
            worker.break_off()
        elif action < 5:
            worker.receive()
        else:
            worker.step()
    while any(worker.step() or worker.receive() for worker in workers):
        pass
    for worker in workers:
        for shape, result, *parts in zip(shapes, worker.results, *inputs, strict=True):
            assert result == rank_ordered(parts, shape)
    assert desk.sessions.chunks_in_flight == 0
    desk.results.clear()
    assert desk.buffers.used_bytes == 0
    assert not desk.completed or desk.completed == [world]


def test_a_result_that_a_rank_brings_is_not_sent_back_to_it() -> None:
    """spec/reduction#exactness: who has a result already needs none; who has not gets these very bytes."""
    desk = Desk()
    first, second = desk.join(0, received=1), desk.join(1, received=0)
    assert desk.starts == {first: 0, second: 0}
    desk.send(second, numbers(99))
    desk.send(first, numbers(7), kind=Kind.FINAL)
    assert sums(desk, first) == []
    assert sums(desk, second) == [[7]]


def test_acknowledged_is_what_all_ranks_have() -> None:
    """spec/reduction#exactness: only then may a rank forget a result."""
    desk = Desk()
    members = desk.group(2)
    for position in range(3):
        for member, has in zip(members, (position, min(position, 1)), strict=True):
            desk.send(member, numbers(1), operation=position, acknowledged=has)
    assert [header.acknowledged for header, _ in desk.results[members[0]]] == [0, 1, 1]
