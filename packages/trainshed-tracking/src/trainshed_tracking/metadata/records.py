"""A metadata store (facts/experiments#records): its nodes and the edges between them, and the merge of two
writers' changes (facts/experiments#etags).

Contexts (experiments and their runs), artifacts and executions are one kind of record. An edge records the
relation of two of them. A client sends its last known metadata with its additions. An outdated etag would
fail the write, and clients over REST do not retry. Therefore the service merges changes of a run key by key.
"""

import enum
from collections.abc import Iterator
from typing import Any, Final, cast

from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.core.names import PLACE, read_name
from trainshed.core.units import Nanos

EXPERIMENT: Final = "system.Experiment"
"""The schema of contexts that are experiments."""
EXPERIMENT_RUN: Final = "system.ExperimentRun"
"""The schema of contexts that are runs of experiments."""
MERGED: Final = (EXPERIMENT, EXPERIMENT_RUN)
"""The schemas of contexts with several concurrent writers, such as a notebook and a job."""
TENSORBOARD_LINK: Final = "tensorboard_link"
"""A metadata key of experiments that represent a tensorboard. Clients do not show these."""


class NodeKind(enum.StrEnum):
    """A kind of node; the value is the collection in its name."""

    CONTEXT = "contexts"
    ARTIFACT = "artifacts"
    EXECUTION = "executions"

    @property
    def singular(self) -> str:
        return self.value.removesuffix("s")


class StoreName(Struct, frozen=True, order=True):
    """`projects/P/locations/L/metadataStores/S`."""

    project_id: str
    location: str
    store_id: str

    def __str__(self) -> str:
        place = f"projects/{self.project_id}/locations/{self.location}"
        return f"{place}/metadataStores/{self.store_id}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "StoreName":
        """Read a store's name. Raise InvalidRequest on the field `of` for anything else."""
        return StoreName(*read_name(name, _STORE, of))


class NodeName(Struct, frozen=True, order=True):
    """`projects/P/locations/L/metadataStores/S/contexts/C`, or an artifact or an execution."""

    store: StoreName
    kind: NodeKind
    node_id: str

    def __str__(self) -> str:
        return f"{self.store}/{self.kind}/{self.node_id}"

    @staticmethod
    def parse(name: str, kind: NodeKind, *, of: str = "name") -> "NodeName":
        """Read the name of a node of that kind. Raise InvalidRequest on the field `of` for anything else."""
        *store, node_id = read_name(name, f"{_STORE}/{kind}/ID", of)
        return NodeName(StoreName(*store), kind, node_id)


_STORE: Final = f"{PLACE}/metadataStores/STORE"


class MetadataStore(Struct, frozen=True):
    """The store of nodes. Most projects have only the store `default`."""

    name: StoreName
    description: str
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos


class Change(Struct, frozen=True):
    """The last change of a key that several writers may write."""

    #: The node's etag after the change.
    etag: int
    #: The value before the change, or None if the key was new.
    was: Any = None
    #: Etags and values of earlier changes, newest first. Of many: the oldest and the newest.
    earlier: tuple[tuple[int, Any], ...] = ()

    @property
    def states(self) -> tuple[tuple[int, Any], ...]:
        return ((self.etag, self.was), *self.earlier)


class Node(Struct, frozen=True):
    """A context, an artifact or an execution."""

    name: NodeName
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos
    #: Milliseconds since the epoch of the last change visible to clients. It increases with every change.
    etag: int
    display_name: str = ""
    description: str = ""
    schema_title: str = ""
    schema_version: str = ""
    #: Artifacts: the location of the content. Other nodes have none.
    uri: str = ""
    #: Artifacts and executions: the state's public name, "" = unspecified.
    state: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: A JSON object.
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Values that the service adds to `metadata` in answers.
    added: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Runs of experiments: the changes of each key of `metadata`, or of a map in it (`merge`).
    changes: dict[str, Change] = field(default_factory=dict[str, Change])
    #: Contexts: the parent contexts, in order of name. They derive from edges only.
    parents: tuple[NodeName, ...] = ()


class EdgeRole(enum.StrEnum):
    """The role of an edge's target for its source."""

    #: A context's child context.
    CHILD = "child"
    #: An artifact or execution of a context.
    MEMBER = "member"
    #: An artifact that an execution read.
    INPUT = "input"
    #: An artifact that an execution wrote.
    OUTPUT = "output"


class Edge(Struct, frozen=True):
    """An edge from a context to its content, or from an execution to an artifact."""

    source: NodeName
    role: EdgeRole
    target: NodeName
    #: Nanoseconds since the epoch.
    at: Nanos
    labels: tuple[tuple[str, str], ...] = ()


class Lineage(Struct, frozen=True):
    """A part of the graph: artifacts, executions, and their input and output events."""

    nodes: tuple[Node, ...] = ()
    events: tuple[Edge, ...] = ()


SHARED: Final = ("_params", "_metrics")
"""Maps to merge key by key. Other keys of the metadata are merged as a whole."""
_MAX_HISTORY: Final = 40_000
"""Approximate maximum characters of a node's changes in addition to the last change of each key."""


def with_changes(old: Node, metadata: dict[str, Any], etag: int) -> Node:
    """Return `old` with other metadata and the etag `etag`, which records the keys that changed."""
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
    run = Node(
        name, now, now, etag, display_name, schema_title=EXPERIMENT_RUN, schema_version="0.0.1"
    )
    return with_changes(run, {"_params": {}, "_metrics": {}, "_state": "RUNNING"}, etag)


def merge(node: Node, metadata: dict[str, Any], known_etag: int) -> dict[str, Any]:
    """Return the metadata after a write by a client whose last known state has the etag `known_etag`.

    A key that other clients changed since then keeps their value if the write repeats the old value. Another
    value in the write wins. Keys missing from the write stay: clients do not remove keys of a run.
    """
    result = dict(node.metadata)
    for key, value in _flatten(metadata):
        states = node.changes[key].states if key in node.changes else ()
        if [was for etag, was in states if etag > known_etag][-1:] == [value]:
            continue
        name, _, inner = key.partition("/")
        if inner and name in SHARED:
            result[name] = {**_shared(result, name), inner: value}
        elif key not in SHARED or key not in result:
            result[key] = value
    return result


def _flatten(metadata: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield `_params/KEY` for the keys of shared maps, KEY for all others (an empty shared map counts as
    one)."""
    for name, value in metadata.items():
        if name in SHARED and (shared := _shared(metadata, name)):
            for inner, part in shared.items():
                yield f"{name}/{inner}", part
        else:
            yield name, value


def _shared(metadata: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a shared map, or {} if it does not exist."""
    value = metadata.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
