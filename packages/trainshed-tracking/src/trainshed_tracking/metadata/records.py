"""Records of a metadata store: nodes and the edges between them (facts/experiments#records). Also merges
concurrent changes of a run (facts/experiments#etags).

Contexts (experiments and their runs), artifacts and executions are one kind of record, a node. An edge
describes the relation of two nodes.

A client sends the metadata that it last read together with its additions. If an outdated etag made the write
fail, clients over REST would not retry. Therefore the service merges changes of a run key by key.
"""

import enum
from collections.abc import Iterator
from typing import Any, Final, cast

from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.core.names import PLACE, read_name
from trainshed.core.units import Nanos

EXPERIMENT: Final = "system.Experiment"
"""The schema of a context that is an experiment."""
EXPERIMENT_RUN: Final = "system.ExperimentRun"
"""The schema of a context that is a run of an experiment."""
MERGED: Final = (EXPERIMENT, EXPERIMENT_RUN)
"""The schemas of contexts that several clients, such as a notebook and a job, write concurrently."""
TENSORBOARD_LINK: Final = "tensorboard_link"
"""A metadata key of experiments that represent a tensorboard. Clients do not show such experiments."""


class NodeKind(enum.StrEnum):
    """A kind of node. The value is the name of the collection in the node's resource name."""

    CONTEXT = "contexts"
    ARTIFACT = "artifacts"
    EXECUTION = "executions"

    @property
    def singular(self) -> str:
        return self.value.removesuffix("s")


class StoreName(Struct, frozen=True, order=True):
    """The name of a metadata store: `projects/P/locations/L/metadataStores/S`."""

    project_id: str
    location: str
    store_id: str

    def __str__(self) -> str:
        place = f"projects/{self.project_id}/locations/{self.location}"
        return f"{place}/metadataStores/{self.store_id}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "StoreName":
        """Parse a store's name. Raise InvalidRequest for the field `of` if the name is invalid."""
        return StoreName(*read_name(name, _STORE, of))


class NodeName(Struct, frozen=True, order=True):
    """The name of a context (`projects/P/locations/L/metadataStores/S/contexts/C`), an artifact or an
    execution."""

    store: StoreName
    kind: NodeKind
    node_id: str

    def __str__(self) -> str:
        return f"{self.store}/{self.kind}/{self.node_id}"

    @staticmethod
    def parse(name: str, kind: NodeKind, *, of: str = "name") -> "NodeName":
        """Parse the name of a node of this kind. Raise InvalidRequest for the field `of` if it is invalid."""
        *store, node_id = read_name(name, f"{_STORE}/{kind}/ID", of)
        return NodeName(StoreName(*store), kind, node_id)


_STORE: Final = f"{PLACE}/metadataStores/STORE"


class MetadataStore(Struct, frozen=True):
    """A metadata store, which contains nodes. Most projects have only the store `default`."""

    name: StoreName
    description: str
    #: Creation time in nanoseconds since the epoch. `updated` has the same unit.
    created: Nanos
    updated: Nanos


class Change(Struct, frozen=True):
    """The last change of a metadata key that several clients may write."""

    #: The node's etag after the change.
    etag: int
    #: The value before the change, or None if the key was new.
    was: Any = None
    #: (etag, former value) of earlier changes, newest first. If they are too long together, entries in the
    #: middle are omitted.
    earlier: tuple[tuple[int, Any], ...] = ()

    @property
    def states(self) -> tuple[tuple[int, Any], ...]:
        return ((self.etag, self.was), *self.earlier)


class Node(Struct, frozen=True):
    """A context, an artifact or an execution."""

    name: NodeName
    #: Creation time in nanoseconds since the epoch. `updated` has the same unit.
    created: Nanos
    updated: Nanos
    #: Time of the last change that is visible to clients, in milliseconds since the epoch. It increases with
    #: every change.
    etag: int
    display_name: str = ""
    description: str = ""
    schema_title: str = ""
    schema_version: str = ""
    #: Only for artifacts: the location of the content.
    uri: str = ""
    #: Only for artifacts and executions: the public name of the state; "" = unspecified.
    state: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: A JSON object.
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Values that responses contain in addition to `metadata`.
    added: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Only for runs of experiments: the last change of each key of `metadata` (see `merge`). For a shared map
    #: in `metadata`: the last change of each of the map's own keys.
    changes: dict[str, Change] = field(default_factory=dict[str, Change])
    #: Only for contexts: the parent contexts in order of name. They are not stored in the record, but read
    #: from the edges.
    parents: tuple[NodeName, ...] = ()


