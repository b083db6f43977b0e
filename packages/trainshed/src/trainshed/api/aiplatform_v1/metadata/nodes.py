"""Metadata stores, of which clients make one called `default` in each location, and what is in them:
contexts, artifacts and executions, which differ in a few fields only. Create, get, list, update, delete.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.metadata.filters import ORDERS, read_filter
from trainshed.api.aiplatform_v1.metadata.messages import (
    V1,
    NodeFields,
    message_name,
    mismatch,
    read_fields,
    read_id,
    read_mask,
    updated,
    view,
)
from trainshed.api.calls.call import Call, Handler, Handlers
from trainshed.api.calls.paging import (
    decode_number,
    decode_token,
    encode_token,
    page_size,
    read_order,
)
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.resources.operations import done_at_once
from trainshed.core.errors import NotFound
from trainshed.core.metadata.conditions import NodeQuery, Order
from trainshed.core.metadata.merging import changed
from trainshed.core.metadata.records import (
    MERGED,
    MetadataStore,
    Node,
    NodeKind,
    NodeName,
    StoreName,
)
from trainshed.core.requests import Faults
from trainshed.store.records import OperationKind
from trainshed.wire import pool

SERVICE: Final = f"{V1}.MetadataService"
_STORE: Final = f"{V1}.MetadataStore"


async def create_store(call: Call, request: Any) -> Message:
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
    done = done_at_once(
        services, store.name, OperationKind.CREATE, str(store.name), _store_view(store)
    )
    await services.metadata.create_store(store, done)
    return operations.finished(done)


async def get_store(call: Call, request: Any) -> Message:
    return _store_view(await call.services.metadata.store(StoreName.parse(request.name)))


async def list_stores(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    size = page_size(request.page_size, default=_PAGE, maximum=_LARGEST)
    after = decode_token(request.page_token, str(parent)) if request.page_token else ""
    stores = await call.services.metadata.stores(
        parent.project_id, parent.location, after, size + 1
    )
    page = stores[:size]
    token = encode_token(page[-1].name.store_id, str(parent)) if len(stores) > size else ""
    return pool.message_class(f"{V1}.ListMetadataStoresResponse")(
        metadata_stores=[_store_view(store) for store in page], next_page_token=token
    )


async def delete_store(call: Call, request: Any) -> Message:
    """Delete a store with everything in it."""
    name = StoreName.parse(request.name)
    done = done_at_once(call.services, name, OperationKind.DELETE, str(name))
    await call.services.metadata.delete_store(name, done)
    return operations.finished(done)


def _store_view(store: MetadataStore) -> Message:
    view: Any = pool.message_class(_STORE)(name=str(store.name), description=store.description)
    set_micros(view.create_time, store.created)
    set_micros(view.update_time, store.updated)
    return view


_PAGE: Final = 100
_LARGEST: Final = 1000


async def _create(kind: NodeKind, call: Call, request: Any) -> Message:
    store = StoreName.parse(request.parent, of="parent")
    field = f"{kind.singular}_id"
    node_id = getattr(request, field) or f"{kind.singular}-{call.services.new_uid()}"
    faults = Faults()
    with faults.gathered():
        read_id(node_id, field)
    with faults.gathered():
        fields = read_fields(getattr(request, kind.singular), kind)
    faults.refuse()
    node = _new(call, NodeName(store, kind, node_id), fields)
    await call.services.metadata.create(node)
    return view(node)


async def _get(kind: NodeKind, call: Call, request: Any) -> Message:
    return view(await call.services.metadata.node(NodeName.parse(request.name, kind)))


async def _list(kind: NodeKind, call: Call, request: Any) -> Message:
    """List nodes, oldest first unless `order_by` says otherwise."""
    store = StoreName.parse(request.parent, of="parent")
    condition = read_filter(request.filter, store, kind)
    orders = read_order(request.order_by, ORDERS, most=1)
    order, descending = orders[0] if orders else (Order.CREATED, False)
    size = page_size(request.page_size, default=_PAGE, maximum=_LARGEST)
    question = (str(store), kind.value, request.filter, request.order_by)
    offset = decode_number(request.page_token, *question)
    query = NodeQuery(store, kind, condition, size + 1, order, descending, offset)
    nodes = await call.services.metadata.nodes(query)
    more = len(nodes) > size
    return pool.message_class(f"{V1}.List{message_name(kind)}sResponse")(
        **{kind.value: [view(node) for node in nodes[:size]]},
        next_page_token=encode_token(str(offset + size), *question) if more else "",
    )


async def _update(kind: NodeKind, call: Call, request: Any) -> Message:
    sent = getattr(request, kind.singular)
    name = NodeName.parse(sent.name, kind, of=f"{kind.singular}.name")
    fields = read_fields(sent, kind)
    mask = read_mask(request.update_mask.paths, kind)
    now = call.services.now()
    metadata = call.services.metadata
    try:
        return view(
            await metadata.change(name, lambda node: updated(node, fields, mask, sent.etag, now))
        )
    except NotFound:
        if not request.allow_missing:
            raise
    read_id(name.node_id, f"{kind.singular}.name")
    node = _new(call, name, fields)
    await metadata.create(node)
    return view(node)


async def _delete(kind: NodeKind, call: Call, request: Any) -> Message:
    """Delete a node. What was linked to it stays: a context's children, an execution's artifacts."""
    name = NodeName.parse(request.name, kind)
    services = call.services
    if request.etag:
        node = await services.metadata.node(name)
        if request.etag != str(node.etag):
            raise mismatch(node, request.etag)
    done = done_at_once(services, name.store, OperationKind.DELETE, str(name))
    await services.metadata.delete((name,), done)
    return operations.finished(done)


def _new(call: Call, name: NodeName, fields: NodeFields) -> Node:
    now = call.services.now()
    etag = now // 10**6
    node = Node(
        name=name,
        created=now,
        updated=now,
        etag=etag,
        display_name=fields.display_name,
        description=fields.description,
        schema_title=fields.schema_title,
        schema_version=fields.schema_version,
        uri=fields.uri,
        state=fields.state,
        labels=fields.labels,
    )
    metadata = fields.metadata or {}
    if node.schema_title in MERGED:
        return changed(node, metadata, etag)
    return replace(node, metadata=metadata)


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "Create{}": _create,
    "Get{}": _get,
    "List{}s": _list,
    "Update{}": _update,
    "Delete{}": _delete,
}


def _handlers() -> dict[str, Handler]:
    stores: dict[str, Handler] = {
        f"{SERVICE}.CreateMetadataStore": create_store,
        f"{SERVICE}.GetMetadataStore": get_store,
        f"{SERVICE}.ListMetadataStores": list_stores,
        f"{SERVICE}.DeleteMetadataStore": delete_store,
    }
    return stores | {
        f"{SERVICE}.{method.format(message_name(kind))}": partial(handler, kind)
        for kind in NodeKind
        for method, handler in _METHODS.items()
    }


HANDLERS: Final[Handlers] = _handlers()
