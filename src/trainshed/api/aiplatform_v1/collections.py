"""What the three collections of works answer alike: a page of a list, cancel, delete
(facts/resources#vertex)."""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import operation_views
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.call import Call, Handler
from trainshed.api.calls.paging import Page, list_jobs, page_size
from trainshed.api.resources.jobs import cancel_for_user, delete_for_user, read_vertex_name
from trainshed.core.names import Api, Collection
from trainshed.core.works import Work
from trainshed.store.port import JobQuery
from trainshed.wire import pool

_PAGE: Final = 100


async def page_of(
    call: Call, request: Any, collection: Collection, passes: Callable[[Work], bool]
) -> Page:
    """The page that a List request asks for, of the works that pass. Raises InvalidRequest, NotFound (no such
    location)."""
    parent = known_location(request.parent)
    size = page_size(request.page_size, default=_PAGE, maximum=_PAGE)
    return await list_jobs(
        call.services.reader,
        JobQuery(parent.project_id, Api.VERTEX, parent.location, limit=size, collection=collection),
        passes,
        token=request.page_token,
        question=(str(parent), request.filter),
    )


def cancelling(collection: Collection) -> Handler:
    """The handler of the collection's Cancel method."""

    async def cancel(call: Call, request: Any) -> Message:
        await cancel_for_user(call.services, read_vertex_name(request.name, collection))
        return pool.message_class("google.protobuf.Empty")()

    return cancel


def deleting(collection: Collection) -> Handler:
    """The handler of the collection's Delete method."""

    async def delete(call: Call, request: Any) -> Message:
        name = read_vertex_name(request.name, collection)
        return operation_views.finished(await delete_for_user(call.services, name))

    return delete
