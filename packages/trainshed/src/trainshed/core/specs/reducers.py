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


USE_NONE = frozenset({"python", "scikit-learn", "tensorflow", "xgboost"})
"""The runtime families whose programs have no use for reducers. One that is not named here, such as a
container image of the user's, may be anything."""


def reducer_warnings(pools: tuple[WorkerPool, ...]) -> tuple[str, ...]:
    """Return the warnings for a job with reducers; none if these are of use, or if that is not known."""
    if reducers_of(pools) is None:
        return ()
    workers = [pool for pool in pools if pool.position < PS_POOL]
    families = {pool.program.runtime.family for pool in workers}
    if families <= USE_NONE:
        return (
            f"Programs of {' and '.join(sorted(families))} have no use for reducers, so worker pool 2 will "
            "stay idle: take it out, or train with PyTorch's DistributedDataParallel.",
        )
    if (count := sum(pool.replica_count for pool in workers)) < 3:
        return (
            f"The job has reducers and only {count} worker{'s' * (count > 1)}, which become no faster by "
            "them; with three workers and more they do.",
        )
    return ()
