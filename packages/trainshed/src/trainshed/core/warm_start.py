"""Decides whether a program starts warm: as a fork of a process that has imported the runtime's frameworks
(spec/program#warm-starts, docs/adr/0083). Pure.

The decision depends only on a job and its program's variables. The engine's preloaders check conditions of
the machine, including the files that the program would import.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from trainshed.core.launch import WarmStart

WarmStarts = Literal["trials", "on", "off"]
"""The programs that start warm without a label: programs of trials in packages, all programs, or none."""

ENVIRONMENT: Final = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
"""Variables that are set while a preloader imports frameworks."""

_READ_AT_IMPORT: Final = re.compile(
    "PYTHON|LD_|GLIBC_|MALLOC_|LANG|LC_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|GOTO_|BLIS_|VECLIB_|NUMEXPR_|NPY_|NUMPY_"
    "|SCIPY_|SKLEARN_|JOBLIB_|THREADPOOL|PANDAS_|TORCH|PYTORCH_|ATEN_|TRITON_|DNNL_|ONEDNN_|CUDA|CUBLAS_|CUDNN_"
    "|NVIDIA_|TF_|XLA_|KERAS_|JAX_|XGBOOST_|MPL"
)
"""Prefixes of variables that an import may read: those of the interpreter, the C library and frameworks."""
_READ_LATER: Final = frozenset(
    {
        # Read after the fork: by the module `site`, which runs again, and by the program itself.
        "PYTHONUSERBASE",
        "PYTHONFAULTHANDLER",
        # Read after the fork: by tf.distribute, when the program creates a strategy.
        "TF_CONFIG",
        # Read after the fork: by torch.load, at each call.
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD",
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD",
    }
)

_NUMBER: Final = re.compile("[0-9]{1,4}")
_PLAIN: Final = {
    **dict.fromkeys(
        (
            *("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
            *("GOTO_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
            *("NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS", "MALLOC_ARENA_MAX"),
            *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_CPP_MIN_LOG_LEVEL"),
            *("TF_CPP_MAX_VLOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "TF_DETERMINISTIC_OPS"),
            *("KMP_BLOCKTIME", "CUDA_LAUNCH_BLOCKING"),
        ),
        _NUMBER,
    ),
    **dict.fromkeys(("OMP_DYNAMIC", "MKL_DYNAMIC"), re.compile("(?i:true|false)")),
    "PYTHONHASHSEED": re.compile("random|[0-9]{1,10}"),
    "CUDA_DEVICE_ORDER": re.compile("FASTEST_FIRST|PCI_BUS_ID"),
    "KERAS_BACKEND": re.compile("tensorflow|torch|jax"),
}
"""Variables that a program may set for the import of frameworks, each with the form of its harmless values.
"""


def of_program(
    argv: Sequence[str],
    *,
    runtime: str | None,
    modules: Sequence[str],
    in_image: bool,
    gpus: int,
    reduces: bool,
) -> WarmStart:
    """Return the warm start of a program whose job requests it. `runtime`: the directory of its runtime's
    environment. `modules`: the modules to import."""
    why = None
    if in_image:
        why = "it runs in a container image, not in a runtime of this service"
    elif not modules:
        why = "its runtime has no framework to import in advance"
    elif gpus:
        why = "it has GPUs, and processes with loaded GPU drivers cannot be forked"
    elif reduces:
        why = "it reduces gradients with its own plug-in"
    elif not _is_python(argv):
        why = "its command is not python3 -m MODULE, python3 -c TEXT or python3 FILE"
    return WarmStart(None if why else runtime, () if why else tuple(modules), why)


def _is_python(argv: Sequence[str]) -> bool:
    """Return whether a command line runs Python with a module, a text or a file, and no other option."""
    if len(argv) < 2 or argv[0].rpartition("/")[2] not in ("python", "python3"):
        return False
    return not argv[1].startswith("-") or (argv[1] in ("-m", "-c") and len(argv) > 2)


def own_values(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables of a program for which frameworks must be imported separately, such as numbers of
    threads."""
    return tuple(
        sorted(
            (name, value)
            for name, value in environ.items()
            if name in _PLAIN and _PLAIN[name].fullmatch(value)
        )
    )


def differing(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of a program's variables that an import of frameworks may read, and whose values no
    preloader may use. A preloader has the service's permissions, and such a value may specify code to load.
    """
    variables = {name for name in (*environ, *ENVIRONMENT) if _READ_AT_IMPORT.match(name)}
    own = {name for name, _ in own_values(environ)}
    return tuple(
        sorted(
            name
            for name in variables - _READ_LATER - own
            if environ.get(name, "") != ENVIRONMENT.get(name, "")
        )
    )
