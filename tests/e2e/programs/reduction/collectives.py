"""Operations of programs with process groups besides DDP, for one rank: prints "ok NAME" for each, and stops
at the first failure.

All sums are compared bit for bit with the sums in rank order, which gloo does not guarantee.
"""

import atexit
import os
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LARGE = 70_001  # Elements. With 4 bytes each, more than the minimum for reducers, and several chunks.
HALVES = (torch.float16, torch.bfloat16)


def inputs(dtype=torch.float32, count=LARGE, seed=0, ranks=None):
    """Return the tensors of all ranks, which each rank can compute."""
    return [
        (100 * torch.randn(count, generator=torch.Generator().manual_seed(97 * seed + rank))).to(dtype)
        for rank in (range(WORLD) if ranks is None else ranks)
    ]


def in_order(tensors, average=False):
    total = tensors[0].to(torch.float32 if tensors[0].dtype in HALVES else tensors[0].dtype, copy=True)
    for tensor in tensors[1:]:
        total += tensor
    return (total / len(tensors) if average else total).to(tensors[0].dtype)


def same(result, wanted):
    # Compare bits: NaN and -0 count.
    assert result.dtype == wanted.dtype and result.shape == wanted.shape
    assert torch.equal(result.view(-1).view(torch.uint8), wanted.view(-1).view(torch.uint8))


def check_types():
    for seed, dtype in enumerate((torch.float32, torch.float64, *HALVES, torch.int32, torch.int64)):
        tensors = inputs(dtype, 2 * LARGE, seed)
        mine = tensors[RANK].clone()
        dist.all_reduce(mine)
        same(mine, in_order(tensors))


def check_average():
    for dtype in (torch.float32, torch.float64, *HALVES):
        tensors = inputs(dtype, 2 * LARGE, 7)
        mine = tensors[RANK].clone()
        dist.all_reduce(mine, op=dist.ReduceOp.AVG)
        same(mine, in_order(tensors, average=True))


def check_async():
    several = [inputs(seed=seed) for seed in range(4)]
    mine = [tensors[RANK].clone().view(1, -1) for tensors in several]
    small = torch.full((3,), float(RANK))
    works = [dist.all_reduce(tensor, async_op=True) for tensor in mine[:2]]
    works.append(dist.all_reduce(small, async_op=True))  # A native sum in between.
    works += [dist.all_reduce(tensor, async_op=True) for tensor in mine[2:]]
    for work in reversed(works):
        assert work.wait() and work.is_completed()
    for tensor, tensors in zip(mine, several, strict=True):
        same(tensor[0], in_order(tensors))
    assert small.tolist() == [sum(range(WORLD))] * 3


def check_futures():
    first, second = inputs(seed=1), inputs(seed=2)
    own, two = first[RANK].clone(), second[RANK].clone()

    def then(future):  # Like PowerSGD: a callback that waits for another sum.
        assert future.value()[0] is own or torch.equal(future.value()[0], own)
        return dist.all_reduce(two, async_op=True).get_future().wait()[0]

    work = dist.all_reduce(own, async_op=True)
    same(work.get_future().then(then).wait(), in_order(second))
    same(work.result()[0], in_order(first))


