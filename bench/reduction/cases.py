"""The measured cases and their budgets: workers, reducers, links, and operations."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """Operations of one kind.

    `dtype`: "" = training steps. `bucket`: MB of gradients per bucket; None = the framework's default.
    `target`: minimum speedup over gloo. `count`: timed operations per round. An untimed one precedes them.
    """

    title: str
    nbytes: int
    dtype: str = "float32"
    target: float = 0.0
    bucket: float | None = None
    count: int = 3

    @property
    def key(self) -> str:
        return f"{self.dtype or 'training'}-{self.nbytes}-{self.bucket or 0:g}"


@dataclass(frozen=True, slots=True)
class Case:
    """Tasks on one network, which all sides run in turn.

    `rate`, `reducer_rate`: Mbit/s in each direction. `seconds`: approximate duration of a round. `wire`:
    maximum ratio of the bytes that a worker sends to the size of the tensor, in tasks with tensors of at
    least `WHOLE` bytes.

    `about`: the handicap of the reducers. The first operations of such a case do not count (`WARM`).
    `declared_rate`, `declared_reducer_rate`: Mbit/s that the program is configured with; 0 = the real rates.
    `slowest`: Mbit/s of the first worker's link. `delay`: ms in each direction on every link. `loss`:
    fraction of segments that a link loses in each direction.
    """

    name: str
    workers: int
    reducers: int
    rate: float
    tasks: tuple[Task, ...]
    seconds: int
    reducer_rate: float = 0.0
    wire: float = 0.0
    about: str = ""
    declared_rate: float = 0.0
    declared_reducer_rate: float = 0.0
    slowest: float = 0.0
    delay: float = 0.0
    loss: float = 0.0

    @property
    def title(self) -> str:
        links = f"{self.rate:g} Mbit/s" if self.rate else "unshaped"
        return f"{self.workers} + {self.reducers}, {links}"

    @property
    def warm_up(self) -> int:
        """Number of operations before the operations that count."""
        return WARM if self.about else 1


WARM = 40
"""Number of operations until connections are warm."""
WIRE = 1.02
WHOLE = 32 * MIB
"""Minimum size of a tensor to which the budget of sent bytes applies."""
_SIZES = ((64 << 10, 100), (256 << 10, 60), (MIB, 30), (2 * MIB, 16), (4 * MIB, 10), (16 * MIB, 4))


def _whole(mib: int, target: float, dtype: str = "float32", count: int = 3) -> Task:
    name = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[dtype]
    return Task(f"{mib} MiB {name}", mib * MIB, dtype, target, count=count)


def _sweep(nbytes: int, count: int) -> Task:
    title = f"{nbytes // MIB} MiB fp32" if nbytes >= MIB else f"{nbytes >> 10} KiB fp32"
    return Task(title, nbytes, target=1.1 if nbytes >= 4 * MIB else 0.95, count=count)


QUICK = Case("quick", 4, 4, 200, (_whole(32, 1.45),), 25, wire=WIRE)
CASES = (
    Case("4+4", 4, 4, 200, (_whole(32, 1.45), _whole(64, 1.45)), 60, wire=WIRE),
    Case("types", 4, 4, 200, (_whole(32, 1.42, "bfloat16"), _whole(32, 1.42, "float16")), 50, wire=WIRE),
    Case("training", 4, 4, 200, (
        Task("step, 64 MiB of parameters", 64 * MIB, "", 1.42),
        Task("step, 64 MiB, bucket_cap_mb=64", 64 * MIB, "", 1.42, bucket=64),
    ), 80),
    Case("sizes", 4, 4, 200, tuple(_sweep(*size) for size in _SIZES), 40),
    Case("fast", 4, 4, 500, (_whole(32, 1.38, count=5), _whole(64, 1.38, count=5)), 40, wire=WIRE),
    Case("8+8", 8, 8, 100, (_whole(32, 1.65),), 80, wire=WIRE),
    Case("2+2", 2, 2, 200, (_whole(64, 0.97),), 40, wire=WIRE),
)  # fmt: skip


def _against(name: str, about: str, target: float, mib: int = 8, count: int = 8, **more: float) -> Case:
    """Return a case with 4 workers and 4 reducers at 200 Mbit/s. Arguments override these values."""
    task = _whole(mib, target, count=count)
    rates = {"rate": 200.0, **more}
    return Case(name, 4, 4, tasks=(task,), seconds=60, about=about, **rates)


ADVERSE = (
    _against("told-more", "100 times the bandwidth is declared", 1.3,
        declared_rate=20_000, declared_reducer_rate=20_000),
    _against("told-less", "a hundredth of the bandwidth is declared", 1.3,
        declared_rate=2, declared_reducer_rate=2),
    _against("delay", "5 ms of delay on each link", 1.40, delay=5, mib=16),
    _against("loss", "1 % of all segments are lost on each link", 1.2, loss=0.01, rate=100, mib=4),
)  # fmt: skip
"""Cases in which a handicap must not make the reducers slower than the target."""
