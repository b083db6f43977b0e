"""The program of a pool of reducers, which is the service's own (SPEC §7)."""

from dataclasses import replace

from trainshed.core.runtime import REDUCERS, RuntimeChoice
from trainshed.core.specs.model import Program

ELSEWHERE = "The reduction server runs in the third worker pool only (worker_pool_specs[2])."
_IGNORED = (
    "Reducers run the service's own program: the command and the arguments that worker pool 2 was given are not used. "
    "(gcloud's --command and --args go to all pools.)"
)


def are_ours(runtime: RuntimeChoice) -> bool:
    """Whether a reduction-server image stands for our reducers, and not for what an operator has mapped it to."""
    return runtime.family == REDUCERS


def program(
    runtime: RuntimeChoice, image_uri: str, env: tuple[tuple[str, str], ...], *, given: bool
) -> Program:
    """`given`: the job says what they should run, which is told to be of no effect: gcloud cannot but say it."""
    if given:
        runtime = replace(runtime, notices=(*runtime.notices, _IGNORED))
    return Program(runtime=runtime, image_uri=image_uri, env=env)