def check_native():
    for operation, wanted in ((dist.ReduceOp.MAX, WORLD - 1.0), (dist.ReduceOp.MIN, 0.0)):
        tensor = torch.full((LARGE,), float(RANK))
        dist.all_reduce(tensor, op=operation)
        assert tensor.unique().tolist() == [wanted]
    tensor = torch.full((LARGE,), RANK, dtype=torch.uint8)
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [sum(range(WORLD))]
    strided = torch.full((1000, 1000), float(RANK)).t()[:, :900]
    assert not strided.is_contiguous()
    dist.monitored_barrier()
    dist.all_reduce(torch.zeros(0))
    sparse = torch.sparse_coo_tensor([[RANK]], [1.0], (WORLD,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * WORLD
    complex_ = torch.full((LARGE,), complex(RANK, 1))
    dist.all_reduce(complex_)
    assert torch.view_as_real(complex_)[-1].tolist() == [sum(range(WORLD)), WORLD]
    with dist._coalescing_manager():
        several = [torch.ones(LARGE), torch.ones(3)]
        for tensor in several:
            dist.all_reduce(tensor)
    assert [tensor.unique().tolist() for tensor in several] == [[WORLD], [WORLD]]


def check_others():
    tensor = torch.full((LARGE,), float(RANK))
    dist.broadcast(tensor, 1)
    assert tensor.unique().tolist() == [1.0]
    parts = [torch.empty(5) for _ in range(WORLD)]
    dist.all_gather(parts, torch.full((5,), float(RANK)))
    assert [part[0].item() for part in parts] == list(range(WORLD))
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": rank} for rank in range(WORLD)]
    part = torch.empty(4)
    dist.reduce_scatter_tensor(part, torch.ones(4 * WORLD))
    assert part.tolist() == [WORLD] * 4
    dist.reduce(torch.ones(LARGE), 0)
    if RANK == 0:
        dist.send(torch.ones(3), 1)
    elif RANK == 1:
        received = torch.zeros(3)
        dist.recv(received, 0)
        assert received.tolist() == [1.0] * 3
    dist.barrier()


def check_functional():
    # The calls of functional collectives and compiled programs.
    operators = torch.ops._c10d_functional
    tensors = inputs(seed=3)
    for operation in ("sum", "avg"):
        begun = operators.all_reduce(tensors[RANK], operation, dist.group.WORLD.group_name)
        same(operators.wait_tensor(begun), in_order(tensors, operation == "avg"))


def check_subgroups():
    groups = [dist.new_group([0, 1]), dist.new_group([WORLD - 1, 0])]
    for ranks, group in zip(([0, 1], sorted([WORLD - 1, 0])), groups, strict=True):
        if RANK in ranks:
            tensors = inputs(seed=4, ranks=ranks)
            mine = tensors[ranks.index(RANK)].clone()
            dist.all_reduce(mine, group=group)
            same(mine, in_order(tensors))
    if RANK in (0, 1):
        dist.destroy_process_group(groups[0])
    own = dist.new_group([RANK], use_local_synchronization=True)
    alone = torch.full((LARGE,), 2.0)
    dist.all_reduce(alone, group=own)
    assert alone.unique().tolist() == [2.0]
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("data",))
    tensors = inputs(seed=5)
    mine = tensors[RANK].clone()
    dist.all_reduce(mine, group=mesh.get_group("data"))
    same(mine, in_order(tensors))


def check_threads():
    # Another thread queries a process group while this one creates some.
    seen = []

    def look():
        while not seen or len(seen) < 200:
            seen.append(isinstance(dist.group.WORLD, dist.distributed_c10d.ProcessGroup))

    thread = threading.Thread(target=look)
    thread.start()
    dist.new_group(list(range(WORLD)))
    thread.join()
    assert all(seen)


def check_forks():
    rows = list(DataLoader(list(range(8)), batch_size=4, num_workers=1))
    assert [row.tolist() for row in rows] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    child = os.fork()
    if child == 0:
        # Exit handlers run, as in a program without cleanup. gloo's own exit would wait forever.
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(child, 0)
    check_async()


def begin_again(backend, store):
    dist.destroy_process_group()
    dist.init_process_group(
        backend, init_method=os.environ["TEST_STORE"] + store, rank=RANK, world_size=WORLD
    )


def check_again():
    begin_again("gloo", "a")
    check_async()
    begin_again("gloo", "b")
    check_async()


def main():
    dist.init_process_group("gloo")
    assert dist.get_backend() == "gloo"
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            began = time.monotonic()
            check()
            print("ok", name[6:], f"{time.monotonic() - began:.1f} s", flush=True)
    # No destroy_process_group, because programs forget it. PyTorch rarely aborts if its last collective was
    # its own (pytorch/pytorch#179291).
    for _ in range(10):
        dist.all_reduce(torch.ones(1_000_000))


if __name__ == "__main__":
    main()
