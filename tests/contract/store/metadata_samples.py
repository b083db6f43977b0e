"""Metadata stores, tensorboards and their contents, for tests of stores."""

import zlib
from pathlib import Path
from typing import Any

from tests.contract.store.store_samples import T0
from trainshed.core.curves import CurveSeries
from trainshed.core.names import JobUid
from trainshed.store.points import PointFiles
from trainshed.store.sqlite.database import Store
from trainshed.summaries.reading import FileProgress
from trainshed_tracking.metadata.records import (
    Edge,
    EdgeRole,
    MetadataStore,
    Node,
    NodeKind,
    NodeName,
    StoreName,
)
from trainshed_tracking.stores import Stores, stores_in
from trainshed_tracking.tensorboards.records import BoardName, BoardResource

STORE = StoreName("p", "us-central1", "default")


def tracking_stores(store: Store) -> Stores:
    """Return the tracking stores of a store, without points."""
    return stores_in(store, PointFiles(Path("nowhere")), lambda: JobUid(9), lambda: T0)


def make_metadata_store(name: StoreName = STORE) -> MetadataStore:
    return MetadataStore(name, "", T0, T0)


def context(node_id: str) -> NodeName:
    return NodeName(STORE, NodeKind.CONTEXT, node_id)


def artifact(node_id: str) -> NodeName:
    return NodeName(STORE, NodeKind.ARTIFACT, node_id)


def execution(node_id: str) -> NodeName:
    return NodeName(STORE, NodeKind.EXECUTION, node_id)


def make_node(name: NodeName, number: int = 0, **fields: Any) -> Node:
    return Node(name, created=T0 + number, updated=T0 + number, etag=1000 + number, **fields)


def edge(source: NodeName, role: EdgeRole, target: NodeName) -> Edge:
    return Edge(source, role, target, T0, (("k", "v"),))


def make_board(*ids: str, **fields: Any) -> BoardResource:
    """Return a tensorboard or a resource below it: one ID per level."""
    name = BoardName("p", "us-central1", ids)
    return BoardResource(name, zlib.crc32(str(name).encode()), T0, T0, **fields)


def make_progress(path: str, **fields: Any) -> FileProgress:
    return FileProgress(path, "1-2-3", 17, b"\x00\xff", 1.5, **fields)


def make_curve(uid: int, run: str, tag: str) -> CurveSeries:
    return CurveSeries(uid, run, tag, 3, T0, 0.5, 1)
