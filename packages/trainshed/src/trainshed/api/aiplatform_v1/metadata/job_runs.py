"""The experiment runs that jobs belong to (facts/experiments#jobs)."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from trainshed.api.calls.services import Services
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.metadata.merging import changed
from trainshed.core.metadata.records import (
    EXPERIMENT_RUN,
    Edge,
    EdgeRole,
    Node,
    NodeKind,
    NodeName,
)
from trainshed.core.names import JobName

_JOBS: Final = "_custom_jobs"
_FIELDS: Final = {"experiment": "experiment", "experimentRun": "experiment_run"}


async def unknown_contexts(
    services: Services, project: str, spec: Mapping[str, Any], path: str
) -> tuple[Violation, ...]:
    """Return violations for an experiment or a run that a CustomJobSpec names and that its project does not
    have.

    `spec`: in public JSON, from `path` of the request.
    """
    violations: list[Violation] = []
    for key, field in _FIELDS.items():
        if not spec.get(key):
            continue
        at = f"{path}.{field}"
        try:
            name = NodeName.parse(spec[key], NodeKind.CONTEXT, of=at)
            if name.store.project_id != project:
                text = f"{name} lies in another project than the job."
                violations.append(Violation(at, text))
                continue  # Whether that project has it must not be told either.
            await services.metadata.node(name)
        except InvalidRequest as error:
            violations += error.violations
        except NotFound:
            text = f"{spec[key]} does not exist; create it first, or leave the field out."
            violations.append(Violation(at, text))
    if spec.get("experimentRun") and not spec.get("experiment"):
        violations.append(Violation(f"{path}.experiment", "A run is given without its experiment."))
    return tuple(violations)


async def make_run(services: Services, experiment: str) -> str:
    """Make a new run of an experiment, for a job that names none of its own, and return its name."""
    parent = NodeName.parse(experiment, NodeKind.CONTEXT)
    now = services.now()
    display_name = f"job-{services.new_uid()}"
    name = NodeName(parent.store, NodeKind.CONTEXT, f"{parent.node_id}-{display_name}")
    etag = now // 10**6
    run = Node(name, now, now, etag, display_name=display_name, schema_title=EXPERIMENT_RUN)
    run = replace(run, schema_version="0.0.1")
    metadata: dict[str, Any] = {"_params": {}, "_metrics": {}, "_state": "RUNNING"}
    await services.metadata.create(changed(run, metadata, etag))
    await services.metadata.link((Edge(parent, EdgeRole.CHILD, name, now),))
    return str(name)


async def add_job(services: Services, run: str, job: JobName) -> None:
    """Add a job to its run. The run's etag stays, because clients that write to the run need not know."""
    entry = {"custom_job_resource_name": str(job), "custom_job_console_uri": ""}

    def add(node: Node) -> Node:
        return replace(node, added={**node.added, _JOBS: [*node.added.get(_JOBS, ()), entry]})

    await services.metadata.change(NodeName.parse(run, NodeKind.CONTEXT), add)
