"""Makes a changed copy of a job of either API: from the job's JSON, the body of the create method. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

import click

from trainshed.core.copies import copy_of
from trainshed.core.names import Api
from trainshed.core.units import Nanos

_OWN_OUTPUT = re.compile(r"gs://[^/]+/runs/.+-\d{8}-\d{6}-\d{3}")
"""Output directories that `trainshed run` chooses (`request.output_directory`)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs in the copy. None or an empty value = as it was."""

    name: str | None = None
    image: str | None = None
    replicas: int | None = None
    machine_type: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    output: str | None = None
    #: The program's arguments, which replace all that it had.
    arguments: Sequence[str] = ()


def copied(
    api: Api, job: Mapping[str, Any], changes: Changes, now: Nanos, uid: str
) -> dict[str, Any]:
    """Return the body that creates a changed copy of a job. `now`: nanoseconds since the epoch, for an id
    that no other job has; `uid`: the job's own. Raises click.UsageError for a change that is impossible for a
    job of its kind."""
    fresh = copy_of(api, job, now, uid)
    if changes.labels:
        fresh["labels"] = {**fresh.get("labels", {}), **changes.labels}
    if api is Api.ML:
        fresh["jobId"] = changes.name or fresh["jobId"]
        _change_ml(_mapping(fresh.get("trainingInput")), changes)
        return fresh
    if changes.name:
        fresh["displayName"] = changes.name
    _change_vertex(_mapping(fresh.get("jobSpec") or fresh.get("trialJobSpec")), changes)
    return fresh


def has_own_output(job: Mapping[str, Any]) -> bool:
    """Whether `trainshed run` chose the job's output directory, which then belongs to this job alone."""
    spec = _mapping(job.get("jobSpec"))
    prefix = str(_mapping(spec.get("baseOutputDirectory")).get("outputUriPrefix", ""))
    return _OWN_OUTPUT.fullmatch(prefix) is not None


def _change_vertex(spec: dict[str, Any], changes: Changes) -> None:
    pools = [_mapping(pool) for pool in cast(list[Any], spec.get("workerPoolSpecs") or [])]
    if changes.output:
        spec["baseOutputDirectory"] = {"outputUriPrefix": changes.output}
    if changes.replicas:
        pools = list(_resized(pools, changes.replicas))
        spec["workerPoolSpecs"] = pools
    for pool in filter(None, pools):
        if changes.machine_type:
            pool["machineSpec"] = {
                **_mapping(pool.get("machineSpec")),
                "machineType": changes.machine_type,
            }
        program, image = _program(pool)
        if changes.image:
            program[image] = changes.image
        if changes.arguments:
            program["args"] = list(changes.arguments)
        if changes.env:
            program["env"] = _with_env(program.get("env"), changes.env)


def _program(pool: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the program of a pool, and the name of its field for the image."""
    if package := pool.get("pythonPackageSpec"):
        return _mapping(package), "executorImageUri"
    return _mapping(pool.setdefault("containerSpec", {})), "imageUri"


def _resized(pools: list[dict[str, Any]], replicas: int) -> Iterator[dict[str, Any]]:
    """Yield the pools with `replicas` replicas in the first two together; pools of other roles stay as they
    are."""
    first, *others = pools
    yield first
    workers = others[0] if others else {}
    yield (
        {**(workers or deepcopy(first)), "replicaCount": str(replicas - 1)} if replicas > 1 else {}
    )
    if any(others[1:]):
        yield from others[1:]


def _change_ml(training: dict[str, Any], changes: Changes) -> None:
    if changes.env:
        raise click.UsageError("--env: jobs of ml v1 have no variables of their own.")
    if changes.output:
        training["jobDir"] = changes.output
    if changes.arguments:
        training["args"] = list(changes.arguments)
    if changes.replicas or changes.machine_type:
        _change_machines(training, changes)
    if changes.image:
        for role in ("master", "worker", "parameterServer", "evaluator"):
            config = _mapping(training.get(f"{role}Config"))
            if role == "master" or config.get("imageUri"):
                training[f"{role}Config"] = {**config, "imageUri": changes.image}


def _change_machines(training: dict[str, Any], changes: Changes) -> None:
    if training.get("scaleTier", "BASIC") != "CUSTOM":
        raise click.UsageError(
            f"--replicas and --machine-type: its scale tier {training.get('scaleTier', 'BASIC')} sets its"
            " machines; a job of tier CUSTOM can have others."
        )
    if changes.machine_type:
        for role in ("master", "worker"):
            if role == "master" or training.get("workerCount"):
                training[f"{role}Type"] = changes.machine_type
    if changes.replicas:
        training["workerCount"] = str(changes.replicas - 1)
        if changes.replicas > 1:
            training.setdefault("workerType", training.get("masterType"))


def _with_env(before: Any, env: Mapping[str, str]) -> list[dict[str, Any]]:
    entries = [_mapping(entry) for entry in cast(list[Any], before or [])]
    kept = [entry for entry in entries if entry.get("name") not in env]
    return kept + [{"name": name, "value": value} for name, value in env.items()]


def _mapping(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
