"""Contract of all stores for metadata (`trainshed_tracking.metadata.table`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.metadata_samples import (
    STORE,
    artifact,
    context,
    edge,
    execution,
    make_metadata_store,
    make_node,
    tracking_stores,
)
from tests.contract.store.store_samples import make_job
from tests.contract.store.study_samples import finished_operation
from trainshed.core.errors import InvalidRequest, NotFound
from trainshed.store.sqlite.database import Store
from trainshed_tracking.metadata.records import EdgeRole, Lineage, Node, NodeKind, NodeName, StoreName
from trainshed_tracking.references import add_to_run
from trainshed_tracking.stores import Stores

CHILD, MEMBER, INPUT, OUTPUT = EdgeRole


@pytest.fixture
async def stores(store: Store) -> Stores:
    """Stores with one metadata store."""
    stores = tracking_stores(store)
    await stores.metadata_stores.create(make_metadata_store(), finished_operation(1))
    return stores


async def create_nodes(stores: Stores, *nodes: Node) -> None:
    for node in nodes:
        await stores.metadata.create(node)


async def test_failed_change_of_a_metadata_node_stores_nothing(stores: Stores) -> None:
    await create_nodes(stores, make_node(artifact("a"), uri="gs://b/1"))

    def refuse(node: Node) -> Node:
        raise InvalidRequest(())

    with pytest.raises(InvalidRequest):
        await stores.metadata.change(artifact("a"), refuse)
    changed = await stores.metadata.change(
        artifact("a"), lambda node: replace(node, uri="gs://b/2", etag=node.etag + 1, state="LIVE")
    )
    assert await stores.metadata.get(artifact("a")) == changed
    with pytest.raises(NotFound):
        await stores.metadata.change(artifact("b"), lambda node: node)


async def test_metadata_nodes_are_listed_by_age_and_by_links(stores: Stores) -> None:
    late, early = make_node(context("e"), 2), make_node(context("r"), 1)
    await create_nodes(stores, late, early, make_node(artifact("a")))
    await stores.metadata.link(
        [edge(context("e"), CHILD, context("r")), edge(context("e"), MEMBER, artifact("a"))]
    )
    with_parent = replace(early, parents=(context("e"),))
    nodes, linked = stores.metadata.nodes, stores.metadata.linked_nodes
    assert await nodes(STORE, NodeKind.CONTEXT) == (with_parent, late)
    assert await nodes(STORE, NodeKind.CONTEXT, {context("r"), artifact("a")}) == (with_parent,)
    assert await nodes(STORE, NodeKind.ARTIFACT, {artifact("nobody")}) == ()
    for name, role, inward, expected in (
        (context("e"), CHILD, False, {context("r")}),
        (context("e"), MEMBER, False, {artifact("a")}),
        (context("r"), CHILD, True, {context("e")}),
        (context("nobody"), CHILD, True, set[NodeName]()),
    ):
        assert await linked(name, role, inward=inward) == expected


async def test_deletion_of_a_metadata_node_keeps_linked_nodes(stores: Stores, store: Store) -> None:
    await create_nodes(stores, make_node(context("e")), make_node(context("r")), make_node(artifact("a")))
    await stores.metadata.link(
        [edge(context("e"), CHILD, context("r")), edge(context("r"), MEMBER, artifact("a"))]
    )
    with pytest.raises(NotFound):
        await stores.metadata.delete(context("nobody"), finished_operation(3))
    await stores.metadata.delete(context("e"), finished_operation(3))
    assert (await stores.metadata.get(context("r"))).parents == ()
    assert await store.reader.operation(finished_operation(3).name) == finished_operation(3)
    await stores.metadata.delete(context("r"), finished_operation(4))
    await add_to_run(stores, str(context("r")), make_job(1).name)  # The job exists anyway.
    assert await stores.metadata.get(artifact("a")) == make_node(artifact("a"))


async def test_metadata_context_cycles_are_rejected(stores: Stores) -> None:
    names = [context(f"c{number}") for number in range(12)]
    await create_nodes(stores, *map(make_node, names))
    await stores.metadata.link([edge(names[0], CHILD, names[1]), edge(names[1], CHILD, names[2])])
    for cycle in (edge(names[2], CHILD, names[0]), edge(names[0], CHILD, names[0])):
        with pytest.raises(InvalidRequest, match="above it"):
            await stores.metadata.link([edge(names[0], CHILD, names[3]), cycle])
    assert (await stores.metadata.get(names[3])).parents == ()
    with pytest.raises(InvalidRequest, match="more than 10 parents"):
        await stores.metadata.link([edge(name, CHILD, names[11]) for name in names[:11]])
    await stores.metadata.link([edge(name, CHILD, names[11]) for name in names[:10]])
    assert (await stores.metadata.get(names[11])).parents == tuple(sorted(names[:10]))


async def test_links_between_metadata_stores_are_rejected(stores: Stores) -> None:
    other = StoreName("q", "us-central1", "default")
    await stores.metadata_stores.create(make_metadata_store(other), finished_operation(2))
    theirs = NodeName(other, NodeKind.ARTIFACT, "a")
    await create_nodes(stores, make_node(theirs), make_node(context("e")))
    with pytest.raises(InvalidRequest, match="is not in"):
        await stores.metadata.link([edge(context("e"), MEMBER, theirs)])


async def test_metadata_lineage_contains_connected_nodes(stores: Stores) -> None:
    """Graph: data -> prep -> table -> train -> model. The run contains train, and its experiment contains
    prep."""
    prep, train = execution("prep"), execution("train")
    data, table, model = artifact("data"), artifact("table"), artifact("model")
    await create_nodes(
        stores,
        make_node(context("e")),
        make_node(context("r")),
        *(make_node(name) for name in (prep, train, data, table, model)),
    )
    events = [
        edge(prep, INPUT, data),
        edge(prep, OUTPUT, table),
        edge(train, INPUT, table),
        edge(train, OUTPUT, model),
    ]
    await stores.metadata.link(
        [
            *events,
            edge(context("e"), CHILD, context("r")),
            edge(context("e"), MEMBER, prep),
            *(edge(context("r"), MEMBER, name) for name in (train, table, model)),
        ]
    )
    await stores.metadata.link(events)  # A repeated link adds no duplicates.

    def ids(lineage: Lineage) -> tuple[set[str], int]:
        return {node.name.node_id for node in lineage.nodes}, len(lineage.events)

    metadata = stores.metadata
    assert ids(await metadata.lineage(context("r"))) == ({"train", "table", "model"}, 2)
    assert ids(await metadata.lineage(context("e"))) == ({"prep", "train", "table", "model"}, 3)
    assert ids(await metadata.lineage(train)) == ({"train", "table", "model"}, 2)
    (event,) = [edge for edge in (await metadata.lineage(train)).events if edge.role is OUTPUT]
    assert event == edge(train, OUTPUT, model)


async def test_metadata_lineage_is_limited_in_size(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainshed_tracking.metadata.table.MAX_LINEAGE", 8)
    writer, written = execution("w"), [artifact(f"a{number}") for number in range(12)]
    await create_nodes(stores, *map(make_node, (writer, *written)))
    await stores.metadata.link([edge(writer, OUTPUT, name) for name in written])
    assert len((await stores.metadata.lineage(writer)).nodes) == 9
