"""Extracts the main values of a job's public resource: machines, images, programs, output. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec import Struct

_ROLES: Final = (("worker", "worker"), ("parameterServer", "ps"), ("evaluator", "evaluator"))
_MAX_VALUE_CHARS: Final = 300
_NUMBER: Final = re.compile(r"-[0-9.][0-9.eE+-]*")
_NONE: Final = "ACCELERATOR_TYPE_UNSPECIFIED"


class Pool(Struct, frozen=True):
    """Replicas with the same machine and program."""

    name: str
    count: int
    #: Machine type, or the scale tier if the master has no machine type. "" for machines that the scale tier
    #: determines.
    machine: str
    accelerator: str = ""
    image: str = ""
    program: str = ""
    args: tuple[str, ...] = ()
    #: Variables that the job itself sets.
    env: Mapping[str, str] = {}

    @property
    def parameters(self) -> dict[str, str]:
        """The program's parameters: the options among its arguments (`--rate=0.1`, `--rate 0.1`, `--fast`,
        `model.rate=0.1`), and its variables."""
        parameters: dict[str, str] = {}
        for place, word in enumerate(self.args):
            name, equals, value = word.partition("=")
            if not equals and word.startswith("-"):
                following = self.args[place + 1] if place + 1 < len(self.args) else "-"
                value = "on" if re.match("-(?![0-9.])", following) else following
            elif not equals or not re.fullmatch(r"[\w.+-]+", name):
                continue
            if not _NUMBER.fullmatch(word):
                parameters[name.lstrip("-+")] = value
        return parameters | {f"${name}": value for name, value in self.env.items()}


class ResourceSummary(Struct, frozen=True):
    """The main values of a job's specification."""

    pools: tuple[Pool, ...]
    #: gs:// URI of the output directory.
    output: str | None = None


def summarize_resource(resource: Mapping[str, Any]) -> ResourceSummary:
    """Return the main values of a job's resource: a custom job, tuning job or pipeline of Vertex, or an `ml`
    job."""
    training: Any = resource.get("trainingInput")
    if training:
        return ResourceSummary(tuple(_roles(training)), training.get("jobDir"))
    inputs: Any = _plain(resource.get("trainingTaskInputs"))
    specs: tuple[Any, ...] = (
        *(resource.get("jobSpec"), resource.get("trialJobSpec")),
        *((inputs.get("trialJobSpec"), inputs) if hasattr(inputs, "get") else ()),
    )
    nothing: dict[str, Any] = {}
    spec: Any = next((spec for spec in specs if spec), nothing)
    pools: Any = spec.get("workerPoolSpecs", ())
    place: Any = spec.get("baseOutputDirectory") or {}
    return ResourceSummary(
        tuple(_pool(number, pool) for number, pool in enumerate(pools) if pool), place.get("outputUriPrefix")
    )


def _plain(value: Any) -> Any:
    """Return the JSON of a pipeline with names in camelCase and without nulls. The stored JSON has the
    client's own form."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return {
            re.sub("_([a-z])", lambda mark: mark[1].upper(), key): _plain(part)
            for key, part in members
            if part is not None
        }
    return [_plain(part) for part in cast("list[Any]", value)] if isinstance(value, list) else value


def _pool(number: int, pool: Any) -> Pool:
    machine: Any = pool.get("machineSpec", {})
    container: Any = pool.get("containerSpec", {})
    package: Any = pool.get("pythonPackageSpec", {})
    accelerator = machine.get("acceleratorType", _NONE)
    words = list(map(str, (*container.get("command", ()), *container.get("args", ()))))
    return Pool(
        name=f"workerpool{number}",
        count=int(float(pool.get("replicaCount", 1))),
        machine=machine.get("machineType", ""),
        accelerator="" if accelerator == _NONE else f"{machine.get('acceleratorCount', 1)} × {accelerator}",
        image=container.get("imageUri") or package.get("executorImageUri", ""),
        program=package.get("pythonModule") or " ".join(words)[:_MAX_VALUE_CHARS],
        args=tuple(map(str, container.get("args", ()) or package.get("args", ()))),
        env={
            str(variable.get("name", "")): str(variable.get("value", ""))
            for variable in (*container.get("env", ()), *package.get("env", ()))
        },
    )


def _roles(training: Any) -> list[Pool]:
    runtime = training.get("runtimeVersion", "")
    pools = [
        Pool(
            name="master",
            count=1,
            machine=training.get("masterType", "") or training.get("scaleTier", ""),
            image=f"runtime {runtime}" if runtime else "",
            program=training.get("pythonModule", ""),
            args=tuple(map(str, training.get("args", ()))),
        )
    ]
    for role, name in _ROLES:
        if count := int(training.get(f"{role}Count", 0) or 0):
            pools.append(Pool(name=name, count=count, machine=training.get(f"{role}Type", "")))
    return pools
