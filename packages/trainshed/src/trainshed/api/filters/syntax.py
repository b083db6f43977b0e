"""Parses filters to trees: one grammar for the list filters of both training APIs and of Logging v2.

`path OP value`, quoted or bare; AND, OR, NOT (or `-`), parentheses; terms side by side mean AND; a value list
`path=(a OR b)`. OR binds tighter than AND, as in the public filter languages (facts/resources#vertex,
spec/clients#log-pages). What a path means is decided elsewhere.
"""

import re
from typing import Final

from msgspec import Struct

from trainshed.core.patterns import Operator

MAX_LENGTH = 20_000
MAX_DEPTH = 50
MAX_TESTS = 500
"""Most comparisons and terms: each is applied to every row that a request examines."""


class FilterError(ValueError):
    """The text is not a filter, or names what cannot be filtered by; the message says what would be right."""


class Comparison(Struct, frozen=True):
    """A path, an operator and a value."""

    #: The dot-separated names, with quotes and escapes removed.
    path: tuple[str, ...]
    operator: Operator
    value: str

    @property
    def name(self) -> str:
        return ".".join(self.path)


class Term(Struct, frozen=True):
    """A path or a text that stands alone: `labels.team`, `"out of memory"`."""

    path: tuple[str, ...]

    @property
    def name(self) -> str:
        return ".".join(self.path)


class Not(Struct, frozen=True):
    operand: "Expression"


class And(Struct, frozen=True):
    operands: tuple["Expression", ...]


class Or(Struct, frozen=True):
    operands: tuple["Expression", ...]


Expression = Comparison | Term | Not | And | Or

_SPACE: Final = re.compile(r"\s*")
_NAME: Final = re.compile(r"[^\s()=!<>:~\"'.,]+")
_VALUE: Final = re.compile(r"[^\s()]+")
# Not possessive: up to Python 3.11.4, and so in Debian 12, alternatives are then repeated wrongly.
_QUOTED: Final = re.compile(r"""(["'])((?:\\.|(?!\1)[^\\])*)\1""", re.DOTALL)
_OPERATOR: Final = re.compile(r"\s*(!=|<=|>=|=~|!~|=|<|>|:)")
_KEYWORD: Final = re.compile(r"\s*(AND|OR|NOT)(?=[\s()]|\Z)")


def parse_filter(text: str, *, with_lists: bool = False) -> Expression | None:
    """Return the tree of a filter; None for an empty one, which lets everything pass. Raises FilterError.

    `with_lists`: as in the metadata service, `parents:"a","b"` and `in_context("a", "b")` are read as one `:`
    comparison for each value, with OR between them.
    """
    if len(text) > MAX_LENGTH:
        raise FilterError(f"the filter is longer than {MAX_LENGTH} characters; split the request")
    if not text.strip():
        return None
    parser = _Parser(text, with_lists)
    expression = parser.conjunction(0)
    parser.expect_end()
    return expression


