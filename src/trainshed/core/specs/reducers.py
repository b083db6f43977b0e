"""The program of a pool of reducers, which is the service's own, and what a job says to it and to its workers (SPEC §7)."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from trainshed.core.runtime import REDUCERS, RuntimeChoice
from trainshed.core.specs.model import Program, WorkerPool
from trainshed.core.specs.request import Section
from trainshed.reduction.trainshed_reduction import variables

ELSEWHERE = "The reduction server runs in the third worker pool only (worker_pool_specs[2])."
_IGNORED = (
    "Reducers run the service's own program: the command and the arguments that worker pool 2 was given are not used. "
    "(gcloud's --command and --args go to all pools.)"
)
_REFERENCE = "$("
"""What another variable's value, or a secret's, is put in place of."""


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


def check_variables(pools: Sequence[Section]) -> None:
    """The variables of the Reduction Server in the `env` of those of a job's pools that have a part in it. What is wrong
    is reported to the sections' faults; what is known only when a program is started, `$(NAME)`, is left to that."""
    for pool in pools:
        for spec in (pool.section("containerSpec"), pool.section("pythonPackageSpec")):
            env = list(spec.sections("env"))
            given = {variable.text("name"): variable.text("value") for variable in env}
            lonely = dict(variables.alone(given))
            for variable in env:
                name, value = variable.text("name"), variable.text("value")
                known = "" if _REFERENCE in value else variables.fault(name, value)
                if fault := known or lonely.get(name, ""):
                    variable.fault("value", f"{fault}.")


def unknown_variables(pools: Iterable[WorkerPool]) -> Iterator[str]:
    """Warnings about variables that look like the Reduction Server's and mean nothing to it, of pools that have a part."""
    where: dict[str, dict[str, None]] = {}
    for pool in pools:
        for name, _ in pool.program.env:
            if name.startswith(variables.START) and name not in variables.NAMES:
                where.setdefault(name, {})[str(pool.position)] = None
    for name, positions in where.items():
        meant = _meant(name) or "the guide on the Reduction Server names all that do"
        who = (
            f"pool {', '.join(positions)} sets"
            if len(positions) == 1
            else f"pools {', '.join(positions)} set"
        )
        yield f"Worker {who} {name}, which means nothing to the Reduction Server; {meant}."


def _meant(name: str) -> str:
    """By what comes after the beginning that all names share, and would make any two of them alike."""
    if name == f"{variables.MODE}_MODE":
        return f"{variables.MODE} may be meant"
    ends = {each.removeprefix(variables.START): each for each in sorted(variables.NAMES)}
    close = difflib.get_close_matches(name.removeprefix(variables.START), ends, n=1, cutoff=0.75)
    return f"{ends[close[0]]} may be meant" if close else ""
