"""Filters and orders of lists of contexts, artifacts and executions (facts/experiments#filters)."""

from collections.abc import Mapping
from typing import Final

from trainshed.api.filters.matching import moment
from trainshed.api.filters.syntax import (
    And,
    Comparison,
    Expression,
    FilterError,
    Not,
    Or,
    Term,
    parse_filter,
)
from trainshed.core import metadata
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.metadata import (
    Condition,
    EdgeRole,
    Field,
    Moment,
    NodeKind,
    NodeName,
    Order,
    StoreName,
)
from trainshed.core.patterns import Operator

_TEXTS: Final[Mapping[str, Field]] = {
    "schema_title": Field.SCHEMA_TITLE,
    "display_name": Field.DISPLAY_NAME,
    "uri": Field.URI,
    "state": Field.STATE,
    "name": Field.NODE_ID,
}
_MOMENTS: Final[Mapping[str, Moment]] = {
    "create_time": Moment.CREATED,
    "update_time": Moment.UPDATED,
}
ORDERS: Final[Mapping[str, Order]] = {
    "create_time": Order.CREATED,
    "update_time": Order.UPDATED,
    "display_name": Order.DISPLAY_NAME,
}
_LINKS: Final[Mapping[NodeKind, Mapping[str, tuple[EdgeRole, bool]]]] = {
    NodeKind.CONTEXT: {
        "parent_contexts": (EdgeRole.CHILD, True),
        "child_contexts": (EdgeRole.CHILD, False),
    },
    NodeKind.ARTIFACT: {"in_context": (EdgeRole.MEMBER, True)},
    NodeKind.EXECUTION: {"in_context": (EdgeRole.MEMBER, True)},
}
"""For each name: the role of the edge that is tested, and whether the edge starts at the named context."""
_TYPES: Final = ("string_value", "number_value", "bool_value")


def read_filter(text: str, store: StoreName, kind: NodeKind) -> Condition | None:
    """Return the condition of a filter; None for an empty one. Raises InvalidRequest on `filter`."""
    try:
        tree = parse_filter(text, with_lists=True)
        return None if tree is None else _condition(tree, store, kind)
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None


def _condition(tree: Expression, store: StoreName, kind: NodeKind) -> Condition:
    match tree:
        case And():
            return metadata.And(tuple(_condition(part, store, kind) for part in tree.operands))
        case Or():
            return metadata.Or(tuple(_condition(part, store, kind) for part in tree.operands))
        case Not():
            return metadata.Not(_condition(tree.operand, store, kind))
        case Term():
            raise FilterError(
                f'{tree.name!r} stands alone; compare a field, for example display_name="{tree.name}"'
            )
        case Comparison():
            return _comparison(tree, store, kind)


def _comparison(leaf: Comparison, store: StoreName, kind: NodeKind) -> Condition:
    name = leaf.name
    if name in _TEXTS:
        return metadata.TextIs(_TEXTS[name], leaf.operator, _text(leaf))
    if name in _MOMENTS:
        return metadata.MomentIs(_MOMENTS[name], leaf.operator, moment(leaf.value))
    if name in _LINKS[kind]:
        role, inward = _LINKS[kind][name]
        return metadata.LinkedTo(role, (_context(leaf.value, store),), inward)
    match leaf.path:
        case ("labels",):
            return metadata.LabelIs(leaf.value, Operator.EQUAL, None)
        case ("labels", *key):
            any_value = leaf.operator is Operator.HAS and leaf.value == "*"
            return metadata.LabelIs(".".join(key), leaf.operator, None if any_value else leaf.value)
        case ("metadata", _, *_):
            return _metadatum(leaf)
        case _:
            known = ", ".join((*_TEXTS, *_MOMENTS, *_LINKS[kind]))
            raise FilterError(
                f"{kind} cannot be filtered by {name!r}; use {known}, labels.KEY or metadata.KEY.number_value"
            )


def _text(leaf: Comparison) -> str:
    """Return the text to compare with; a node's name is compared by its id."""
    return leaf.value.rpartition("/")[2] if leaf.name == "name" else leaf.value


def _context(text: str, store: StoreName) -> NodeName:
    """Read a context's full name, or its id in the same store."""
    if "/" not in text:
        return NodeName(store, NodeKind.CONTEXT, text)
    try:
        return NodeName.parse(text, NodeKind.CONTEXT)
    except InvalidRequest:
        raise FilterError(f"{text!r} is no name of a context") from None


def _metadatum(leaf: Comparison) -> Condition:
    """Return the condition of a comparison such as `metadata.KEY.number_value = 3`; without a type, the value
    tells its type."""
    path = leaf.path[1:]
    kind = path[-1] if path[-1] in _TYPES and len(path) > 1 else ""
    keys = tuple(
        key for key in (path[:-1] if kind else path) if key not in ("struct_value", "fields")
    )
    if any('"' in key for key in keys):
        raise FilterError("a key of the metadata with a quote in it cannot be filtered by")
    value: str | float | bool = leaf.value
    if kind == "bool_value" or (not kind and leaf.value in ("true", "false")):
        if leaf.value not in ("true", "false"):
            raise FilterError(f"{leaf.value!r} is neither true nor false")
        value = leaf.value == "true"
    elif kind == "number_value":
        try:
            value = float(leaf.value)
        except ValueError:
            raise FilterError(f"{leaf.value!r} is not a number") from None
    return metadata.MetadatumIs(keys, leaf.operator, value)
