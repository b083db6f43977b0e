"""GPU tensors that a node pads: memory from the way down is read on the way up, and must not be reused
before. One process without a group simulates the node and the reducers; prints "ok".
"""

import sys

import torch

from trainshed_reduction.client.operations import Operation
from trainshed_reduction.pytorch.pipeline import Pipeline
from trainshed_reduction.wire import Reduction

PLACES = 2
COUNT = 3_000_001  # Not a multiple of the number of ranks.
SUMS = 24


class Doubling:
    """Replaces a communicator: the other node has the same numbers."""

    def issue(self, data, dtype, reduction, number):
        numbers = memoryview(data).cast("B").cast("f")
        torch.frombuffer(numbers, dtype=torch.float32).mul_(2)
        operation = Operation(number)
        operation.finish()
        return operation


class SlowNode:
    """Replaces a node: this rank plays both ranks, and its gathered data arrives late on its stream."""

    is_one_at_a_time = False

    def __init__(self):
        self.padded_ones = 0

    def pad(self, tensor):
        flat = tensor.view(-1)
        self.padded_ones += 1
        return torch.cat([flat, flat.new_zeros(-flat.numel() % PLACES)])

    def scatter(self, flat, average):
        return flat.clone()

    def gather(self, flat, part):
        # Here the host is far ahead: the last reference to the padded tensor is dropped before this has run.
        torch.cuda._sleep(20_000_000)
        flat.copy_(part)

    def shutdown(self):
        pass


def main():
    if not torch.cuda.is_available():
        sys.exit(77)
    node = SlowNode()
    pipeline = Pipeline(Doubling(), None, "cuda", node)
    tensors = [torch.full((COUNT,), float(number), device="cuda") for number in range(SUMS)]
    works = [pipeline.submit(tensor, Reduction.SUM, number) for number, tensor in enumerate(tensors)]
    for number, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
        work.wait()
        assert tensor.unique().tolist() == [2.0 * number], number
    assert node.padded_ones == SUMS
    pipeline.close()
    print("ok")


main()
