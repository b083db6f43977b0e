"""`aiplatform` v1 MetadataService: stores with contexts, artifacts and executions.

Clients create a store `default` in each location. Contexts, artifacts and executions differ only in a few
fields (facts/experiments#limits). Their lists support filters (facts/experiments#filters). Edges connect
contexts with their contents, and executions with their input and output artifacts.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, cast

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.kinds import Kind
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import message, reject_encryption_key
from trainshed.api.calls.call import Call, Handler, Handlers
from trainshed.api.calls.masks import read_update_mask
from trainshed.api.calls.paging import Listing
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.filters.matching import (
    compile_tree,
    derive_bounds,
    label_test,
    ordered_test,
    text_test,
    time_test,
)
from trainshed.api.filters.syntax import And, Comparison, Expression, FilterError, Not, Or, Term, parse_filter
from trainshed.api.resources.operations import finished_operation
from trainshed.core.errors import Aborted, InvalidRequest, NotFound, Violation
from trainshed.core.patterns import Operator
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.syntax import check_texts, read_labels
from trainshed.core.units import Nanos
from trainshed.store.records import OperationKind
from trainshed.wire import json as wire_json
from trainshed_tracking.metadata.records import (
    MERGED,
    Edge,
    EdgeRole,
    MetadataStore,
    Node,
    NodeKind,
    NodeName,
    StoreName,
    merge,
    with_changes,
)
from trainshed_tracking.stores import Stores

MAX_METADATA: Final = 200_000
"""Maximum size in bytes of a node's metadata as JSON."""
_ID: Final = re.compile(r"[a-z0-9-]{1,128}")
_FIELDS: Final = ("display_name", "description", "labels", "metadata")
_OF_KIND: Final = {
    NodeKind.CONTEXT: _FIELDS,
    NodeKind.ARTIFACT: (*_FIELDS, "state", "uri"),
    NodeKind.EXECUTION: (*_FIELDS, "state"),
}
"""The fields that an update can change, by kind of node."""