class _Parser:
    """A recursive-descent parser over characters, because values such as 2026-01-01T00:00:00Z hold operator
    characters."""

    def __init__(self, text: str, with_lists: bool) -> None:
        self._text = text
        self._with_lists = with_lists
        self._at = 0
        self._tests = 0

    def conjunction(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise FilterError(f"the filter is nested deeper than {MAX_DEPTH} levels; simplify it")
        operands = [self._disjunction(depth)]
        while not self._at_end_of_group():
            self._keyword("AND")
            operands.append(self._disjunction(depth))
        return operands[0] if len(operands) == 1 else And(tuple(operands))

    def expect_end(self) -> None:
        if self._next():
            raise self._error("a closing parenthesis has no opening one")

    def _disjunction(self, depth: int) -> Expression:
        operands = [self._negation(depth)]
        while self._keyword("OR"):
            operands.append(self._negation(depth))
        return operands[0] if len(operands) == 1 else Or(tuple(operands))

    def _negation(self, depth: int) -> Expression:
        is_negated = False
        while self._keyword("NOT") or self._takes("-"):
            is_negated = not is_negated
        operand = self._primary(depth)
        return Not(operand) if is_negated else operand

    def _primary(self, depth: int) -> Expression:
        if self._takes("("):
            inner = self.conjunction(depth + 1)
            self._close()
            return inner
        self._count()
        if _KEYWORD.match(self._text, self._at):
            raise self._error("something to compare is expected")
        path = [self._name()]
        while self._text.startswith(".", self._at):
            self._at += 1
            path.append(self._name())
        if self._with_lists and self._text.startswith("(", self._at):
            self._at += 1
            inside = self._comma_list(tuple(path), Operator.HAS)
            self._close()
            return inside
        operator = self._operator()
        if operator is None:
            return Term(tuple(path))
        if self._takes("("):
            return self._value_list(tuple(path), operator)
        if self._with_lists:
            return self._comma_list(tuple(path), operator)
        return Comparison(tuple(path), operator, self._value())

    def _value_list(self, path: tuple[str, ...], operator: Operator) -> Expression:
        """Parse `severity=(ERROR OR WARNING)`: the comparison applies to each value."""
        comparisons: list[Expression] = [Comparison(path, operator, self._value())]
        kind: type[Or] | type[And] = Or
        while not self._at_end_of_group():
            if not self._keyword("OR"):
                self._keyword("AND")
                kind = And
            self._count()
            comparisons.append(Comparison(path, operator, self._value()))
        self._close()
        return comparisons[0] if len(comparisons) == 1 else kind(tuple(comparisons))

    def _comma_list(self, path: tuple[str, ...], operator: Operator) -> Expression:
        comparisons = [Comparison(path, operator, self._value())]
        while self._takes(","):
            self._count()
            comparisons.append(Comparison(path, operator, self._value()))
        return comparisons[0] if len(comparisons) == 1 else Or(tuple(comparisons))

    def _name(self) -> str:
        return self._text_of(_NAME, "a field name is expected")

    def _value(self) -> str:
        self._next()
        return self._text_of(_VALUE, "a value is expected")

    def _text_of(self, bare: re.Pattern[str], missing: str) -> str:
        """Return the quoted or bare text at this place, with escapes removed."""
        if self._text.startswith(('"', "'"), self._at):
            match = _QUOTED.match(self._text, self._at)
            if match is None:
                raise self._error("the quoted text is not closed")
            self._at = match.end()
            return re.sub(r"\\(.)", r"\1", match[2], flags=re.DOTALL)
        match = bare.match(self._text, self._at)
        if match is None:
            raise self._error(missing)
        self._at = match.end()
        return match[0]

    def _operator(self) -> Operator | None:
        match = _OPERATOR.match(self._text, self._at)
        if match is None:
            return None
        if match[1] in ("=~", "!~"):
            self._next()
            raise self._error(f"{match[1]} (regular expressions) is not served; use : instead")
        self._at = match.end()
        return Operator(match[1])

    def _keyword(self, word: str) -> bool:
        match = _KEYWORD.match(self._text, self._at)
        if match is None or match[1] != word:
            return False
        self._at = match.end()
        return True

    def _count(self) -> None:
        self._tests += 1
        if self._tests > MAX_TESTS:
            raise FilterError(
                f"the filter has more than {MAX_TESTS} comparisons; split the request"
            )

    def _close(self) -> None:
        if not self._takes(")"):
            raise self._error("a closing parenthesis is missing")

    def _at_end_of_group(self) -> bool:
        return self._next() in ("", ")")

    def _takes(self, character: str) -> bool:
        """Go behind the next character if it is this one. Returns whether it is."""
        is_next = self._next() == character
        self._at += is_next
        return is_next

    def _next(self) -> str:
        """Go behind any space, and return the character there; "" at the end."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _error(self, problem: str) -> FilterError:
        near = self._text[self._at : self._at + 20] or "the end"
        return FilterError(f"{problem} at character {self._at + 1}, near {near!r}")
