"""The path of GPU tensors, simulated on the CPU: its streams and events do nothing, its slices are small.

Sums are right, failures are reported, and pinned memory is released. One process without a group; prints
"ok".
"""

import contextlib
import threading

import torch

from trainshed_reduction.client.operations import Operation, ReductionFailed
from trainshed_reduction.pytorch import pipeline
from trainshed_reduction.wire import Reduction

COUNT = 50_001  # Not a multiple of two, and many slices.
SUMS = 8
empty = torch.empty


class Stream:
    def __init__(self, device=None):
        pass

    def wait_event(self, event):
        pass


class Event:
    def __init__(self, blocking=False):
        pass

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass


class Doubling:
    """Replaces a communicator: the other rank has the same numbers. Lost after `left` slices."""

    left = 10_000

    def issue(self, data, dtype, reduction, number):
        self.left -= 1
        if self.left < 0:
            raise ReductionFailed("gone")
        torch.frombuffer(memoryview(data).cast("B").cast("f"), dtype=torch.float32).mul_(2)
        operation = Operation(number)
        threading.Timer(0.001, operation.finish).start()
        return operation


class Node:
    """Replaces a node: this rank plays both ranks."""

    def __init__(self, is_one_at_a_time):
        self.is_one_at_a_time = is_one_at_a_time
        self.is_shut_down = False

    def pad(self, flat):
        return torch.cat([flat, flat.new_zeros(1)])

    def scatter(self, flat, average):
        return flat.clone()

    def gather(self, flat, part):
        flat.copy_(part)

    def shutdown(self):
        self.is_shut_down = True


def create_unpinned(*shape, pin_memory=False, **more):
    return empty(*shape, **more)


def submit(made):
    tensors = [torch.full((COUNT,), float(number)) for number in range(SUMS)]
    works = [made.submit(tensor, Reduction.SUM, at) for at, tensor in enumerate(tensors)]
    return list(zip(tensors, works, strict=True))


def check(node):
    reducers = Doubling()
    made = pipeline.Pipeline(reducers, "cuda", node)
    for number, (tensor, work) in enumerate(submit(made)):
        assert work.wait() and tensor.unique().tolist() == [2.0 * number]
        assert work.get_future().wait()[0] is tensor
    reducers.left = 5
    for _, work in submit(made):
        try:
            work.wait()
        except ReductionFailed as error:
            assert str(error) == "gone"
        else:
            raise AssertionError("no error")
    (copies,) = made._copies.values()
    assert copies._buffers.qsize() == pipeline._BUFFERS
    made.close()
    assert node is None or node.is_shut_down


torch.cuda.Stream, torch.cuda.Event = Stream, Event
torch.cuda.stream = lambda stream: contextlib.nullcontext()
torch.cuda.current_stream = lambda device=None: Stream()
torch.Tensor.record_stream = lambda self, stream: None
torch.empty = create_unpinned
pipeline.SLICE = 4096
pipeline.CpuCopies = lambda: pipeline.GpuCopies(torch.device("cpu"))
for node in (None, Node(False), Node(True)):
    check(node)
print("ok")
