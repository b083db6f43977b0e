"""The reducers of a job: their program and variables, and the warnings for a job that they are of no use to
(spec/submit#warnings). Pure. Whether there are enough is decided by the workers
(`trainshed_reduction.layout`).
"""

from collections.abc import Sequence

from msgspec.structs import replace

from trainshed.core.cluster import PS_POOL, reducers_of
from trainshed.core.job import Program, WorkerPool
from trainshed.core.requests import Section
from trainshed.core.runtime import REDUCERS, RuntimeChoice
from trainshed_reduction import variables

_SINGLE = (
    "The job has reducers and only one worker: a single worker has nothing to reduce, and worker pool 2 "
    "will stay idle. Take it out, or give the job more workers in worker pool 1."
)
_PAIR = (
    "The job has reducers and two workers: two send each other no more than they would send to reducers, "
    "so it becomes no faster by them. With three workers and more it does."
)


ELSEWHERE = "The reduction server runs in the third worker pool only (worker_pool_specs[2])."
_IGNORED = (
    "Reducers run the service's own program: the command and the arguments that worker pool 2 was given "
    "are not used. (gcloud's --command and --args go to all pools.)"
)
_REFERENCE = "$("
"""Begins a reference, which is replaced by another variable's value, or a secret's."""


def are_ours(runtime: RuntimeChoice) -> bool:
    """Whether a reduction-server image stands for this service's reducers, and not for what an operator has
    mapped it to."""
    return runtime.family == REDUCERS


def program(
    runtime: RuntimeChoice, image_uri: str, env: tuple[tuple[str, str], ...], *, is_chosen: bool
) -> Program:
    """Return the program of a reducer. `is_chosen`: the job says what it should run, which a notice says is
    not used: gcloud cannot leave it out."""
    if is_chosen:
        runtime = replace(runtime, notices=(*runtime.notices, _IGNORED))
    return Program(runtime=runtime, image_uri=image_uri, env=env)


def check_variables(pools: Sequence[Section]) -> None:
    """Check the variables of the Reduction Server in the `env` of a job's pools that take part in it. What is
    wrong is reported to the sections' faults. Values with a `$(NAME)`, which are known only when a program is
    started, are left to the program."""
    for pool in pools:
        for spec in (pool.section("containerSpec"), pool.section("pythonPackageSpec")):
            env = list(spec.sections("env"))
            for variable in env:
                name, value = variable.text("name"), variable.text("value")
                if fault := "" if _REFERENCE in value else variables.fault(name, value):
                    variable.fault("value", f"{fault}.")


_TAKE_IT_OUT = (
    "Worker pool 2 will stay idle; take it out, or train with PyTorch's DistributedDataParallel."
)
_NO_TORCH = f"This runtime has no PyTorch, whose programs alone use reducers. {_TAKE_IT_OUT}"
WARNINGS = {
    "pytorch": None,
    "python": _NO_TORCH,
    "scikit-learn": _NO_TORCH,
    "tensorflow": f"TensorFlow's collectives have no plug-in point for reducers. {_TAKE_IT_OUT}",
    "xgboost": f"XGBoost's communicator has no plug-in point for reducers. {_TAKE_IT_OUT}",
}
"""The warning for a job whose workers run in a runtime of this family; None = they use reducers. A family
that is not named (a container image of the user's) may be anything."""


def reducer_warnings(pools: tuple[WorkerPool, ...]) -> tuple[str, ...]:
    """Return the warnings for a job with reducers; none if these are of use, or if that is not known."""
    workers = [pool for pool in pools if pool.position < PS_POOL]
    count = sum(pool.replica_count for pool in workers)
    if reducers_of(pools) is None:
        return ()
    if count == 1:
        return (_SINGLE,)
    warnings = [WARNINGS.get(pool.program.runtime.family) for pool in workers]
    # If one of them may use reducers, they are of use.
    unused = tuple(dict.fromkeys(filter(None, warnings))) if all(warnings) else ()
    return unused or ((_PAIR,) if count == 2 else ())