async def create_store(kind: Kind[StoreName, MetadataStore], call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    reject_encryption_key(request.metadata_store, "metadata_store")
    store_id = request.metadata_store_id or f"store-{call.services.new_uid()}"
    name = StoreName(parent.project_id, parent.location, _read_id(store_id, "metadata_store_id"))
    now = call.services.now()
    return await kind.create(call, MetadataStore(name, request.metadata_store.description, now, now))


def _store_view(services: Services, store: MetadataStore) -> Message:
    view = message("MetadataStore", name=str(store.name), description=store.description)
    set_micros(view.create_time, store.created)
    set_micros(view.update_time, store.updated)
    return view


async def _create(stores: Stores, kind: NodeKind, call: Call, request: Any) -> Message:
    store = StoreName.parse(request.parent, of="parent")
    field = f"{kind.singular}_id"
    node_id = getattr(request, field) or f"{kind.singular}-{call.services.new_uid()}"
    faults = Faults()
    with faults.collect():
        _read_id(node_id, field)
    name = NodeName(store, kind, node_id)
    with faults.collect():
        sent = read_node(name, getattr(request, kind.singular), call.services.now())
    faults.refuse()
    return await _store_node(stores, sent)


async def _get(stores: Stores, kind: NodeKind, call: Call, request: Any) -> Message:
    return view(await stores.metadata.get(NodeName.parse(request.name, kind)))


async def _list(stores: Stores, kind: NodeKind, call: Call, request: Any) -> Message:
    """List nodes in the order of `order_by`. Default: oldest first."""
    store = StoreName.parse(request.parent, of="parent")
    passes, within = await _read_filter(stores, request.filter, store, kind)
    nodes = await stores.metadata.nodes(store, kind, within)
    page, token = await _LISTING.page_of(nodes, request, f"{store}/{kind}", passes)
    answer = {kind.value: map(view, page), "next_page_token": token}
    return message(f"List{message_name(kind)}sResponse", **answer)


async def _update(stores: Stores, kind: NodeKind, call: Call, request: Any) -> Message:
    resource = getattr(request, kind.singular)
    name = NodeName.parse(resource.name, kind, of=f"{kind.singular}.name")
    now = call.services.now()
    # Separate the paths of single metadata keys, such as `metadata.KEY`, from the paths of whole fields.
    paths, parts = list[str](), list[str]()
    for path in request.update_mask.paths:
        (parts if path.startswith("metadata.") else paths).append(path)
    mask = (*read_update_mask(paths, _OF_KIND[kind]), *parts)

    def update(node: Node) -> Node:
        return _apply_update(node, resource, mask, now)

    try:
        return view(await stores.metadata.change(name, update))
    except NotFound:
        if not request.allow_missing:
            raise
    _read_id(name.node_id, f"{kind.singular}.name")
    return await _store_node(stores, read_node(name, resource, now))


async def _delete(stores: Stores, kind: NodeKind, call: Call, request: Any) -> Message:
    """Delete a node. Connected nodes remain, such as a context's children and an execution's artifacts."""
    name = NodeName.parse(request.name, kind)

    def check(node: Node) -> None:
        if request.etag not in ("", str(node.etag)):
            raise _mismatch(node, request.etag)

    done = finished_operation(call.services, OperationKind.DELETE, str(name))
    await stores.metadata.delete(name, done, check)
    return operations.finished_view(done)


async def _store_node(stores: Stores, new: Node) -> Message:
    if new.schema_title in MERGED:
        new = with_changes(replace(new, metadata={}), new.metadata, new.etag)
    return view(await stores.metadata.create(new))


def message_name(kind: NodeKind) -> str:
    return kind.singular.capitalize()


def view(node: Node) -> Message:
    shown = message(
        message_name(node.name.kind),
        name=str(node.name),
        display_name=node.display_name,
        description=node.description,
        etag=str(node.etag),
        labels=dict(node.labels),
        schema_title=node.schema_title,
        schema_version=node.schema_version,
    )
    # The SDK reads the metadata of each node. Without this call, empty metadata would be missing.
    shown.metadata.SetInParent()
    shown.metadata.update(node.metadata | node.added)
    set_micros(shown.create_time, node.created)
    set_micros(shown.update_time, node.updated)
    if node.name.kind is NodeKind.CONTEXT:
        shown.parent_contexts.extend(map(str, node.parents))
    elif node.state:
        shown.state = node.state
    if node.name.kind is NodeKind.ARTIFACT:
        shown.uri = node.uri
    return shown


def read_node(name: NodeName, sent: Any, now: Nanos, added: Container[str] = ()) -> Node:
    """Return the new node that a request describes. Raises InvalidRequest with all faults."""
    faults = Faults()
    public = wire_json.to_public(sent)
    section = Section(public, name.kind.singular, faults)
    check_texts(section, "displayName", "description", "uri", "schemaTitle", "schemaVersion")
    labels = read_labels(section)
    metadata = {key: value for key, value in public.get("metadata", {}).items() if key not in added}
    with faults.collect():
        _require_small(name, metadata)
    faults.refuse()
    state = public.get("state", "")
    return Node(
        name,
        created=now,
        updated=now,
        etag=now // 10**6,
        display_name=sent.display_name,
        description=sent.description,
        schema_title=sent.schema_title,
        schema_version=sent.schema_version,
        uri=sent.uri if name.kind is NodeKind.ARTIFACT else "",
        state="" if state == "STATE_UNSPECIFIED" else state,
        labels=labels,
        metadata=metadata,
    )


def _require_small(name: NodeName, metadata: dict[str, Any]) -> None:
    if len(wire_json.encode_text(metadata)) > MAX_METADATA:
        text = f"It has more than {MAX_METADATA} bytes as JSON."
        raise InvalidRequest((Violation(f"{name.kind.singular}.metadata", text),))


def _read_id(node_id: str, field: str) -> str:
    """Return an ID unchanged if it is valid. Raises InvalidRequest otherwise."""
    if not _ID.fullmatch(node_id):
        text = f"{node_id!r} is not an id; it has at most 128 lowercase letters, digits and dashes."
        raise InvalidRequest((Violation(field, text),))
    return node_id


def _apply_update(node: Node, resource: Any, mask: tuple[str, ...], now: Nanos) -> Node:
    """Return the node after an update. Without a mask, all fields in the request change. An empty etag
    matches any state. If the etag is outdated, updates of experiments and their runs are merged. An update
    that changes nothing keeps the etag. Raises Aborted, InvalidRequest."""
    # If a client sends back values that the service added to an earlier response (`node.added`), ignore these
    # values.
    sent, etag = read_node(node.name, resource, now, node.added), resource.etag
    is_stale = etag not in ("", str(node.etag))
    if is_stale and not (node.schema_title in MERGED and re.fullmatch("[0-9]{1,19}", etag)):
        raise _mismatch(node, etag)
    new = node
    for name in ("display_name", "description", "labels", "state", "uri"):
        value = getattr(sent, name)
        if name in mask or (not mask and value):
            new = replace(new, **{name: value})
    metadata = node.metadata
    if resource.HasField("metadata") and (not mask or "metadata" in mask):
        metadata = sent.metadata
    elif resource.HasField("metadata"):
        keys = {path.partition(".")[2] for path in mask if path.startswith("metadata.")}
        kept = {key: value for key, value in metadata.items() if key not in keys}
        metadata = kept | {key: sent.metadata[key] for key in keys if key in sent.metadata}
    if is_stale:
        metadata = merge(node, metadata, int(etag))
    if metadata != node.metadata:
        _require_small(node.name, metadata)
    elif new == node:
        return node
    newest = max(node.etag + 1, sent.etag)
    if node.schema_title in MERGED:
        new = with_changes(new, metadata, newest)
    return replace(new, metadata=metadata, etag=newest, updated=sent.updated)


def _mismatch(node: Node, etag: str) -> Aborted:
    """Return the error for an outdated etag. The SDK over gRPC detects the error by this text, and reads the
    node again."""
    return Aborted(
        f"Specified {message_name(node.name.kind)} `etag`: `{etag}` does not match server `etag`: "
        f"`{node.etag}`"
    )


_ROLES: Final = {1: EdgeRole.INPUT, 2: EdgeRole.OUTPUT}
"""Roles by the numbers of the public enum."""


async def add_members(stores: Stores, call: Call, request: Any) -> Message:
    """Add artifacts and executions to a context. The context keeps its etag, so that the client's next write
    does not fail."""
    context = NodeName.parse(request.context, NodeKind.CONTEXT, of="context")
    members: list[NodeName] = []
    faults = Faults()
    with faults.collect():
        members += _names(request.artifacts, NodeKind.ARTIFACT, "artifacts")
    with faults.collect():
        members += _names(request.executions, NodeKind.EXECUTION, "executions")
    faults.refuse()
    at = call.services.now()
    await stores.metadata.link([Edge(context, EdgeRole.MEMBER, member, at) for member in members])
    return message("AddContextArtifactsAndExecutionsResponse")


async def add_children(stores: Stores, call: Call, request: Any) -> Message:
    """Add child contexts to a context. The contexts keep their etags."""
    context = NodeName.parse(request.context, NodeKind.CONTEXT, of="context")
    at = call.services.now()
    await stores.metadata.link(
        [
            Edge(context, EdgeRole.CHILD, child, at)
            for child in _names(request.child_contexts, NodeKind.CONTEXT, "child_contexts")
        ]
    )
    return message("AddContextChildrenResponse")


async def add_events(stores: Stores, call: Call, request: Any) -> Message:
    execution = NodeName.parse(request.execution, NodeKind.EXECUTION, of="execution")
    at = call.services.now()
    edges: list[Edge] = []
    faults = Faults()
    for number, event in enumerate(request.events):
        field = f"events[{number}]"
        role = _ROLES.get(event.type)
        if role is None:
            faults.add(f"{field}.type", "An event is of type INPUT or OUTPUT.")
        labels = read_labels(Section({"labels": dict(event.labels)}, field, faults))
        with faults.collect():
            artifact = NodeName.parse(event.artifact, NodeKind.ARTIFACT, of=f"{field}.artifact")
            if role is not None:
                edges.append(Edge(execution, role, artifact, at, labels))
    faults.refuse()
    await stores.metadata.link(edges)
    return message("AddExecutionEventsResponse")


async def _subgraph_of(stores: Stores, kind: NodeKind, call: Call, request: Any) -> Message:
    """Return the contents of a context and of its descendants, or the artifacts of an execution."""
    name = NodeName.parse(getattr(request, kind.singular), kind, of=kind.singular)
    lineage = await stores.metadata.lineage(name)
    graph = message("LineageSubgraph")
    for node in lineage.nodes:
        is_artifact = node.name.kind is NodeKind.ARTIFACT
        (graph.artifacts if is_artifact else graph.executions).append(view(node))
    for edge in lineage.events:
        event: Any = graph.events.add(
            artifact=str(edge.target),
            execution=str(edge.source),
            type=edge.role.value.upper(),
            labels=dict(edge.labels),
        )
        set_micros(event.event_time, edge.at)
    return graph


def _names(texts: Iterable[str], kind: NodeKind, field: str) -> list[NodeName]:
    names: list[NodeName] = []
    faults = Faults()
    for number, text in enumerate(texts):
        with faults.collect():
            names.append(NodeName.parse(text, kind, of=f"{field}[{number}]"))
    faults.refuse()
    return names


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "Create{}": _create,
    "Get{}": _get,
    "List{}s": _list,
    "Update{}": _update,
    "Delete{}": _delete,
}


