"""The conditions and the order of a list of nodes, as a tree that a store can look up in its indexes
(facts/experiments#filters)."""

import enum

from msgspec import Struct

from trainshed.core.metadata.records import EdgeRole, NodeKind, NodeName, StoreName
from trainshed.core.operators import Operator
from trainshed.core.units import Nanos


class Field(enum.StrEnum):
    """The text fields that can be compared; the values are the store's columns."""

    SCHEMA_TITLE = "schema_title"
    DISPLAY_NAME = "display_name"
    URI = "uri"
    STATE = "state"
    NODE_ID = "node_id"


class Moment(enum.StrEnum):
    CREATED = "created"
    UPDATED = "updated"


class TextIs(Struct, frozen=True):
    field: Field
    operator: Operator
    value: str


class MomentIs(Struct, frozen=True):
    field: Moment
    operator: Operator
    #: Nanoseconds since the epoch.
    at: Nanos


class LabelIs(Struct, frozen=True):
    key: str
    operator: Operator
    #: None = any value matches.
    value: str | None


class MetadatumIs(Struct, frozen=True):
    """A value inside the metadata; a value of another type is not equal to it."""

    path: tuple[str, ...]
    operator: Operator
    value: str | float | bool


class LinkedTo(Struct, frozen=True):
    """There is an edge between the node and one of `others`."""

    role: EdgeRole
    others: tuple[NodeName, ...]
    #: Whether the others are the sources of the edge: the node is in one of them.
    inward: bool


class Not(Struct, frozen=True):
    operand: "Condition"


class And(Struct, frozen=True):
    operands: tuple["Condition", ...]


class Or(Struct, frozen=True):
    operands: tuple["Condition", ...]


Condition = TextIs | MomentIs | LabelIs | MetadatumIs | LinkedTo | Not | And | Or


class Order(enum.StrEnum):
    """The fields by which nodes are ordered; the values are the store's columns."""

    CREATED = "created"
    UPDATED = "updated"
    DISPLAY_NAME = "display_name"


class NodeQuery(Struct, frozen=True):
    """A page of the nodes of one kind."""

    store: StoreName
    kind: NodeKind
    #: None = all nodes of the kind.
    condition: Condition | None
    limit: int
    order: Order = Order.CREATED
    descending: bool = False
    #: How many nodes come before the page.
    offset: int = 0
