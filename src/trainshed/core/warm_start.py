"""Whether a program begins warm: in a fork of a process that has imported its runtime's frameworks
(spec/program#warm-starts, docs/adr/0096). Pure.

Here is what can be said of a job and of its program's variables. What only the machine knows is said where it
is known: by the engine that keeps preloaders, and by a preloader's fork, which looks at the files that the
program would import.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from trainshed.core.launch import PACKED_PROGRAM, WarmStart

WarmStarts = Literal["trials", "on", "off"]
"""Who begins warm without a label: trials whose program is a package, all programs, or none."""

ENVIRONMENT: Final = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
"""The variables that frameworks are imported with, of those that an import may read."""

_READ_AT_IMPORT: Final = re.compile(
    "PYTHON|LD_|GLIBC_|MALLOC_|LANG|LC_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|GOTO_|BLIS_|VECLIB_|NUMEXPR_|NPY_|NUMPY_"
    "|SCIPY_|SKLEARN_|JOBLIB_|THREADPOOL|PANDAS_|TORCH|PYTORCH_|ATEN_|TRITON_|DNNL_|ONEDNN_|CUDA|CUBLAS_|CUDNN_"
    "|NVIDIA_|TF_|XLA_|KERAS_|JAX_|XGBOOST_|MPL"
)
"""How the names of those begin: of the interpreter, the C library, and of frameworks."""
_READ_LATER: Final = frozenset(
    {
        # By `site`, which is run again; by the program itself.
        "PYTHONUSERBASE",
        "PYTHONFAULTHANDLER",
        # By tf.distribute when a strategy is made.
        "TF_CONFIG",
    }
)


def is_asked_for(label: str, setting: WarmStarts, *, is_trial_of_package: bool) -> bool:
    """Whether a job's programs are to begin warm. `label`: that of the job, "" = it has none."""
    if label in ("on", "off"):
        return label == "on"
    return setting == "on" or (setting == "trials" and is_trial_of_package)


def of_program(
    argv: Sequence[str],
    *,
    runtime: str,
    modules: Sequence[str],
    in_image: bool,
    gpus: int,
    reduces: bool,
) -> WarmStart:
    """That of one program of a job that asks for it. `runtime`: the directory of its runtime's environment;
    `modules`: what that has to be imported."""
    why = ""
    if in_image:
        why = "it runs in a container image, not in a runtime of this service"
    elif not modules:
        why = "its runtime names no framework that could be imported ahead"
    elif gpus:
        why = "it has GPUs, and frameworks that have loaded their drivers cannot be forked"
    elif reduces:
        why = "it reduces gradients by a plug-in of its own"
    elif not _is_module(argv):
        why = "its command is not python3 -m MODULE"
    elif argv[2].partition(".")[0] == PACKED_PROGRAM:
        why = "trainshed run has its program started by an interpreter of its own; submit it as a package"
    return WarmStart("" if why else runtime, () if why else tuple(modules), why)


def _is_module(argv: Sequence[str]) -> bool:
    return len(argv) > 2 and argv[0].rpartition("/")[2] in ("python", "python3") and argv[1] == "-m"


def differing(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of variables that an import may read, and that a program has otherwise than the preloader."""
    named = {name for name in environ if _READ_AT_IMPORT.match(name)} | ENVIRONMENT.keys()
    return tuple(
        sorted(
            name
            for name in named - _READ_LATER
            if environ.get(name, "") != ENVIRONMENT.get(name, "")
        )
    )
