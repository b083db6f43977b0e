"""What the jobs of requests name beside themselves: secrets, experiments with their runs, tensorboards
(facts/experiments#jobs, facts/experiments#curves).

Each check takes a CustomJobSpec in public JSON (`spec`) with its path in the request, and returns violations
for what does not exist. Invalid names and parents are reported by the specification's check.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.services import Services
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.metadata import Edge, EdgeRole, Node, NodeKind, NodeName, new_run
from trainshed.core.names import JobName, project_number
from trainshed.core.requests import Faults
from trainshed.core.secrets import SecretRef, references
from trainshed.core.tensorboards import BoardName, Level

_PROGRAMS: Final = (
    ("container_spec", "containerSpec"),
    ("python_package_spec", "pythonPackageSpec"),
)
_JOBS: Final = "_custom_jobs"
_CONTEXTS: Final = {"experiment": "experiment", "experimentRun": "experiment_run"}
Spec = Mapping[str, Any]


async def unknown_references(
    services: Services, parent: str, spec: Spec, path: str
) -> tuple[Violation, ...]:
    return (
        *await unknown_secrets(services, parent, spec, path),
        *await _unknown_contexts(services, known_location(parent).project_id, spec, path),
        *await unknown_board(services, parent, spec, path),
    )


async def unknown_secrets(
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


async def unknown_board(
    services: Services, parent: str, spec: Spec, path: str
) -> tuple[Violation, ...]:
    """Check the tensorboard, which must exist in the location `parent`."""
    text = str(spec.get("tensorboard", ""))
    if not text:
        return ()
    place = known_location(parent)
    at = f"{path}.tensorboard"
    try:
        board = BoardName.parse(text, Level.TENSORBOARD, of=at)
    except InvalidRequest:
        return ()
    here = place.project_id, str(project_number(place.project_id))
    if board.project_id not in here or board.location != place.location:
        # Whether another project has it must not be told either.
        text = f"{board} lies elsewhere than the job, whose location is {place}."
        return (Violation(at, text),)
    try:
        await services.tensorboards.get(BoardName(place.project_id, place.location, board.ids))
    except NotFound:
        text = (
            f"{board} does not exist; create it first, or leave the field out: the job's curves are kept "
            "in any case."
        )
        return (Violation(at, text),)
    return ()


async def make_run(services: Services, experiment: str) -> str:
    """Make a new run of an experiment, for a job that names none of its own, and return its name."""
    parent = NodeName.parse(experiment, NodeKind.CONTEXT)
    now = services.now()
    display_name = f"job-{services.new_uid()}"
    name = NodeName(parent.store, NodeKind.CONTEXT, f"{parent.node_id}-{display_name}")
    await services.metadata.create(new_run(name, display_name, now))
    await services.metadata.link((Edge(parent, EdgeRole.CHILD, name, now),))
    return str(name)


async def add_to_run(services: Services, run: str, job: JobName) -> None:
    """Add a job to its run. The run's etag stays, because clients that write to the run need not know."""
    entry = {"custom_job_resource_name": str(job), "custom_job_console_uri": ""}

    def add(node: Node) -> Node:
        return replace(node, added={**node.added, _JOBS: [*node.added.get(_JOBS, ()), entry]})

    await services.metadata.change(NodeName.parse(run, NodeKind.CONTEXT), add)


async def _unknown_contexts(
    services: Services, project: str, spec: Spec, path: str
) -> tuple[Violation, ...]:
    """Check the experiment and its run, which the project must have."""
    faults = Faults()
    for key, field in _CONTEXTS.items():
        if not spec.get(key):
            continue
        at = f"{path}.{field}"
        with faults.gathered():
            name = NodeName.parse(spec[key], NodeKind.CONTEXT, of=at)
            if name.store.project_id != project:
                # Whether that project has it must not be told either.
                faults.add(at, f"{name} lies in another project than the job.")
                continue
            try:
                await services.metadata.get(name)
            except NotFound:
                faults.add(at, f"{name} does not exist; create it first, or leave the field out.")
    if spec.get("experimentRun") and not spec.get("experiment"):
        faults.add(f"{path}.experiment", "A run is given without its experiment.")
    return faults.violations


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
