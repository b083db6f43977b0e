"""The store's door for metadata stores: contexts, artifacts, executions and the edges between them. Contract
suite: tests/contract/store."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from trainshed.core.metadata.conditions import NodeQuery
from trainshed.core.metadata.records import (
    Children,
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
        """Ascending by id, behind the id `after` if that is not ""."""
        ...

    async def delete_store(self, name: StoreName, operation: Operation) -> None:
        """With all that is in it. Raises NotFound."""
        ...

    async def create(self, node: Node) -> None:
        """Store a node, as yet without edges. Raises AlreadyExists, NotFound (the store)."""
        ...

    async def node(self, name: NodeName) -> Node:
        """Raises NotFound."""
        ...

    async def nodes(self, query: NodeQuery) -> tuple[Node, ...]:
        """Raises NotFound (the store)."""
        ...

    async def children(
        self, names: Sequence[NodeName], *, schema_title: str
    ) -> Mapping[NodeName, Children]:
        """Of each of these contexts of one store, its child contexts of that schema; none of one that is not
        there."""
        ...

    async def change(self, name: NodeName, change: Callable[[Node], Node]) -> Node:
        """Replace a node by what `change`, a pure function, makes of it, in one step; its name and parents
        stay. A node that `change` returns as it is costs no write. Raises NotFound, and what `change`
        raises."""
        ...

    async def delete(self, names: Sequence[NodeName], operation: Operation) -> None:
        """All or none, with their edges; what was linked to them stays. Raises NotFound."""
        ...

    async def link(self, edges: Sequence[Edge]) -> None:
        """Add edges, all or none; one that is there already stays as it is. Raises NotFound (a node),
        InvalidRequest (a context would be among its own ancestors, or have more than ten parents)."""
        ...

    async def unlink(self, edges: Sequence[Edge]) -> None:
        """Remove edges; nothing for one that is not there. Raises NotFound (a node)."""
        ...

    async def lineage(self, name: NodeName, hops: int) -> Lineage:
        """Of a context: its artifacts and executions, its child contexts' too, and the events among them.
        Of an execution: its artifacts. Of an artifact: what is at most `hops` events away. At most some
        thousand nodes. Raises NotFound."""
        ...
