"""Metadata stores in SQLite: contexts, artifacts, executions and the edges between them."""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from msgspec.structs import asdict, replace

from trainshed.core.errors import AlreadyExists, InvalidRequest, NotFound, Violation
from trainshed.core.metadata import (
    Edge,
    EdgeRole,
    Lineage,
    MetadataStore,
    Node,
    NodeKind,
    NodeName,
    StoreName,
)
from trainshed.store.codec import EDGE_LABELS, METADATA_STORE, NODE
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import Parameters, Port, load_statements, missing
from trainshed.store.sqlite.writes import insert_operation

_SQL = load_statements("metadata.sql")
MAX_PARENTS: Final = 10
_FIELDS: Final = {
    EdgeRole.CHILD: "child_contexts",
    EdgeRole.MEMBER: "context",
    EdgeRole.INPUT: "events",
    EdgeRole.OUTPUT: "events",
}
"""The field of a request that an edge of each role comes from."""
MAX_LINEAGE: Final = 5_000
"""Most nodes of a lineage."""


class Metadata(Port):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create_store(self, store: MetadataStore, operation: Operation | None = None) -> None:
        """Raises AlreadyExists."""
        parameters = asdict(store.name) | {"record": METADATA_STORE.encode(store)}

        def work(connection: sqlite3.Connection) -> None:
            if connection.execute(_SQL["insert_store"], parameters).rowcount != 1:
                raise AlreadyExists(f"{store.name} exists already")
            if operation is not None:
                insert_operation(connection, operation)

        await self._writer.run("create_store", work)

    async def store(self, name: StoreName) -> MetadataStore:
        """Raises NotFound."""
        return self._snapshots.here(lambda connection: _store(connection, name))

    async def stores(
        self, project_id: str, location: str, after: str, limit: int
    ) -> tuple[MetadataStore, ...]:
        """Return stores ascending by id, after the id `after` if that is not ""."""
        place = {"project_id": project_id, "location": location, "after": after, "limit": limit}
        return await self._records(_SQL["stores"], place, METADATA_STORE)

    async def delete_store(self, name: StoreName, operation: Operation) -> None:
        """Delete a store and everything in it. Raises NotFound."""

        def work(connection: sqlite3.Connection) -> None:
            _store(connection, name)
            for statement in ("delete_edges_of_store", "delete_nodes_of_store", "delete_store"):
                connection.execute(_SQL[statement], asdict(name))
            insert_operation(connection, operation)

        await self._writer.run("delete_store", work)

    async def create(self, node: Node) -> None:
        """Store a node, which has no edges yet. Raises AlreadyExists, NotFound (the store)."""
        parameters = _columns(node)

        def work(connection: sqlite3.Connection) -> None:
            _store(connection, node.name.store)
            if connection.execute(_SQL["insert_node"], parameters).rowcount != 1:
                raise AlreadyExists(f"{node.name} exists already; choose another id")

        await self._writer.run("create", work)

    async def node(self, name: NodeName) -> Node:
        """Raises NotFound."""
        return self._snapshots.here(lambda connection: _read(connection, name)[1])

    async def nodes(
        self, store: StoreName, kind: NodeKind, within: Collection[NodeName] | None = None
    ) -> tuple[Node, ...]:
        """Return the nodes of one kind, oldest first; those of `within` alone if that is not None. Raises
        NotFound (the store)."""

        def read(connection: sqlite3.Connection) -> tuple[Node, ...]:
            _store(connection, store)
            if within is None:
                rows = connection.execute(_SQL["nodes"], asdict(store) | {"kind": kind}).fetchall()
            else:
                keys = [_of_node(name) for name in within if name.kind is kind]
                stored = [connection.execute(_SQL["node"], key).fetchone() for key in keys]
                rows = sorted(row for row in stored if row is not None)
            nodes = [_decoded(connection, store, number, raw) for number, raw in rows]
            return tuple(sorted(nodes, key=lambda node: node.created))

        return await self._snapshots.aside(read)

    async def linked(self, name: NodeName, role: EdgeRole, *, inward: bool) -> frozenset[NodeName]:
        """Return the nodes to which the edges of this role go from a node, or (`inward`) from which they come
        to it; none for a node that does not exist."""

        def read(connection: sqlite3.Connection) -> frozenset[NodeName]:
            ends = connection.execute(
                _SQL["sources" if inward else "targets"], _of_node(name) | {"role": role}
            )
            return frozenset(NodeName(name.store, NodeKind(kind), end) for kind, end in ends)

        return await self._snapshots.aside(read)

    async def change(self, name: NodeName, change: Callable[[Node], Node]) -> Node:
        """Replace a node by what `change`, a pure function, returns for it, in one step; its name and parents
        stay. If `change` returns the node unchanged, nothing is written. Raises NotFound, and what `change`
        raises."""

        def work(connection: sqlite3.Connection) -> Node:
            number, old = _read(connection, name)
            new = replace(change(old), name=old.name, parents=old.parents)
            if new != old:
                connection.execute(_SQL["replace_node"], _columns(new) | {"node": number})
            return new

        return await self._writer.run("change", work)

    async def delete(self, names: Sequence[NodeName], operation: Operation) -> None:
        """Delete nodes with their edges, all or none; nodes that were linked to them stay. Raises
        NotFound."""

        def work(connection: sqlite3.Connection) -> None:
            for name in names:
                number = {"node": _number(connection, name)}
                connection.execute(_SQL["delete_edges"], number)
                connection.execute(_SQL["delete_node"], number)
            insert_operation(connection, operation)

        await self._writer.run("delete", work)

    async def link(self, edges: Sequence[Edge]) -> None:
        """Add edges, all or none; an edge that exists already stays as it is. Raises NotFound (a node),
        InvalidRequest (a context would be among its own ancestors, or have more than ten parents)."""

        def work(connection: sqlite3.Connection) -> None:
            for edge in edges:
                _link(connection, edge)

        await self._writer.run("link", work)

    async def lineage(self, name: NodeName) -> Lineage:
        """Return, for a context, its artifacts and executions, those of its child contexts, and the events
        among them; for an execution, its artifacts. At most some thousand nodes. Raises NotFound."""

        def read(connection: sqlite3.Connection) -> Lineage:
            start = _number(connection, name)
            is_context = name.kind is NodeKind.CONTEXT
            statement = _SQL["members" if is_context else "neighbours"]
            rows = connection.execute(statement, {"node": start, "limit": MAX_LINEAGE})
            numbers = {number for (number,) in rows}
            if not is_context:
                numbers.add(start)
            return _lineage(connection, name.store, numbers)

        return await self._snapshots.aside(read)


