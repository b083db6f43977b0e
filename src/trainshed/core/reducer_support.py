"""Which programs can use reducers, by which way, and what a job is told whose programs cannot
(spec/reduction#frameworks).

One table: the command `trainshed reducers support` prints it, the guide holds it, and jobs are warned from
it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Support:
    """One kind of program. `route`: how its all-reduce comes to the reducers. `verdict`: what it gets.

    `families`: runtime families whose programs are of this kind, as far as a job's request tells. `warning`:
    what such a job is told when it is made, "" if it may use its reducers.
    """

    program: str
    versions: str
    route: str
    verdict: str
    is_served: bool
    families: tuple[str, ...] = ()
    warning: str = ""


_TORCH = "torch 2.7 and newer; tested: 2.13.0"
_TAKE_IT_OUT = (
    "Worker pool 2 will stay idle; take it out, or train with PyTorch's DistributedDataParallel."
)
_ONLY_BY_HAND = "Only a program that calls trainshed_reduction.allreduce uses them; else worker pool 2 stays idle."

TABLE: tuple[Support, ...] = (
    Support(
        "PyTorch DDP, backend gloo",
        _TORCH,
        "by itself: an entry point that torch loads",
        "served",
        is_served=True,
        families=("pytorch",),
    ),
    Support(
        "PyTorch DDP, backend nccl",
        _TORCH,
        "by itself; GPUs of a machine first among themselves, then through pinned memory",
        "served",
        is_served=True,
    ),
    Support(
        "torch.distributed.all_reduce of sums and averages",
        _TORCH,
        "by itself, of contiguous tensors of 2 MiB and more",
        "served; all else native",
        is_served=True,
    ),
    Support(
        "PyTorch DDP with a line of its own",
        "torch 2.5 and newer; tested: 2.13.0",
        "model.register_comm_hook(ReductionState(), allreduce_hook)",
        "served",
        is_served=True,
    ),
    Support(
        "PyTorch FSDP, ZeRO",
        "any",
        "native: they use reduce-scatter and all-gather",
        "no gain: reducers serve all-reduce alone",
        is_served=False,
    ),
    Support(
        "NumPy, any loop that hands over arrays",
        "Python 3.8 and newer, with NumPy",
        "trainshed_reduction.allreduce(array)",
        "served where it is called; no hybrid mode",
        is_served=True,
        families=("python", "scikit-learn"),
        warning=f"This runtime does not use reducers by itself. {_ONLY_BY_HAND}",
    ),
    Support(
        "TensorFlow, JAX, MXNet",
        "any",
        "none: their collectives have no plug-in point",
        "idle: told when the job runs, of TensorFlow's runtimes already when it is made",
        is_served=False,
        families=("tensorflow",),
        warning=f"TensorFlow's collectives have no plug-in point for reducers. {_TAKE_IT_OUT}",
    ),
    Support(
        "XGBoost",
        "any",
        "none: its communicator has no plug-in point",
        "idle: told when the job is made and when it runs",
        is_served=False,
        families=("xgboost",),
        warning=f"XGBoost's communicator has no plug-in point for reducers. {_TAKE_IT_OUT}",
    ),
    Support(
        "Horovod",
        "any",
        "none: it talks to MPI, gloo or NCCL itself",
        "idle: told when the job runs",
        is_served=False,
    ),
    Support(
        "NCCL or MPI without PyTorch",
        "any",
        "none",
        "idle: told when the job runs",
        is_served=False,
    ),
)


def can_only_idle(families: frozenset[str]) -> bool:
    """Whether none of these runtime families has a way to reducers, not even by a program's own call."""
    hopeless = {family for row in TABLE if _TAKE_IT_OUT in row.warning for family in row.families}
    return families <= hopeless


def warning_for(families: frozenset[str]) -> str:
    """What a job is told whose workers run in these runtime families; "" if one of them may use reducers.

    A family that no row names (a container image of the user's) may be anything.
    """
    rows = [next((row for row in TABLE if family in row.families), None) for family in families]
    warnings = [row.warning if row else "" for row in rows]
    return "" if "" in warnings else " ".join(sorted(set(warnings)))
