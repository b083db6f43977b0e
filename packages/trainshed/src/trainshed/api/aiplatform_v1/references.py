"""What the jobs of requests name beside themselves: secrets, and what only tracking has: experiments with
their runs, tensorboards (facts/experiments#jobs, facts/experiments#curves).

The check takes a CustomJobSpec in public JSON (`spec`) with its path in the request, and returns violations
for what does not exist. Invalid names and parents are reported by the specification's check.
"""

from collections.abc import Iterator
from typing import Final

from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.errors import installing
from trainshed.api.calls.services import Services, Spec
from trainshed.core.errors import Violation
from trainshed.core.secrets import SecretRef, references

_PROGRAMS: Final = (
    ("container_spec", "containerSpec"),
    ("python_package_spec", "pythonPackageSpec"),
)
_TRACKED: Final = {
    "experiment": "experiment",
    "experimentRun": "experiment_run",
    "tensorboard": "tensorboard",
}
"""What only tracking has, by the key in JSON: the field of the request."""


async def unknown_references(
    services: Services, parent: str, spec: Spec, path: str
) -> tuple[Violation, ...]:
    secrets = await _unknown_secrets(services, parent, spec, path)
    if services.tracking is not None:
        return (*secrets, *await services.tracking.unknown(known_location(parent), spec, path))
    text = (
        "It is kept by an addition that is not installed. Where the service is, run "
        f"{installing('tracking')} and start it again, or leave the field out."
    )
    missing = (
        Violation(f"{path}.{field}", text) for key, field in _TRACKED.items() if spec.get(key)
    )
    return (*secrets, *missing)


async def _unknown_secrets(
    services: Services, parent: str, spec: Spec, path: str
) -> tuple[Violation, ...]:
    """Check the variables that name secrets of the project of `parent`."""
    uses = tuple(_secrets(spec, path))
    place = parent.split("/")
    if not uses or len(place) < 2:
        return ()
    project = place[1]
    there = await services.secrets.find(project, dict.fromkeys(ref for _, ref in uses))
    missing = tuple((field, ref) for field, ref in uses if ref not in there)
    if not missing:
        return ()
    names = sorted({version.name for version in await services.secrets.versions(project)})
    return tuple(Violation(field, _advice(project, ref, names)) for field, ref in missing)


def _secrets(spec: Spec, path: str) -> Iterator[tuple[str, SecretRef]]:
    """Yield the path of each variable that names a secret, with that secret."""
    for position, worker_pool in enumerate(spec.get("workerPoolSpecs", ())):
        for field, key in _PROGRAMS:
            for index, variable in enumerate(worker_pool.get(key, {}).get("env", ())):
                where = f"{path}.worker_pool_specs[{position}].{field}.env[{index}].value"
                for ref in references(variable.get("value", "")):
                    yield where, ref


def _advice(project: str, ref: SecretRef, names: list[str]) -> str:
    if ref.name in names:
        return (
            f"The secret {ref.name!r} of the project {project} has no version {ref.version}; `trainshed "
            f"secrets list` shows which there are. $(secret:{ref.name}) means the newest one."
        )
    there = f"it has: {', '.join(names)}" if names else "it has none yet"
    return (
        f"The project {project} has no secret {ref.name!r}; {there}. Store it with `trainshed secrets set "
        f"{ref.name}`, or write $$(secret: where those characters themselves are meant."
    )
