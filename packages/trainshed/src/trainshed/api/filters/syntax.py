"""Parses filters to trees. The list filters of both training APIs and the filters of Logging v2 have the same
grammar.

The grammar consists of `path OP value`, quoted or bare text, AND, OR, NOT (or `-`), parentheses, and value
lists `path=(a OR b)`. Adjacent terms are joined by AND. OR binds more tightly than AND, as in the public
filter languages (facts/resources#vertex, spec/clients#log-pages). Other modules interpret the paths.
"""

import re
from typing import Final

from msgspec import Struct

from trainshed.core.patterns import Operator

MAX_LENGTH = 20_000
MAX_DEPTH = 50
MAX_TESTS = 500
"""Maximum number of comparisons and terms in a filter. Each is applied to every row that a request reads."""


class FilterError(ValueError):
    """The text is not a valid filter, or contains an unknown field. The message contains a valid form."""


class Comparison(Struct, frozen=True):
    """A comparison in a filter, such as `state=RUNNING`: a path, an operator and a value."""

    #: The names in the path, which are separated by dots. Quotes and escapes are removed.
    path: tuple[str, ...]
    operator: Operator
    value: str

    @property
    def name(self) -> str:
        return ".".join(self.path)


class Term(Struct, frozen=True):
    """A path or a text without an operator, such as `labels.team` or `"out of memory"`."""

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
# The quantifiers are not possessive, because Python up to 3.11.4 (as in Debian 12) repeats possessive
# alternatives wrongly.
_QUOTED: Final = re.compile(r"""(["'])((?:\\.|(?!\1)[^\\])*)\1""", re.DOTALL)
_OPERATOR: Final = re.compile(r"\s*(!=|<=|>=|=~|!~|=|<|>|:)")
_KEYWORD: Final = re.compile(r"\s*(AND|OR|NOT)(?=[\s()]|\Z)")


def parse_filter(text: str, *, with_lists: bool = False) -> Expression | None:
    """Return the tree of a filter, or None for an empty filter, which matches everything.

    `with_lists`: accept lists, as the metadata service does. `parents:"a","b"` and `in_context("a", "b")`
    become one `:` comparison per value, joined by OR. Raises FilterError.
    """
    if len(text) > MAX_LENGTH:
        raise FilterError(f"the filter is longer than {MAX_LENGTH} characters. Split the request")
    if not text.strip():
        return None
    parser = _Parser(text, with_lists)
    expression = parser.conjunction(0)
    parser.expect_end()
    return expression


