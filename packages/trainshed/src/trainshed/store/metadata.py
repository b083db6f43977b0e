"""The store's port for metadata stores: contexts, artifacts, executions and the edges between them. Contract
suite: tests/contract/store."""

from collections.abc import Callable, Sequence
from typing import Protocol

from trainshed.core.metadata.conditions import NodeQuery
from trainshed.core.metadata.records import (
    Edge,
    Lineage,
    MetadataStore,
    Node,
    NodeName,
    StoreName,
)
from trainshed.store.records import Operation


class Metadata(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create_store(self, store: MetadataStore, operation: Operation | None = None) -> None:
        """Raises AlreadyExists."""
        ...

    async def store(self, name: StoreName) -> MetadataStore:
        """Raises NotFound."""
        ...

    async def stores(
        self, project_id: str, location: str, after: str, limit: int
    ) -> tuple[MetadataStore, ...]:
        """Return stores ascending by id, after the id `after` if that is not ""."""
        ...

    async def delete_store(self, name: StoreName, operation: Operation) -> None:
        """Delete a store and everything in it. Raises NotFound."""
        ...

    async def create(self, node: Node) -> None:
        """Store a node, which has no edges yet. Raises AlreadyExists, NotFound (the store)."""
        ...

    async def node(self, name: NodeName) -> Node:
        """Raises NotFound."""
        ...

    async def nodes(self, query: NodeQuery) -> tuple[Node, ...]:
        """Return the nodes that match a query. Raises NotFound (the store)."""
        ...

    async def change(self, name: NodeName, change: Callable[[Node], Node]) -> Node:
        """Replace a node by what `change`, a pure function, returns for it, in one step; its name and parents
        stay. If `change` returns the node unchanged, nothing is written. Raises NotFound, and what `change`
        raises."""
        ...

    async def delete(self, names: Sequence[NodeName], operation: Operation) -> None:
        """Delete nodes with their edges, all or none; nodes that were linked to them stay. Raises
        NotFound."""
        ...

    async def link(self, edges: Sequence[Edge]) -> None:
        """Add edges, all or none; an edge that exists already stays as it is. Raises NotFound (a node),
        InvalidRequest (a context would be among its own ancestors, or have more than ten parents)."""
        ...

    async def lineage(self, name: NodeName) -> Lineage:
        """Return, for a context, its artifacts and executions, those of its child contexts, and the events
        among them; for an execution, its artifacts. At most some thousand nodes. Raises NotFound."""
        ...
