"""Checks the references of jobs to experiments and tensorboards (facts/experiments#jobs,
facts/experiments#curves), and adds jobs to runs."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from msgspec.structs import replace

from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Spec
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.names import JobName, project_number
from trainshed.core.requests import Faults, snake_case
from trainshed_tracking.metadata.records import Edge, EdgeRole, Node, NodeKind, NodeName, new_run
from trainshed_tracking.stores import Stores
from trainshed_tracking.tensorboards.records import BoardName, Level

_JOBS: Final = "_custom_jobs"


async def missing_references(
    stores: Stores, place: LocationName, spec: Spec, path: str
) -> tuple[Violation, ...]:
    """Return violations for a job's references to resources that do not exist."""
    return (
        *await _unknown_contexts(stores, place.project_id, spec, path),
        *await _unknown_board(stores, place, spec, path),
    )


async def _unknown_board(stores: Stores, place: LocationName, spec: Spec, path: str) -> tuple[Violation, ...]:
    """Check the job's tensorboard, which must exist in the job's location."""
    at = f"{path}.tensorboard"
    try:
        board = BoardName.parse(str(spec.get("tensorboard", "")), Level.TENSORBOARD, of=at)
    except InvalidRequest:
        return ()
    here = place.project_id, str(project_number(place.project_id))
    if board.project_id not in here or board.location != place.location:
        # Return the same error whether or not the tensorboard exists, so that a user learns nothing about
        # another project.
        text = f"{board} is not in {place}, the project and location of the job."
        return (Violation(at, text),)
    try:
        await stores.tensorboards.get(BoardName(place.project_id, place.location, board.ids))
    except NotFound:
        text = (
            f"{board} does not exist. Create it first, or leave the field out: the job's curves are kept "
            "in any case."
        )
        return (Violation(at, text),)
    return ()


@contextlib.asynccontextmanager
async def create_run(stores: Stores, experiment: str) -> AsyncGenerator[str]:
    """Create a run of an experiment for a job that specifies no run. Yield the run's name. If the job is
    rejected, delete the run."""
    parent = NodeName.parse(experiment, NodeKind.CONTEXT)
    now = stores.now()
    display_name = f"job-{stores.new_uid()}"
    name = NodeName(parent.store, NodeKind.CONTEXT, f"{parent.node_id}-{display_name}")
    await stores.metadata.create(new_run(name, display_name, now))
    try:
        await stores.metadata.link((Edge(parent, EdgeRole.CHILD, name, now),))
        yield str(name)
    except Exception:  # Delete the run of a rejected job.
        with contextlib.suppress(NotFound):  # A user may have deleted the run already.
            await stores.metadata.forget(name)
        raise


async def add_to_run(stores: Stores, run: str, job: JobName) -> None:
    """Add a job to its run. The run keeps its etag, so that other clients' writes do not fail."""
    entry = {"custom_job_resource_name": str(job), "custom_job_console_uri": ""}

    def add(node: Node) -> Node:
        return replace(node, added={**node.added, _JOBS: [*node.added.get(_JOBS, ()), entry]})

    # If a user has deleted the run, do nothing: the job is stored nevertheless.
    with contextlib.suppress(NotFound):
        await stores.metadata.change(NodeName.parse(run, NodeKind.CONTEXT), add)


async def _unknown_contexts(stores: Stores, project: str, spec: Spec, path: str) -> tuple[Violation, ...]:
    """Check the experiment and its run, which must exist in the project."""
    faults = Faults()
    for key in ("experiment", "experimentRun"):
        if not spec.get(key):
            continue
        at = f"{path}.{snake_case(key)}"
        with faults.collect():
            name = NodeName.parse(spec[key], NodeKind.CONTEXT, of=at)
            if name.store.project_id != project:
                # Do not check whether the resource exists, so that a user learns nothing about another
                # project.
                faults.add(at, f"{name} is in another project than the job.")
                continue
            try:
                await stores.metadata.get(name)
            except NotFound:
                faults.add(at, f"{name} does not exist. Create it first, or leave the field out.")
    if spec.get("experimentRun") and not spec.get("experiment"):
        faults.add(f"{path}.experiment", "experimentRun requires experiment. Set both.")
    return faults.violations
