"""Makes SQL of conditions on nodes (`core.metadata.conditions`).

Every value is a parameter; the text of a statement never comes from a client.
"""

from collections.abc import Iterable
from typing import Any, Final, assert_never

from trainshed.core.metadata.conditions import (
    And,
    Condition,
    LabelIs,
    LinkedTo,
    MetadatumIs,
    MomentIs,
    NodeQuery,
    Not,
    Or,
    TextIs,
)
from trainshed.core.operators import Operator

_JSON: Final = "CASE WHEN json_valid(CAST(n.record AS TEXT)) THEN CAST(n.record AS TEXT) END"
"""The record as JSON; NULL if it cannot be read."""
_OF_STORE: Final = "project_id = {} AND location = {} AND store_id = {}"


def select(query: NodeQuery) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that selects (node, record) of a page, and its parameters."""
    sql = _Sql()
    store = query.store
    place = _OF_STORE.format(
        *(sql.bound(text) for text in (store.project_id, store.location, store.store_id))
    )
    where = f"{place} AND kind = {sql.bound(query.kind)}"
    if query.condition is not None:
        where += f" AND {sql.of(query.condition)}"
    direction = "DESC" if query.descending else "ASC"
    page = f"LIMIT {sql.bound(query.limit)} OFFSET {sql.bound(query.offset)}"
    statement = (
        f"SELECT n.node, n.record FROM metadata_nodes AS n WHERE {where} "
        f"ORDER BY n.{query.order} {direction}, n.node {direction} {page}"
    )
    return statement, tuple(sql.parameters)


class _Sql:
    """Builds one statement, and holds its parameters in the order in which they were bound."""

    def __init__(self) -> None:
        self.parameters: list[Any] = []

    def bound(self, value: Any) -> str:
        self.parameters.append(value)
        return f"?{len(self.parameters)}"

    def of(self, condition: Condition) -> str:
        match condition:
            case And():
                return self._joined(" AND ", condition.operands)
            case Or():
                return self._joined(" OR ", condition.operands)
            case Not():
                # A node without the value does not meet a condition, so it meets the opposite.
                return f"NOT coalesce({self.of(condition.operand)}, 0)"
            case TextIs():
                return self._text(f"n.{condition.field}", condition.operator, condition.value)
            case MomentIs():
                return (
                    f"n.{condition.field} {_symbol(condition.operator)} {self.bound(condition.at)}"
                )
            case LabelIs():
                return self._label(condition)
            case MetadatumIs():
                return self._metadatum(condition)
            case LinkedTo():
                return self._linked(condition)
            case _:
                assert_never(condition)

    def _joined(self, word: str, operands: Iterable[Condition]) -> str:
        return f"({word.join(self.of(operand) for operand in operands)})"

    def _text(self, column: str, operator: Operator, value: str) -> str:
        if operator is not Operator.HAS:
            return f"{column} {_symbol(operator)} {self.bound(value)}"
        if "*" not in value:
            return f"instr({column}, {self.bound(value)}) > 0"
        # Only * has a special meaning in a filter.
        pattern = value.replace("[", "[[]").replace("?", "[?]")
        return f"{column} GLOB {self.bound(pattern)}"

    def _label(self, condition: LabelIs) -> str:
        test = f"json_extract(l.value, '$[0]') = {self.bound(condition.key)}"
        if condition.value is not None:
            value = "json_extract(l.value, '$[1]')"
            test += f" AND {self._text(value, condition.operator, condition.value)}"
        return f"EXISTS (SELECT 1 FROM json_each({_JSON}, '$.labels') AS l WHERE {test})"

    def _metadatum(self, condition: MetadatumIs) -> str:
        path = self.bound("$.metadata" + "".join(f'."{key}"' for key in condition.path))
        value = condition.value
        match value:
            case bool():
                types = "'true', 'false'"
            case str():
                types = "'text'"
            case _:
                types = "'integer', 'real'"
        found = f"json_extract({_JSON}, {path})"
        test = (
            self._text(found, condition.operator, value)
            if isinstance(value, str)
            else f"{found} {_symbol(condition.operator)} {self.bound(value)}"
        )
        return f"(json_type({_JSON}, {path}) IN ({types}) AND {test})"

    def _linked(self, condition: LinkedTo) -> str:
        here, there = ("target", "source") if condition.inward else ("source", "target")
        others = " OR ".join(
            "({} AND kind = {} AND node_id = {})".format(
                _OF_STORE.format(
                    *map(
                        self.bound,
                        (name.store.project_id, name.store.location, name.store.store_id),
                    )
                ),
                self.bound(name.kind),
                self.bound(name.node_id),
            )
            for name in condition.others
        )
        return (
            f"n.node IN (SELECT e.{here} FROM metadata_edges AS e WHERE e.role = "
            f"{self.bound(condition.role)} AND e.{there} IN (SELECT node FROM metadata_nodes WHERE {others}))"
        )


def _symbol(operator: Operator) -> str:
    return "=" if operator is Operator.HAS else operator.value
