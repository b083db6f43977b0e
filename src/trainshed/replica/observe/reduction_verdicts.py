"""Decides whether a worker's program can use reducers at all, from the libraries that its processes have
loaded (spec/reduction#frameworks).

Reducers must not idle unnoticed: the owner of a program that cannot use them, or not as it is, is told so
once. All knowledge of frameworks in this package is here. Pure.
"""

import os
from collections.abc import Iterable

NOTHING = "nothing"
"""No framework that we know of is loaded."""
HOROVOD = "horovod"
PYTORCH = "pytorch"
TENSORFLOW = "tensorflow"
JAX = "jax"
MXNET = "mxnet"
XGBOOST = "xgboost"
NCCL = "nccl"
MPI = "mpi"

_CANNOT = {
    HOROVOD: "runs Horovod, whose all-reduce is its own and has no plug-in point",
    TENSORFLOW: "runs TensorFlow, whose collectives have no plug-in point",
    JAX: "runs JAX, whose collectives have no plug-in point",
    MXNET: "runs MXNet, whose collectives have no plug-in point",
    XGBOOST: "runs XGBoost, whose communicator has no plug-in point",
    NCCL: "calls NCCL without PyTorch, where it has no plug-in point",
    MPI: "calls MPI, whose collectives have no plug-in point",
}
_WHAT_TO_DO = "Take worker pool 2 out of the job, or train with PyTorch's DistributedDataParallel."
_NOT_HEARD = (
    "This program has loaded PyTorch, but nothing was heard of the Reduction Server's plug-in: as it is, "
    "%s. It needs NumPy, "
    "PYTHONPATH as the service sets it, and versions of PyTorch and Python that `trainshed "
    "reducer-support` names; if it "
    "was loaded and could not be used, a line of this log says why. With an older PyTorch use its "
    "communication hook, "
    "trainshed_reduction.pytorch.allreduce_hook."
)
_ENDED = (
    "This program ended without using the job's %s: no process of it reported the Reduction Server's "
    "plug-in. It works for "
    "PyTorch's torch.distributed and for calls of trainshed_reduction.allreduce, in Pythons that have "
    "NumPy and the "
    "PYTHONPATH that the service sets; `trainshed reducer-support` says more. Take worker pool 2 out of "
    "the job if it "
    "does without."
)
_STARTS = (
    ("libtorch.so", PYTORCH),
    ("libtorch_cpu.so", PYTORCH),
    ("libtorch_python.so", PYTORCH),
    ("libtensorflow_framework.so", TENSORFLOW),
    ("libtensorflow_cc.so", TENSORFLOW),
    ("_pywrap_tensorflow", TENSORFLOW),
    ("xla_extension.so", JAX),
    ("libmxnet.so", MXNET),
    ("libxgboost.so", XGBOOST),
    ("libnccl.so", NCCL),
    ("libmpi.so", MPI),
)
"""What the name of a library begins with."""


def classify(libraries: Iterable[str]) -> str:
    """Return the framework of a program, from the paths of all libraries that its processes have loaded.
    Frameworks that load others are tested first: Horovod uses PyTorch or TensorFlow, PyTorch programs load
    TensorFlow for its summaries, and all of them load NCCL."""
    found = {_kind(path) for path in libraries}
    for kind in (HOROVOD, PYTORCH, TENSORFLOW, JAX, MXNET, XGBOOST, NCCL, MPI):
        if kind in found:
            return kind
    return NOTHING


def _kind(path: str) -> str:
    name = os.path.basename(path)
    if "/horovod/" in path and name.startswith("mpi_lib"):
        return HOROVOD
    if "/jaxlib/" in path:
        return JAX
    for start, kind in _STARTS:
        if name.startswith(start):
            return kind
    return NOTHING


def text(kind: str, reducers: int) -> str:
    """Return what people should know of a running program. `reducers`: how many the job has."""
    idle = "the %d reducers stay idle" % reducers if reducers != 1 else "the reducer stays idle"
    if kind == PYTORCH:
        return _NOT_HEARD % idle
    if kind == NOTHING:
        return (
            "No process of this program has loaded PyTorch so far, nor another framework that is known"
            " here: %s." % idle
        )
    return "This program %s: %s. %s" % (_CANNOT[kind], idle, _WHAT_TO_DO)


def text_at_end(kind: str, reducers: int) -> str:
    """Return what people should know of a program that has ended without any report. `kind`: the last
    verdict."""
    if kind != NOTHING:
        return text(kind, reducers)
    return _ENDED % ("%d reducers" % reducers if reducers != 1 else "reducer")