def handlers(stores: Stores) -> Handlers:
    kind = Kind(
        "MetadataService",
        "MetadataStore",
        StoreName.parse,
        lambda _: stores.metadata_stores,
        _store_view,
        Listing[MetadataStore]("metadata stores", {}, {}, max_page=1_000),
    )
    bound: dict[str, Handler] = {
        "AddContextArtifactsAndExecutions": partial(add_members, stores),
        "AddContextChildren": partial(add_children, stores),
        "AddExecutionEvents": partial(add_events, stores),
        "QueryContextLineageSubgraph": partial(_subgraph_of, stores, NodeKind.CONTEXT),
        "QueryExecutionInputsAndOutputs": partial(_subgraph_of, stores, NodeKind.EXECUTION),
    }
    for node_kind in NodeKind:
        for method, handler in _METHODS.items():
            bound[method.format(message_name(node_kind))] = partial(handler, stores, node_kind)
    return kind.handlers(CreateMetadataStore=partial(create_store, kind), **bound)


_TEXTS: Final[Mapping[str, Callable[[Node], str]]] = {
    "schema_title": lambda node: node.schema_title,
    "display_name": lambda node: node.display_name,
    "uri": lambda node: node.uri,
    "state": lambda node: node.state,
    "name": lambda node: node.name.node_id,
}
_MOMENTS: Final[Mapping[str, Callable[[Node], Nanos]]] = {
    "create_time": lambda node: node.created,
    "update_time": lambda node: node.updated,
}
_LISTING: Final = Listing[Node](
    "nodes", _TEXTS, {**_MOMENTS, "display_name": _TEXTS["display_name"]}, max_page=1_000
)
_IN_CONTEXT: Final = {"in_context": (EdgeRole.MEMBER, False)}
_LINKS: Final[Mapping[NodeKind, Mapping[str, tuple[EdgeRole, bool]]]] = {
    NodeKind.CONTEXT: {"parent_contexts": (EdgeRole.CHILD, False), "child_contexts": (EdgeRole.CHILD, True)},
    NodeKind.ARTIFACT: _IN_CONTEXT,
    NodeKind.EXECUTION: _IN_CONTEXT,
}
"""By kind of node and name in a filter: the role of the edges between the context in the filter and the
matching nodes, and whether these edges point to that context."""
_TYPES: Final = ("string_value", "number_value", "bool_value")
Links = Mapping[Comparison | Term, frozenset[NodeName]]
"""For each comparison that refers to a context or a URI: the nodes that match the comparison."""