def _lineage(connection: sqlite3.Connection, store: StoreName, numbers: Iterable[int]) -> Lineage:
    """Return these nodes and the events between them."""
    nodes: dict[int, Node] = {}
    for number in sorted(numbers):
        row = connection.execute(_SQL["node_by_number"], {"node": number}).fetchone()
        if row is not None:  # Otherwise it was set aside.
            nodes[number] = _decoded(connection, store, number, row[0])
    events = [
        Edge(node.name, EdgeRole(role), nodes[target].name, at, EDGE_LABELS.decode(labels))
        for number, node in nodes.items()
        if node.name.kind is NodeKind.EXECUTION
        for role, target, at, labels in connection.execute(_SQL["events"], {"node": number})
        if target in nodes
    ]
    return Lineage(tuple(nodes.values()), tuple(events))


def _link(connection: sqlite3.Connection, edge: Edge) -> None:
    if edge.source.store != edge.target.store:
        text = f"{edge.target} does not lie in {edge.source.store}."
        raise InvalidRequest((Violation(_FIELDS[edge.role], text),))
    source, target = _number(connection, edge.source), _number(connection, edge.target)
    ends = {"source": source, "role": edge.role, "target": target}
    connection.execute(
        _SQL["insert_edge"], ends | {"at": edge.at, "labels": EDGE_LABELS.encode(edge.labels)}
    )
    if edge.role is not EdgeRole.CHILD:
        return
    row = connection.execute(_SQL["is_below"], {"ancestor": target, "node": source})
    if row.fetchone() != (0,):
        text = (
            f"{edge.target} is {edge.source} itself, or above it; it cannot be its child as well."
        )
        raise InvalidRequest((Violation("child_contexts", text),))
    if len(connection.execute(_SQL["parents"], {"node": target}).fetchall()) > MAX_PARENTS:
        text = (
            f"{edge.target} would have more than {MAX_PARENTS} parents; remove it from one first."
        )
        raise InvalidRequest((Violation("child_contexts", text),))


def _store(connection: sqlite3.Connection, name: StoreName) -> MetadataStore:
    row = connection.execute(_SQL["store"], asdict(name)).fetchone()
    if row is None:
        raise NotFound(f"{name} does not exist; create the metadata store first")
    return METADATA_STORE.decode(row[0])


def _row(connection: sqlite3.Connection, name: NodeName) -> tuple[int, bytes]:
    row = connection.execute(_SQL["node"], _of_node(name)).fetchone()
    if row is None:
        raise missing(name)
    return row


def _number(connection: sqlite3.Connection, name: NodeName) -> int:
    return _row(connection, name)[0]


def _read(connection: sqlite3.Connection, name: NodeName) -> tuple[int, Node]:
    number, raw = _row(connection, name)
    return number, _decoded(connection, name.store, number, raw)


def _decoded(connection: sqlite3.Connection, store: StoreName, number: int, raw: bytes) -> Node:
    node = NODE.decode(raw)
    if node.name.kind is not NodeKind.CONTEXT:
        return node
    parents = connection.execute(_SQL["parents"], {"node": number})
    names = tuple([NodeName(store, NodeKind.CONTEXT, node_id) for (node_id,) in parents])
    return replace(node, parents=names)


def _of_node(name: NodeName) -> Parameters:
    return asdict(name.store) | {"kind": name.kind, "node_id": name.node_id}


def _columns(node: Node) -> Parameters:
    """Return all columns of a node; its parents are stored as edges."""
    return _of_node(node.name) | {
        "schema_title": node.schema_title,
        "display_name": node.display_name,
        "uri": node.uri,
        "state": node.state,
        "created": node.created,
        "updated": node.updated,
        "record": NODE.encode(replace(node, parents=())),
    }
