"""Stores metadata in SQLite: contexts, artifacts, executions and the edges between them."""

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec.structs import asdict, replace

from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.store.codec import Codec, Labels
from trainshed.store.sqlite.connections import Parameters, load_statements, missing, records
from trainshed.store.sqlite.tables import Resources
from trainshed_tracking.metadata.records import (
    Edge,
    EdgeRole,
    Lineage,
    MetadataStore,
    Node,
    NodeKind,
    NodeName,
    StoreName,
)

_HERE = Path(__file__).parent
_SQL = load_statements("metadata.sql", _HERE)
NODE = Codec("metadata_nodes", "record", Node)
"""Encodes a node without its parent contexts, which are stored as edges."""
EDGE_LABELS = Codec("metadata_edges", "labels", Labels)
MAX_PARENTS: Final = 10
_FIELDS: Final = {
    EdgeRole.CHILD: "child_contexts",
    EdgeRole.MEMBER: "context",
    EdgeRole.INPUT: "events",
    EdgeRole.OUTPUT: "events",
}
"""For each role: the request field that contains the edges with this role."""
MAX_LINEAGE: Final = 5_000
"""Maximum number of nodes in a lineage."""


class MetadataStores(Resources[StoreName, MetadataStore]):
    sql = load_statements("metadata_stores.sql", _HERE)
    codec = Codec("metadata_stores", "record", MetadataStore)

    def remove(self, connection: sqlite3.Connection, record: MetadataStore) -> tuple[MetadataStore, ...]:
        for statement in ("delete_edges", "delete_nodes"):
            connection.execute(self.sql[statement], self.key(record.name))
        return super().remove(connection, record)


class Metadata(Resources[NodeName, Node]):
    """The nodes of metadata stores. Edges have their own rows, from which a context's parent contexts are
    read."""

    sql = _SQL
    codec = NODE

    def key(self, name: NodeName) -> Parameters:
        return _key(name)

    def columns(self, record: Node) -> Parameters:
        return super().columns(replace(record, parents=())) | {
            "schema_title": record.schema_title,
            "display_name": record.display_name,
            "uri": record.uri,
            "state": record.state,
            "created": record.created,
            "updated": record.updated,
        }

    def insert(self, connection: sqlite3.Connection, record: Node) -> Node:
        """Store a node. Raises AlreadyExists, and NotFound if its metadata store does not exist."""
        _require_store(connection, record.name.store)
        return super().insert(connection, record)

    def read(self, connection: sqlite3.Connection, name: NodeName) -> Node:
        return self._with_parents(connection, super().read(connection, name))

    def remove(self, connection: sqlite3.Connection, record: Node) -> tuple[Node, ...]:
        """Delete a node. Nodes that edges connect with it remain."""
        connection.execute(_SQL["delete_edges"], {"node": _number(connection, record.name)})
        return super().remove(connection, record)

    async def forget(self, name: NodeName) -> None:
        """Delete a node, but store no operation for the deletion. Raises NotFound."""
        await self._writer.run(
            "forget", lambda connection: self.remove(connection, self.read(connection, name))
        )

    def _with_parents(self, connection: sqlite3.Connection, node: Node) -> Node:
        if node.name.kind is not NodeKind.CONTEXT:
            return node
        parents = _ends(connection, "sources", node.name, EdgeRole.CHILD)
        return replace(node, parents=tuple(sorted(parents)))

    async def nodes(
        self, store: StoreName, kind: NodeKind, within: Collection[NodeName] | None = None
    ) -> tuple[Node, ...]:
        """Return the nodes of one kind, oldest first. `within`: return only these nodes; None = all nodes.
        Raises NotFound if the metadata store does not exist."""

        def read(connection: sqlite3.Connection) -> tuple[Node, ...]:
            _require_store(connection, store)
            if within is None:
                place = asdict(store) | {"kind": kind}
                nodes = records(connection, _SQL["list"], place, NODE)
            else:
                # Omit nodes of other stores: a filter may refer to a context of another store, but the caller
                # has permission for this store only.
                names = [name for name in sorted(within) if (name.store, name.kind) == (store, kind)]
                keys = map(self.key, names)
                record_lists = [records(connection, _SQL["get"], key, NODE) for key in keys]
                nodes = tuple(sorted(chain.from_iterable(record_lists), key=lambda node: node.created))
            return tuple([self._with_parents(connection, node) for node in nodes])

        return await self._snapshots.read_async(read)

    async def linked_nodes(self, name: NodeName, role: EdgeRole, *, inward: bool) -> frozenset[NodeName]:
        """Return the targets of a node's outgoing edges with this role. `inward`: return the sources of its
        incoming edges instead. Return nothing if the node does not exist."""

        def read(connection: sqlite3.Connection) -> frozenset[NodeName]:
            return frozenset(_ends(connection, "sources" if inward else "targets", name, role))

        return await self._snapshots.read_async(read)

    async def nodes_at(self, store: StoreName, uri: str) -> frozenset[NodeName]:
        """Return the nodes of a metadata store whose content is at a URI, which is not empty."""

        def read(connection: sqlite3.Connection) -> frozenset[NodeName]:
            rows = connection.execute(_SQL["at_uri"], asdict(store) | {"uri": uri})
            return frozenset(NodeName(store, NodeKind(kind), node_id) for kind, node_id in rows)

        return await self._snapshots.read_async(read)

    async def link(self, edges: Sequence[Edge]) -> None:
        """Add all edges or none. Existing edges remain. Raises NotFound if a node does not exist. Raises
        InvalidRequest if a context would become its own ancestor or have more than ten parent contexts."""

        def work(connection: sqlite3.Connection) -> None:
            for edge in edges:
                _link(connection, edge)

        await self._writer.run("link", work)

    async def lineage(self, name: NodeName) -> Lineage:
        """Return the artifacts and executions of a context and of its child contexts with their events, or
        the artifacts of an execution. The result has at most `MAX_LINEAGE` nodes. Raises NotFound."""

        def read(connection: sqlite3.Connection) -> Lineage:
            start = _number(connection, name)
            is_context = name.kind is NodeKind.CONTEXT
            statement = _SQL["members" if is_context else "neighbours"]
            rows = connection.execute(statement, {"node": start, "limit": MAX_LINEAGE})
            numbers = {number for (number,) in rows}
            if not is_context:
                numbers.add(start)
            return _lineage(connection, numbers)

        return await self._snapshots.read_async(read)