async def _read_filter(
    stores: Stores, text: str, store: StoreName, kind: NodeKind
) -> tuple[Callable[[Node], bool], frozenset[NodeName] | None]:
    """Return the predicate of a filter, and a superset of the matching nodes. A superset of None means all
    nodes. With the superset, a search for one context or one URI does not read the whole store. Raises
    InvalidRequest for the field `filter`."""
    try:
        tree = parse_filter(text, with_lists=True)
        links: dict[Comparison | Term, frozenset[NodeName]] = {}
        for leaf in _comparisons(tree):
            if link := _LINKS[kind].get(leaf.name):
                if leaf.operator not in (Operator.HAS, Operator.EQUAL):
                    raise FilterError(
                        f"{leaf.name} accepts only the operators : and =. To negate it, put NOT before it"
                    )
                role, inward = link
                context = _context(leaf.value, store)
                links[leaf] = await stores.metadata.linked_nodes(context, role, inward=inward)
            elif leaf.name == "uri" and leaf.operator is Operator.EQUAL and leaf.value:
                links[leaf] = await stores.metadata.nodes_at(store, leaf.value)
        passes = compile_tree(tree, lambda leaf: _leaf(leaf, kind, links))
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None
    within = derive_bounds(
        tree, links.get, lambda every: every[0].intersection(*every), lambda either: either[0].union(*either)
    )
    return passes, within


