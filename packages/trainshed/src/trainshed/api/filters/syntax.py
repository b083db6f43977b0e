"""Parses filters to trees: one grammar for the list filters of both training APIs and of Logging v2.

`path OP value`, quoted or bare; AND, OR, NOT (or `-`), parentheses; terms side by side mean AND; a value list
`path=(a OR b)`. OR binds tighter than AND, as in the public filter languages (facts/resources#vertex,
spec/clients#log-pages). What a path means is decided elsewhere.
"""

from msgspec import Struct

from trainshed.core.operators import Operator

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

# Longest first, so that `!=` is not read as something else followed by `=`.
_OPERATORS = ("!=", "<=", ">=", "=~", "!~", "=", "<", ">", ":")
_ENDS_NAME = frozenset(" \t\r\n()=!<>:~\"'.,")
_ENDS_VALUE = frozenset(" \t\r\n()")


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

    def __init__(self, text: str, with_lists: bool = False) -> None:
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
        self._skip_space()
        if self._at < len(self._text):
            raise self._error("a closing parenthesis has no opening one")

    def _disjunction(self, depth: int) -> Expression:
        operands = [self._negation(depth)]
        while self._keyword("OR"):
            operands.append(self._negation(depth))
        return operands[0] if len(operands) == 1 else Or(tuple(operands))

    def _negation(self, depth: int) -> Expression:
        negated = False
        while True:
            self._skip_space()
            if self._keyword("NOT"):
                negated = not negated
            elif self._peek() == "-":
                self._at += 1
                negated = not negated
            else:
                break
        operand = self._primary(depth)
        return Not(operand) if negated else operand

    def _primary(self, depth: int) -> Expression:
        self._skip_space()
        if self._peek() == "(":
            self._at += 1
            inner = self.conjunction(depth + 1)
            self._close()
            return inner
        self._count()
        start = self._at
        if self._keyword("AND") or self._keyword("OR"):
            self._at = start
            raise self._error("something to compare is expected")
        path = self._path()
        if self._with_lists and self._peek() == "(":
            self._at += 1
            inside = self._comma_list(path, Operator.HAS)
            self._close()
            return inside
        operator = self._operator()
        if operator is None:
            return Term(path)
        self._skip_space()
        if self._peek() != "(" and self._with_lists:
            return self._comma_list(path, operator)
        if self._peek() != "(":
            return Comparison(path, operator, self._value())
        self._at += 1
        return self._value_list(path, operator)

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
        self._skip_space()
        while self._peek() == ",":
            self._at += 1
            self._count()
            comparisons.append(Comparison(path, operator, self._value()))
            self._skip_space()
        return comparisons[0] if len(comparisons) == 1 else Or(tuple(comparisons))

    def _path(self) -> tuple[str, ...]:
        names = [self._name()]
        while self._peek() == ".":
            self._at += 1
            names.append(self._name())
        return tuple(names)

    def _name(self) -> str:
        if self._peek() in ('"', "'"):
            return self._quoted()
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in _ENDS_NAME:
            self._at += 1
        if self._at == start:
            raise self._error("a field name is expected")
        return self._text[start : self._at]

    def _operator(self) -> Operator | None:
        before = self._at
        self._skip_space()
        for symbol in _OPERATORS:
            if self._text.startswith(symbol, self._at):
                if symbol in ("=~", "!~"):
                    raise self._error(
                        f"{symbol} (regular expressions) is not served; use : instead"
                    )
                self._at += len(symbol)
                return Operator(symbol)
        self._at = before
        return None

    def _value(self) -> str:
        self._skip_space()
        if self._peek() in ('"', "'"):
            return self._quoted()
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in _ENDS_VALUE:
            self._at += 1
        if self._at == start:
            raise self._error("a value is expected")
        return self._text[start : self._at]

    def _quoted(self) -> str:
        quote, start = self._text[self._at], self._at
        self._at += 1
        out: list[str] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == quote:
                self._at += 1
                return "".join(out)
            if character == "\\" and self._at + 1 < len(self._text):
                self._at += 1
                character = self._text[self._at]
            out.append(character)
            self._at += 1
        self._at = start
        raise self._error("the quoted text is not closed")

    def _keyword(self, word: str) -> bool:
        self._skip_space()
        end = self._at + len(word)
        if not self._text.startswith(word, self._at):
            return False
        if end < len(self._text) and self._text[end] not in _ENDS_VALUE:
            return False
        self._at = end
        return True

    def _count(self) -> None:
        self._tests += 1
        if self._tests > MAX_TESTS:
            raise FilterError(
                f"the filter has more than {MAX_TESTS} comparisons; split the request"
            )

    def _close(self) -> None:
        self._skip_space()
        if self._peek() != ")":
            raise self._error("a closing parenthesis is missing")
        self._at += 1

    def _at_end_of_group(self) -> bool:
        self._skip_space()
        return self._peek() in ("", ")")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _error(self, problem: str) -> FilterError:
        near = self._text[self._at : self._at + 20] or "the end"
        return FilterError(f"{problem} at character {self._at + 1}, near {near!r}")
