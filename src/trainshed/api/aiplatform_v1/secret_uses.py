"""Whether the secrets that a CustomJobSpec names are there, asked when a job is created (`core.secrets`)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from trainshed.api.calls.services import Services
from trainshed.core.errors import Violation
from trainshed.core.secrets import SecretRef, references

_PROGRAMS: Final = (
    ("container_spec", "containerSpec"),
    ("python_package_spec", "pythonPackageSpec"),
)


async def unknown_secrets(
    services: Services, parent: str, spec: Mapping[str, Any], path: str
) -> tuple[Violation, ...]:
    """A violation for each variable that names a secret which the project of `parent` has not. `spec`: a CustomJobSpec in
    public JSON, at `path` of its request. What is wrong with `parent`, or with a notation, others tell."""
    uses = tuple(_uses(spec, path))
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


def _uses(spec: Mapping[str, Any], path: str) -> Iterator[tuple[str, SecretRef]]:
    """(path of the variable, the secret it names)."""
    for position, pool in enumerate(spec.get("workerPoolSpecs", ())):
        for field, key in _PROGRAMS:
            for index, variable in enumerate(pool.get(key, {}).get("env", ())):
                where = f"{path}.worker_pool_specs[{position}].{field}.env[{index}].value"
                for ref in references(variable.get("value", "")):
                    yield where, ref


def _advice(project: str, ref: SecretRef, names: list[str]) -> str:
    if ref.name in names:
        return (
            f"The secret {ref.name!r} of the project {project} has no version {ref.version}; `trainshed secrets list` "
            f"shows which there are. $(secret:{ref.name}) means the newest one."
        )
    there = f"it has: {', '.join(names)}" if names else "it has none yet"
    return (
        f"The project {project} has no secret {ref.name!r}; {there}. Store it with `trainshed secrets set {ref.name}`, or "
        "write $$(secret: where those characters themselves are meant."
    )