def _comparisons(expression: Expression | None) -> Iterator[Comparison]:
    match expression:
        case Comparison():
            yield expression
        case Not(operand):
            yield from _comparisons(operand)
        case And(operands) | Or(operands):
            for operand in operands:
                yield from _comparisons(operand)
        case _:
            pass


def _context(text: str, store: StoreName) -> NodeName:
    if "/" not in text:
        return NodeName(store, NodeKind.CONTEXT, text)
    try:
        return NodeName.parse(text, NodeKind.CONTEXT)
    except InvalidRequest:
        raise FilterError(
            f"{text!r} is not the name of a context. Use the ID of a context, or its full name"
        ) from None


def _leaf(leaf: Comparison | Term, kind: NodeKind, links: Links) -> Callable[[Node], bool]:
    if leaf in links:
        names = links[leaf]
        return lambda node: node.name in names
    if leaf.path[0] == "labels":
        labelled = label_test(leaf)
        return lambda node: labelled(node.labels)
    if isinstance(leaf, Term):
        raise FilterError(
            f'{leaf.name!r} has no operator; compare a field, for example display_name="{leaf.name}"'
        )
    if text_of := _TEXTS.get(leaf.name):
        # Compare only IDs: the value in the filter may be a full resource name.
        test = text_test(replace(leaf, value=leaf.value.rpartition("/")[2]) if leaf.name == "name" else leaf)
        return lambda node: test(text_of(node))
    if moment_of := _MOMENTS.get(leaf.name):
        happened = time_test(leaf)
        # Round down to microseconds, the resolution of times in responses, because clients compare with such
        # times.
        return lambda node: happened(moment_of(node) // 1_000 * 1_000)
    if leaf.path[0] == "metadata" and len(leaf.path) > 1:
        return _metadatum(leaf)
    known = ", ".join((*_TEXTS, *_MOMENTS, *_LINKS[kind]))
    raise FilterError(
        f"{kind} cannot be filtered by {leaf.name!r}; use {known}, labels.KEY or metadata.KEY.number_value"
    )


def _metadatum(leaf: Comparison) -> Callable[[Node], bool]:
    """Return the test for a comparison such as `metadata.KEY.number_value = 3`. If the name does not contain
    a type, the value in the filter determines the type. A value of another type is never equal."""
    path = leaf.path[1:]
    kind = path[-1] if path[-1] in _TYPES and len(path) > 1 else ""
    keys = [key for key in (path[:-1] if kind else path) if key not in ("struct_value", "fields")]
    types: tuple[type, ...] = (str,)
    test: Callable[[Any], bool]
    if kind == "bool_value" or (not kind and leaf.value in ("true", "false")):
        if leaf.value not in ("true", "false"):
            raise FilterError(f"{leaf.value!r} is neither true nor false. Use true or false")
        types, test = (bool,), ordered_test(leaf, leaf.value == "true")
    elif kind == "number_value":
        try:
            types, test = (int, float), ordered_test(leaf, float(leaf.value))
        except ValueError:
            raise FilterError(f"{leaf.value!r} is not a number. Use a number such as 0.5") from None
    else:
        test = text_test(leaf)

    def passes(node: Node) -> bool:
        value: Any = node.metadata
        for key in keys:
            if not isinstance(value, dict):
                return False
            value = cast("dict[str, Any]", value).get(key)
        return type(value) in types and test(value)

    return passes
