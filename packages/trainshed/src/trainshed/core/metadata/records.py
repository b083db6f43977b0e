"""The nodes of a metadata store, and the edges between them (facts/experiments#records).

Contexts (experiments and their runs), artifacts and executions are one kind of record; an edge says how two
of them are related.
"""

import enum
import re
from typing import Any, Final

from msgspec import Struct, field

from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.units import Nanos

EXPERIMENT: Final = "system.Experiment"
"""The schema of contexts that are experiments."""
EXPERIMENT_RUN: Final = "system.ExperimentRun"
"""The schema of contexts that are runs of experiments."""
MERGED: Final = (EXPERIMENT, EXPERIMENT_RUN)
"""The schemas of contexts to which several writers, such as a notebook and a job, add together."""


TENSORBOARD_LINK: Final = "tensorboard_link"
"""A key in the metadata of experiments that were made from a tensorboard; clients do not show these."""


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
        match = _STORE.fullmatch(name)
        if match is None:
            raise _no_name(of, name, _STORE_FORM)
        return StoreName(match[1], match[2], match[3])


class NodeName(Struct, frozen=True, order=True):
    """`projects/P/locations/L/metadataStores/S/contexts/C`, or an artifact or an execution."""

    store: StoreName
    kind: NodeKind
    node_id: str

    def __str__(self) -> str:
        return f"{self.store}/{self.kind}/{self.node_id}"

    @staticmethod
    def parse(name: str, kind: NodeKind | None = None, *, of: str = "name") -> "NodeName":
        """Read a node's name; `kind`: the only kind that is accepted. Raise InvalidRequest on the field `of`
        for anything else."""
        match = _NODE.fullmatch(name)
        if match is None or (kind is not None and match[2] != kind):
            form = f"{_STORE_FORM}/{kind or '|'.join(NodeKind)}/ID"
            raise _no_name(of, name, form)
        return NodeName(StoreName.parse(match[1], of=of), NodeKind(match[2]), match[3])


_STORE_FORM: Final = "projects/PROJECT/locations/LOCATION/metadataStores/STORE"
_STORE: Final = re.compile(r"projects/([^/]+)/locations/([^/]+)/metadataStores/([^/]+)")
_NODE: Final = re.compile(rf"({_STORE.pattern.replace('(', '(?:')})/({'|'.join(NodeKind)})/([^/]+)")


def _no_name(of: str, name: str, form: str) -> InvalidRequest:
    return InvalidRequest((Violation(of, f"{name!r} is not a name of the form {form}."),))


class MetadataStore(Struct, frozen=True):
    """The store that nodes belong to; most projects have only `default`."""

    name: StoreName
    description: str
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos


class Change(Struct, frozen=True):
    """The last change of a key that several writers may write."""

    #: The etag that the node had after it.
    etag: int
    #: The value before it; None if the key was new.
    was: Any = None


class Node(Struct, frozen=True):
    """A context, an artifact or an execution."""

    name: NodeName
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos
    #: Milliseconds since the epoch of the last change that a client can see; it grows with every change.
    etag: int
    display_name: str = ""
    description: str = ""
    schema_title: str = ""
    schema_version: str = ""
    #: Artifacts: where the thing is; no other node has one.
    uri: str = ""
    #: Artifacts and executions: the state's public name, "" = unspecified.
    state: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: A JSON object.
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    #: What the service itself adds to `metadata` when it is shown.
    added: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Runs of experiments: the last change of each key of `metadata`, or of a map in it (`merging`).
    changes: dict[str, Change] = field(default_factory=dict[str, Change])
    #: Contexts: the contexts that have this one as a child, in the order of their names. They follow from
    #: edges alone.
    parents: tuple[NodeName, ...] = ()


class EdgeRole(enum.StrEnum):
    """What the target of an edge is to its source."""

    #: A context's child context.
    CHILD = "child"
    #: An artifact or execution of a context.
    MEMBER = "member"
    #: An artifact that an execution read.
    INPUT = "input"
    #: An artifact that an execution wrote.
    OUTPUT = "output"


class Edge(Struct, frozen=True):
    """An edge from a context to what is in it, or from an execution to an artifact."""

    source: NodeName
    role: EdgeRole
    target: NodeName
    #: Nanoseconds since the epoch.
    at: Nanos
    labels: tuple[tuple[str, str], ...] = ()


class Lineage(Struct, frozen=True):
    """A part of the graph: artifacts and executions, and which execution read and wrote what."""

    nodes: tuple[Node, ...] = ()
    events: tuple[Edge, ...] = ()
