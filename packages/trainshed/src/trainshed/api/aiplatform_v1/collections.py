"""What custom jobs, tuning jobs and pipelines share: a page of a list, cancel, delete, and the check of
secrets (facts/resources#vertex)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.call import Call, Handler
from trainshed.api.calls.paging import Page, list_jobs, page_size
from trainshed.api.calls.services import Services
from trainshed.api.filters.jobs import JobFilter
from trainshed.api.resources.jobs import cancel_work, delete_for_user, read_vertex_name
from trainshed.core.errors import Violation
from trainshed.core.names import Api, Collection
from trainshed.core.secrets import SecretRef, references
from trainshed.store.port import JobQuery
from trainshed.wire import pool

_PROGRAMS: Final = (
    ("container_spec", "containerSpec"),
    ("python_package_spec", "pythonPackageSpec"),
)
_PAGE: Final = 100


async def page_of(call: Call, request: Any, collection: Collection, wanted: JobFilter) -> Page:
    """Return the page that a List request asks for, of the works that pass the filter. Raises InvalidRequest,
    NotFound (no such location)."""
    parent = known_location(request.parent)
    size = page_size(request.page_size, default=_PAGE, maximum=_PAGE)
    return await list_jobs(
        call.services.reader,
        JobQuery(parent.project_id, Api.VERTEX, parent.location, limit=size, collection=collection),
        wanted,
        token=request.page_token,
        question=(str(parent), request.filter),
    )


def cancelling(collection: Collection) -> Handler:
    """Return the handler of the collection's Cancel method."""

    async def cancel(call: Call, request: Any) -> Message:
        work, _ = await call.services.reader.job(read_vertex_name(request.name, collection))
        await cancel_work(call.services, call.principal, work)
        return pool.message_class("google.protobuf.Empty")()

    return cancel


def deleting(collection: Collection) -> Handler:
    """Return the handler of the collection's Delete method."""

    async def delete(call: Call, request: Any) -> Message:
        name = read_vertex_name(request.name, collection)
        return operations.finished(await delete_for_user(call.services, name))

    return delete


async def unknown_secrets(
    services: Services, parent: str, spec: Mapping[str, Any], path: str
) -> tuple[Violation, ...]:
    """Return a violation for each variable that names a secret which the project of `parent` does not have.
    `spec`: a CustomJobSpec in public JSON, at `path` of its request. Faults of `parent` and of the notation
    are reported elsewhere."""
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
