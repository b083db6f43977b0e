"""Two ranks that go different ways at one all-reduce, after others where one is only late; TEST_CASE: what
differs.

Says what each rank heard, and after how many seconds.
"""

import os
import threading
import time

import torch
import torch.distributed as dist

from trainshed_reduction.client.running_group import RunningGroup

LARGE = 700_001  # Elements; with 4 bytes each more than the least that reducers get.
OTHERS = {
    "size": torch.ones(1000),
    "type": torch.ones(LARGE, dtype=torch.uint8),
    "order": torch.ones(1000),
    "later": torch.ones(1000),
}

asked = threading.Event()
answer = RunningGroup._answer


def noticed(self, ordinal, others):
    answer(self, ordinal, others)
    asked.set()


RunningGroup._answer = noticed


def late(rank):
    """Whoever comes late, with native operations before and after the one that the others wait for, has done
    no wrong."""
    tensors = [torch.ones(count) for count in (3, LARGE, 3, LARGE)]
    if rank == 1:
        assert asked.wait(60)
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()
    assert [tensor.unique().tolist() for tensor in tensors] == [[2.0]] * 4


def swapped(rank):
    """Nor has who does a native one before and not after, as callbacks of futures may: both get done."""
    small, large = torch.ones(3), torch.ones(LARGE)
    first, second = (large, small) if rank == 0 else (small, large)
    one = dist.all_reduce(first, async_op=True)
    if rank == 1:
        one.wait()
        asked.clear()
        assert asked.wait(60)
    two = dist.all_reduce(second, async_op=True)
    one.wait()
    two.wait()
    assert small.unique().tolist() == large.unique().tolist() == [2.0]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(3))
    late(rank)
    swapped(rank)
    differing = os.environ["TEST_CASE"]
    tensor = torch.ones(LARGE) if rank == 0 else OTHERS[differing]
    began = time.monotonic()
    try:
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 1 and differing == "order":
            dist.all_reduce(torch.ones(2 * LARGE))
        if differing == "later":
            # The other's next is as large as the one that came instead.
            if rank == 1:
                dist.all_reduce(torch.ones(LARGE))
            else:
                work.wait()
                work = dist.all_reduce(torch.ones(LARGE), async_op=True)
        work.wait()
        print("no error")
    except RuntimeError as error:
        print(f"{type(error).__name__} {time.monotonic() - began:.1f} {error}", flush=True)


if __name__ == "__main__":
    main()
