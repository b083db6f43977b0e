"""What one trial of a tuning job runs: its parameters as arguments, directories of its own
(spec/program#arguments, spec/tuning#parameters, facts/program#arguments)."""

import dataclasses
import json
from typing import Any

from trainshed.core.cluster import is_reducer
from trainshed.core.job.spec import JobSpec, Scheduling, WorkerPool
from trainshed.core.names import Api
from trainshed.core.study.records import Parameters
from trainshed.core.study.spec import Value

_EXACT = 2**53
"""Up to it, an integer is the same number as a float."""


def trial_spec(spec: JobSpec, number: int, parameters: Parameters) -> JobSpec:
    """The job of trial `number`: `spec` with `--name value` behind the arguments of every program, the
    reducers' apart.

    A container that has neither command nor arguments gets the parameters as its arguments, in place of those
    its image brings. What it writes goes below its number (facts/program#arguments,
    facts/program#output-directory).
    """
    arguments = tuple(word for name, value in parameters for word in (f"--{name}", printed(value)))
    return dataclasses.replace(
        spec,
        pools=tuple(
            pool if is_reducer(spec, pool.position) else _with_arguments(pool, arguments)
            for pool in spec.pools
        ),
        base_output_directory=_below(spec.base_output_directory, number),
        job_dir=_below(spec.job_dir, number),
        scheduling=_own_limits(spec),
        trial=str(number),
    )


def printed(value: Value) -> str:
    """A value as programs and `ml` views are given it: the shortest text that reads back as the same value.

    A float without a fraction is printed without one: programs read a DISCRETE batch size with `int`, and
    what reads a float takes `64` as well (docs/choices.md).
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return str(int(value))
    return str(value)


def _with_arguments(pool: WorkerPool, arguments: tuple[str, ...]) -> WorkerPool:
    program = pool.program
    return dataclasses.replace(
        pool, program=dataclasses.replace(program, args=(*program.args, *arguments))
    )


def _own_limits(spec: JobSpec) -> Scheduling:
    """`ml` limits the wait for the first trial of all; those that follow wait as long as it takes
    (docs/choices.md)."""
    if spec.api is Api.VERTEX:
        return spec.scheduling
    return dataclasses.replace(spec.scheduling, max_wait=None)


def _below(directory: str, number: int) -> str:
    return f"{directory.removesuffix('/')}/{number}" if directory else ""


def public_json(spec: JobSpec, *, display_name: str, job_id: str) -> str:
    """The input fields of the resource, in public JSON, from the trial's own `spec`
    (`trial_jobs.trial_spec`)."""
    given: dict[str, Any] = json.loads(spec.job_json)
    if spec.api is Api.ML:
        given.pop("hyperparameters", None)
        given["args"] = list(spec.pool(0).program.args)
        if spec.job_dir:
            given["jobDir"] = spec.job_dir
        resource: dict[str, Any] = {"jobId": job_id, "trainingInput": given}
    else:
        for pool in spec.pools:
            program = given["workerPoolSpecs"][pool.position]
            part = program.get("containerSpec") or program.get("pythonPackageSpec")
            if part is not None and pool.program.args:
                part["args"] = list(pool.program.args)
        if spec.base_output_directory:
            given["baseOutputDirectory"] = {"outputUriPrefix": spec.base_output_directory}
        resource = {"displayName": display_name, "jobSpec": given}
    return json.dumps(resource, ensure_ascii=False, separators=(",", ":"))
