"""The timed work of a worker. One operation runs at a time, between untimed calls of `prepare` and
`check`."""

import hashlib
import importlib
import time
from typing import Any, Protocol

import numpy as np

from bench.reduction import data

Answer = dict[str, Any]
WIDTH = 1024
"""Width of the square layers of the model."""
_BATCH = 8
_SEED = 20_000


class Work(Protocol):
    def prepare(self, number: int) -> None:
        """Prepare the operation `number`, whose data differ from those of all other operations."""
        ...

    def run(self) -> None:
        """Run the timed part. It returns when this rank has its result."""
        ...

    def check(self) -> Answer:
        """Return the result of this rank: its `digest` and, on rank 0, the checks."""
        ...


class Communication(Protocol):
    """A worker's connection to the other workers. `all_reduce` sums an array in place. `data` fills an
    array."""

    rank: int
    world: int

    def buffer(self, array: data.Array, dtype: str) -> Any: ...

    def all_reduce(self, buffer: Any) -> None: ...

    def facts(self) -> Answer:
        """Return versions and the type of the process group, for the report."""
        ...


class AllReduce:
    """Sums `nbytes` bytes of each rank over all ranks."""

    def __init__(self, ranks: Communication, nbytes: int, dtype: str) -> None:
        self._ranks = ranks
        self._dtype = dtype
        self._own = data.draw_numbers(ranks.rank, nbytes, dtype)
        self._array = np.empty_like(self._own)
        self._buffer = ranks.buffer(self._array, dtype)
        self._right = data.expected_sum(ranks.world, nbytes, dtype) if ranks.rank == 0 else None
        self._number = 0

    def prepare(self, number: int) -> None:
        self._number = number
        data.rotate(self._array, self._own, number)

    def run(self) -> None:
        self._ranks.all_reduce(self._buffer)

    def check(self) -> Answer:
        answer: Answer = {"digest": hashlib.sha256(self._array.data).hexdigest()}
        if self._right is not None:
            finding = data.compare(self._array, self._dtype, self._number, self._right)
            answer |= {
                "ordered": finding.ordered,
                "largest": finding.largest,
                "rms": finding.rms,
                "tolerance": self._right.tolerance,
            }
        return answer


class Training:
    """A step of DistributedDataParallel with a model whose parameters have `nbytes` bytes. `bucket`: MB of
    gradients per bucket; None = the framework's default."""

    def __init__(self, rank: int, nbytes: int, bucket: float | None) -> None:
        torch: Any = importlib.import_module("torch")
        self._torch = torch
        torch.manual_seed(_SEED)
        layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers_of(nbytes))]
        for layer in layers:
            # Scaled up, because a deep model must learn enough to make differences of the losses visible.
            layer.weight.data.mul_(3**0.5)
        options = {} if bucket is None else {"bucket_cap_mb": bucket}
        self._model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), **options)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)
        self._rank = rank
        self._loss = 0.0

    def prepare(self, number: int) -> None:
        source = self._torch.Generator().manual_seed(number * 1000 + self._rank)
        self._input = self._torch.randn(_BATCH, WIDTH, generator=source)

    def run(self) -> None:
        loss = (self._model(self._input) - self._input).pow(2).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._loss = loss.item()

    def check(self) -> Answer:
        digest, total = hashlib.sha256(), 0.0
        for parameter in self._model.parameters():
            values = parameter.detach().numpy()
            digest.update(values.reshape(-1))
            total += float(values.sum(dtype=np.float64))
        return {"digest": digest.hexdigest(), "loss": self._loss, "parameters": total}


class Torch:
    """Connects as a user's program does: gloo by name, through env://."""

    def __init__(self) -> None:
        torch: Any = importlib.import_module("torch")
        self._torch = torch
        self._group: Any = importlib.import_module("torch.distributed")
        torch.set_num_threads(1)
        self._group.init_process_group("gloo")
        self.rank: int = self._group.get_rank()
        self.world: int = self._group.get_world_size()

    def buffer(self, array: data.Array, dtype: str) -> Any:
        return self._torch.from_numpy(array).view(getattr(self._torch, dtype))

    def all_reduce(self, buffer: Any) -> None:
        self._group.all_reduce(buffer)

    def facts(self) -> Answer:
        group: Any = self._group.group.WORLD.__class__
        return {"torch": self._torch.__version__, "group": f"{group.__module__}.{group.__name__}"}


def layers_of(nbytes: int) -> int:
    return max(1, nbytes // (4 * WIDTH * WIDTH))


def wait_until(moment: float) -> None:
    """Wait until `moment` of the monotonic clock. All processes of a machine have the same monotonic
    clock."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