class _Parser:
    """A recursive-descent parser that reads single characters, because values such as 2026-01-01T00:00:00Z
    contain operator characters."""

    def __init__(self, text: str, with_lists: bool) -> None:
        self._text = text
        self._with_lists = with_lists
        self._position = 0
        self._tests = 0

    def conjunction(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise FilterError(f"the filter is nested deeper than {MAX_DEPTH} levels. Simplify the filter")
        operands = [self._disjunction(depth)]
        while not self._is_group_end():
            self._keyword("AND")
            operands.append(self._disjunction(depth))
        return operands[0] if len(operands) == 1 else And(tuple(operands))

    def expect_end(self) -> None:
        if self._peek():
            raise self._error("a closing parenthesis has no opening parenthesis")

    def _disjunction(self, depth: int) -> Expression:
        operands = [self._negation(depth)]
        while self._keyword("OR"):
            operands.append(self._negation(depth))
        return operands[0] if len(operands) == 1 else Or(tuple(operands))

    def _negation(self, depth: int) -> Expression:
        is_negated = False
        while self._keyword("NOT") or self._accept("-"):
            is_negated = not is_negated
        operand = self._primary(depth)
        return Not(operand) if is_negated else operand

    def _primary(self, depth: int) -> Expression:
        if self._accept("("):
            inner = self.conjunction(depth + 1)
            self._expect_close()
            return inner
        self._count_test()
        if _KEYWORD.match(self._text, self._position):
            raise self._error("a comparison such as name=value is expected")
        path = [self._name()]
        while self._text.startswith(".", self._position):
            self._position += 1
            path.append(self._name())
        if self._with_lists and self._text.startswith("(", self._position):
            self._position += 1
            comma_list = self._comma_list(tuple(path), Operator.HAS)
            self._expect_close()
            return comma_list
        operator = self._operator()
        if operator is None:
            return Term(tuple(path))
        if self._accept("("):
            return self._value_list(tuple(path), operator)
        if self._with_lists:
            return self._comma_list(tuple(path), operator)
        return Comparison(tuple(path), operator, self._value())

    def _value_list(self, path: tuple[str, ...], operator: Operator) -> Expression:
        """Parse a value list, as in `severity=(ERROR OR WARNING)`. The comparison applies to each value."""
        comparisons: list[Expression] = [Comparison(path, operator, self._value())]
        kind: type[Or] | type[And] = Or
        while not self._is_group_end():
            if not self._keyword("OR"):
                self._keyword("AND")
                kind = And
            self._count_test()
            comparisons.append(Comparison(path, operator, self._value()))
        self._expect_close()
        return comparisons[0] if len(comparisons) == 1 else kind(tuple(comparisons))

    def _comma_list(self, path: tuple[str, ...], operator: Operator) -> Expression:
        comparisons = [Comparison(path, operator, self._value())]
        while self._accept(","):
            self._count_test()
            comparisons.append(Comparison(path, operator, self._value()))
        return comparisons[0] if len(comparisons) == 1 else Or(tuple(comparisons))

    def _name(self) -> str:
        return self._text_of(_NAME, "a field name is expected")

    def _value(self) -> str:
        self._peek()
        return self._text_of(_VALUE, "a value is expected")

    def _text_of(self, bare: re.Pattern[str], missing: str) -> str:
        """Return the quoted or bare text at the current position, without escapes. `bare`: the pattern of a
        bare text. `missing`: the error message if there is no text."""
        if self._text.startswith(('"', "'"), self._position):
            match = _QUOTED.match(self._text, self._position)
            if match is None:
                raise self._error("the quoted text is not closed")
            self._position = match.end()
            return re.sub(r"\\(.)", r"\1", match[2], flags=re.DOTALL)
        match = bare.match(self._text, self._position)
        if match is None:
            raise self._error(missing)
        self._position = match.end()
        return match[0]

    def _operator(self) -> Operator | None:
        match = _OPERATOR.match(self._text, self._position)
        if match is None:
            return None
        if match[1] in ("=~", "!~"):
            self._peek()
            raise self._error(f"{match[1]} (regular expressions) is not supported, use : instead")
        self._position = match.end()
        return Operator(match[1])

    def _keyword(self, word: str) -> bool:
        match = _KEYWORD.match(self._text, self._position)
        if match is None or match[1] != word:
            return False
        self._position = match.end()
        return True

    def _count_test(self) -> None:
        self._tests += 1
        if self._tests > MAX_TESTS:
            raise FilterError(f"the filter has more than {MAX_TESTS} comparisons. Split the request")

    def _expect_close(self) -> None:
        if not self._accept(")"):
            raise self._error("a closing parenthesis is missing")

    def _is_group_end(self) -> bool:
        return self._peek() in ("", ")")

    def _accept(self, character: str) -> bool:
        """If the next character after whitespace is `character`, skip it. Return whether it was skipped."""
        is_next = self._peek() == character
        self._position += is_next
        return is_next

    def _peek(self) -> str:
        """Skip whitespace. Return the next character without skipping it, or "" at the end."""
        space = _SPACE.match(self._text, self._position)
        self._position = space.end() if space else self._position
        return self._text[self._position : self._position + 1]

    def _error(self, problem: str) -> FilterError:
        excerpt = self._text[self._position : self._position + 20] or "the end"
        return FilterError(f"{problem} at character {self._position + 1}, near {excerpt!r}")