class EdgeRole(enum.StrEnum):
    """The role of an edge's target, from the point of view of the edge's source."""

    #: The target is a child context of the source, which is a context.
    CHILD = "child"
    #: The target is an artifact or execution that belongs to the source, which is a context.
    MEMBER = "member"
    #: The target is an artifact that the source, an execution, read.
    INPUT = "input"
    #: The target is an artifact that the source, an execution, wrote.
    OUTPUT = "output"


class Edge(Struct, frozen=True):
    """An edge from a context to one of its contents, or from an execution to an artifact."""

    source: NodeName
    role: EdgeRole
    target: NodeName
    #: Nanoseconds since the epoch.
    at: Nanos
    labels: tuple[tuple[str, str], ...] = ()


class Lineage(Struct, frozen=True):
    """A part of the graph: artifacts and executions, and the edges between them as events."""

    nodes: tuple[Node, ...] = ()
    events: tuple[Edge, ...] = ()


SHARED: Final = ("_params", "_metrics")
"""Metadata keys whose values are maps, which are merged key by key. Other values are replaced as a whole."""
_MAX_HISTORY: Final = 40_000
"""Approximate maximum number of characters of a node's changes, without the last change of each key."""


def with_changes(old: Node, metadata: dict[str, Any], etag: int) -> Node:
    """Return `old` with the new metadata and the new etag. Record which keys have changed."""
    before, after = dict(_flatten(old.metadata)), dict(_flatten(metadata))
    changes, most = dict(old.changes), _MAX_HISTORY // max(1, len(after))
    for key, value in after.items():
        if key not in before or before[key] != value:
            earlier = list(changes[key].states) if key in changes else []
            while earlier and len(str(earlier)) > most:
                del earlier[len(earlier) // 2]
            changes[key] = Change(etag, before.get(key), tuple(earlier))
    kept = {key: change for key, change in changes.items() if key in after}
    return replace(old, metadata=metadata, etag=etag, changes=kept)


def new_run(name: NodeName, display_name: str, now: Nanos) -> Node:
    etag = now // 10**6
    run = Node(name, now, now, etag, display_name, schema_title=EXPERIMENT_RUN, schema_version="0.0.1")
    return with_changes(run, {"_params": {}, "_metrics": {}, "_state": "RUNNING"}, etag)


def merge(node: Node, metadata: dict[str, Any], known_etag: int) -> dict[str, Any]:
    """Return the metadata after a write by a client that last read the node with the etag `known_etag`.

    If another client has changed a key since then, and the write contains the value from before that change,
    the changed value remains. Any other value in the write takes effect. Keys that the write does not contain
    remain, because clients do not remove keys of a run.
    """
    result = dict(node.metadata)
    for key, value in _flatten(metadata):
        states = node.changes[key].states if key in node.changes else ()
        if [was for etag, was in states if etag > known_etag][-1:] == [value]:
            continue
        name, _, inner = key.partition("/")
        if inner and name in SHARED:
            result[name] = {**_shared_map(result, name), inner: value}
        elif key not in SHARED or key not in result:
            result[key] = value
    return result


def _flatten(metadata: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for each value that is merged separately. The path is `_params/KEY` for a key of a
    shared map, and KEY for all other keys. An empty shared map counts as a value."""
    for name, value in metadata.items():
        if name in SHARED and (shared := _shared_map(metadata, name)):
            for inner, part in shared.items():
                yield f"{name}/{inner}", part
        else:
            yield name, value


def _shared_map(metadata: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a shared map of the metadata, or {} if it does not exist."""
    value = metadata.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
