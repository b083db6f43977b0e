"""What a job asked for, in short, read from its public resource. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

_ROLES: Final = (("worker", "worker"), ("parameterServer", "ps"), ("evaluator", "evaluator"))
_LONGEST: Final = 300
_NONE: Final = "ACCELERATOR_TYPE_UNSPECIFIED"


class Pool(Struct, frozen=True):
    """Replicas that are alike."""

    name: str
    count: int
    #: "" = that of the scale tier.
    machine: str
    accelerator: str = ""
    image: str = ""
    program: str = ""


class Requested(Struct, frozen=True):
    """All of a job that people look for first."""

    pools: tuple[Pool, ...]
    #: gs:// address; "" = none.
    output: str = ""


def requested(resource: Mapping[str, Any]) -> Requested:
    """Of a custom or tuning job or a pipeline of Vertex, or a job of `ml`."""
    training: Any = resource.get("trainingInput")
    if training:
        return Requested(tuple(_roles(training)), training.get("jobDir", ""))
    inputs: Any = resource.get("trainingTaskInputs")
    found: tuple[Any, ...] = (
        *(resource.get("jobSpec"), resource.get("trialJobSpec")),
        *((inputs.get("trialJobSpec"), inputs) if hasattr(inputs, "get") else ()),
    )
    nothing: dict[str, Any] = {}
    spec: Any = next((each for each in found if each), nothing)
    pools: Any = spec.get("workerPoolSpecs", ())
    place: Any = spec.get("baseOutputDirectory") or {}
    return Requested(
        tuple(_pool(number, pool) for number, pool in enumerate(pools) if pool),
        place.get("outputUriPrefix", ""),
    )


def _pool(number: int, pool: Any) -> Pool:
    machine: Any = pool.get("machineSpec", {})
    container: Any = pool.get("containerSpec", {})
    package: Any = pool.get("pythonPackageSpec", {})
    accelerator = machine.get("acceleratorType", _NONE)
    words = [*container.get("command", ()), *container.get("args", ())]
    return Pool(
        f"workerpool{number}",
        int(pool.get("replicaCount", 1)),
        machine.get("machineType", ""),
        "" if accelerator == _NONE else f"{machine.get('acceleratorCount', 1)} × {accelerator}",
        container.get("imageUri") or package.get("executorImageUri", ""),
        package.get("pythonModule") or " ".join(words)[:_LONGEST],
    )


def _roles(training: Any) -> list[Pool]:
    runtime = training.get("runtimeVersion", "")
    found = [
        Pool(
            "master",
            1,
            training.get("masterType", "") or training.get("scaleTier", ""),
            image=f"runtime {runtime}" if runtime else "",
            program=training.get("pythonModule", ""),
        )
    ]
    for role, name in _ROLES:
        if count := int(training.get(f"{role}Count", 0) or 0):
            found.append(Pool(name, count, training.get(f"{role}Type", "")))
    return found