def _lineage(connection: sqlite3.Connection, numbers: Iterable[int]) -> Lineage:
    """Return artifacts and executions by row number, with the events between them."""
    nodes = {
        number: node
        for number in sorted(numbers)
        # `records` skips rows that it cannot read. Such nodes and their events are then omitted.
        for node in records(connection, _SQL["by_number"], {"node": number}, NODE)
    }
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
        text = f"{edge.target} is not in {edge.source.store}."
        raise InvalidRequest((Violation(_FIELDS[edge.role], text),))
    source, target = _number(connection, edge.source), _number(connection, edge.target)
    ends = {"source": source, "role": edge.role, "target": target}
    connection.execute(_SQL["insert_edge"], ends | {"at": edge.at, "labels": EDGE_LABELS.encode(edge.labels)})
    if edge.role is not EdgeRole.CHILD:
        return
    row = connection.execute(_SQL["is_below"], {"ancestor": target, "node": source})
    if row.fetchone() != (0,):
        text = f"{edge.target} is {edge.source} itself, or above it; it cannot be its child as well."
        raise InvalidRequest((Violation("child_contexts", text),))
    if len(_ends(connection, "sources", edge.target, EdgeRole.CHILD)) > MAX_PARENTS:
        text = f"{edge.target} would have more than {MAX_PARENTS} parents; remove it from one first."
        raise InvalidRequest((Violation("child_contexts", text),))


def _key(name: NodeName) -> Parameters:
    return asdict(name.store) | {"kind": name.kind, "node_id": name.node_id}


def _number(connection: sqlite3.Connection, name: NodeName) -> int:
    """Return the row number of a node, which the rows of edges contain. Raises NotFound."""
    row = connection.execute(_SQL["number"], _key(name)).fetchone()
    if row is None:
        raise missing(name)
    return row[0]


def _require_store(connection: sqlite3.Connection, name: StoreName) -> None:
    if connection.execute(MetadataStores.sql["get"], asdict(name)).fetchone() is None:
        raise NotFound(f"{name} does not exist; create the metadata store first")


def _ends(connection: sqlite3.Connection, statement: str, name: NodeName, role: EdgeRole) -> list[NodeName]:
    """Return the nodes that edges with this role connect to the node `name`. `statement`: `targets` = of
    outgoing edges, `sources` = of incoming edges."""
    rows = connection.execute(_SQL[statement], _key(name) | {"role": role})
    return [NodeName(name.store, NodeKind(kind), node_id) for kind, node_id in rows]
