"""Metadata stores: create, get, list, delete. Clients make one called `default` in each location."""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.metadata.messages import V1, read_id
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import decode_token, encode_token, page_size
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.resources.operations import done_at_once
from trainshed.core.metadata.records import MetadataStore, StoreName
from trainshed.store.records import OperationKind
from trainshed.wire import pool

SERVICE: Final = f"{V1}.MetadataService"
_STORE: Final = f"{V1}.MetadataStore"
_PAGE: Final = 100
_LARGEST: Final = 1000


async def create(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    services = call.services
    store_id = request.metadata_store_id or f"store-{services.new_uid()}"
    now = services.now()
    store = MetadataStore(
        StoreName(parent.project_id, parent.location, read_id(store_id, "metadata_store_id")),
        request.metadata_store.description,
        now,
        now,
    )
    done = done_at_once(services, store.name, OperationKind.CREATE, str(store.name), _view(store))
    await services.metadata.create_store(store, done)
    return operations.finished(done)


async def get(call: Call, request: Any) -> Message:
    return _view(await call.services.metadata.store(StoreName.parse(request.name)))


async def list_(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    size = page_size(request.page_size, default=_PAGE, maximum=_LARGEST)
    after = decode_token(request.page_token, str(parent)) if request.page_token else ""
    stores = await call.services.metadata.stores(
        parent.project_id, parent.location, after, size + 1
    )
    page = stores[:size]
    token = encode_token(page[-1].name.store_id, str(parent)) if len(stores) > size else ""
    return pool.message_class(f"{V1}.ListMetadataStoresResponse")(
        metadata_stores=[_view(store) for store in page], next_page_token=token
    )


async def delete(call: Call, request: Any) -> Message:
    """Delete a store with everything in it."""
    name = StoreName.parse(request.name)
    done = done_at_once(call.services, name, OperationKind.DELETE, str(name))
    await call.services.metadata.delete_store(name, done)
    return operations.finished(done)


HANDLERS: Final[Handlers] = {
    f"{SERVICE}.CreateMetadataStore": create,
    f"{SERVICE}.GetMetadataStore": get,
    f"{SERVICE}.ListMetadataStores": list_,
    f"{SERVICE}.DeleteMetadataStore": delete,
}


def _view(store: MetadataStore) -> Message:
    view: Any = pool.message_class(_STORE)(name=str(store.name), description=store.description)
    set_micros(view.create_time, store.created)
    set_micros(view.update_time, store.updated)
    return view
