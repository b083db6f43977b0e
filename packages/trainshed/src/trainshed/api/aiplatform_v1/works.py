"""What custom jobs, tuning jobs and pipelines share: get, list, cancel and delete
(facts/resources#vertex)."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message
from trainshed.api.calls.call import Call, Handler, Handlers
from trainshed.api.calls.paging import list_jobs, page_size
from trainshed.api.filters.jobs import NO_FURTHER, Further, States, compile_job_filter
from trainshed.api.resources.jobs import (
    RESOURCES,
    cancel_work,
    delete_for_user,
    of_kind,
    read_vertex_name,
    read_work,
    with_link,
)
from trainshed.api.resources.submission import BucketUse
from trainshed.core.names import Api, Collection
from trainshed.core.requests import snake_case
from trainshed.core.works import Work
from trainshed.store.port import JobQuery
from trainshed.wire import pool

W = TypeVar("W", bound=Work)
_PAGE: Final = 100


class JobKind(Struct, Generic[W], frozen=True):
    """A collection of works, as its service shows it."""

    #: The service's name, such as `JobService`.
    service: str
    collection: Collection
    record: type[W]
    #: Return a work's message; the last argument says whether it is one of a list.
    view: Callable[[Call, W, bool], Awaitable[Message]]
    #: What lists can be filtered by.
    states: States
    further: Further = NO_FURTHER


def handlers(kind: JobKind[W], create: Handler) -> Handlers:
    collection, noun = kind.collection, RESOURCES[kind.collection]

    async def get(call: Call, request: Any) -> Message:
        name = read_vertex_name(request.name, collection)
        work, _ = await read_work(call.services.reader, name, kind.record)
        return await kind.view(call, with_link(call.services, work), False)

    async def list_(call: Call, request: Any) -> Message:
        wanted = compile_job_filter(request.filter, kind.states, kind.further)
        parent = known_location(request.parent)
        size = page_size(request.page_size, default=_PAGE, maximum=_PAGE)
        place = parent.project_id, Api.VERTEX, parent.location
        page = await list_jobs(
            call.services.reader,
            JobQuery(*place, limit=size, collection=collection),
            wanted,
            token=request.page_token,
            question=(str(parent), request.filter),
        )
        works = [with_link(call.services, of_kind(work, kind.record)) for work, _ in page.jobs]
        shown = [await kind.view(call, work, True) for work in works]
        answer = {f"{snake_case(noun)}s": shown, "next_page_token": page.next_token}
        return message(f"List{noun}sResponse", **answer)

    async def cancel(call: Call, request: Any) -> Message:
        work, _ = await call.services.reader.job(read_vertex_name(request.name, collection))
        await cancel_work(call.services, call.principal, work)
        return pool.message("google.protobuf.Empty")

    async def delete(call: Call, request: Any) -> Message:
        name = read_vertex_name(request.name, collection)
        return operations.finished(await delete_for_user(call.services, name))

    methods: dict[str, Handler] = {
        f"Create{noun}": create,
        f"Get{noun}": get,
        f"List{noun}s": list_,
        f"Cancel{noun}": cancel,
        f"Delete{noun}": delete,
    }
    return {f"{V1}.{kind.service}.{method}": handler for method, handler in methods.items()}


def bucket_uses(spec: Mapping[str, Any], path: str) -> Iterator[BucketUse]:
    """Yield the bucket paths of a CustomJobSpec, in public JSON, at `path` of its request."""
    for position, pool_spec in enumerate(spec.get("workerPoolSpecs", ())):
        uris = pool_spec.get("pythonPackageSpec", {}).get("packageUris", ())
        field = f"{path}.worker_pool_specs[{position}].python_package_spec.package_uris"
        yield from ((f"{field}[{index}]", uri) for index, uri in enumerate(uris))
    output = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "")
    yield f"{path}.base_output_directory.output_uri_prefix", output
