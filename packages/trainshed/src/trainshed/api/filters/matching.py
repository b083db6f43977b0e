"""Compiles comparisons to predicates: of texts, labels, times, ranked words, and of trees of such tests.

Everything is decided when the filter is compiled; a predicate only compares.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar, assert_never

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
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.patterns import Operator, compile_wildcard
from trainshed.core.requests import snake_case

T = TypeVar("T")

Labels = tuple[tuple[str, str], ...]


K = TypeVar("K", int, float, str)

LAST_MOMENT: Final = 2**63 - 1
"""The last one that the store can compare with."""
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9})\d*)?)?([Zz]|[+-]\d\d:?\d\d)?"
)


def everything(value: object) -> bool:
    """Return True: the predicate of an empty filter."""
    return True


def compile_filter(
    text: str, leaf: Callable[[Comparison | Term], Callable[[T], bool]]
) -> Callable[[T], bool]:
    """Return the predicate of a list's filter; `leaf` as for `compile_tree`. Raises InvalidRequest on
    `filter`."""
    try:
        return compile_tree(parse_filter(text), leaf)
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None


def compile_tree(
    expression: Expression | None, leaf: Callable[[Comparison | Term], Callable[[T], bool]]
) -> Callable[[T], bool]:
    """Return a predicate for the whole tree. `leaf` compiles one test, and raises FilterError for a bad
    one."""
    match expression:
        case None:
            return everything
        case Comparison() | Term():
            return leaf(expression)
        case Not():
            inner = compile_tree(expression.operand, leaf)
            return lambda value: not inner(value)
        case And():
            every = tuple(compile_tree(operand, leaf) for operand in expression.operands)
            return lambda value: all(test(value) for test in every)
        case Or():
            some = tuple(compile_tree(operand, leaf) for operand in expression.operands)
            return lambda value: any(test(value) for test in some)
        case _:
            assert_never(expression)


def implied(
    expression: Expression | None,
    leaf: Callable[[Comparison | Term], T | None],
    every: Callable[[list[T]], T],
    either: Callable[[list[T]], T],
) -> T | None:
    """Return what holds of everything that passes a filter; None if nothing is known. `leaf`: what a test
    says by itself; `every`: what several together say; `either`: what holds if one of several does."""
    match expression:
        case Comparison() | Term():
            return leaf(expression)
        case And(operands) | Or(operands):
            parts = [implied(operand, leaf, every, either) for operand in operands]
            known = [part for part in parts if part is not None]
            if isinstance(expression, And):
                return every(known) if known else None
            return either(known) if len(known) == len(parts) else None
        case Not() | None:
            return None
        case _:
            assert_never(expression)


def record_filter(
    text: str, noun: str, texts: Mapping[str, Callable[[T], str]]
) -> Callable[[T], bool]:
    """Return the predicate of a filter by labels (`labels.KEY`) and by these texts of records, whose names
    are accepted in either spelling. `noun`: what is listed, in the plural. Raises InvalidRequest on
    `filter`."""

    def compiled(leaf: Comparison | Term) -> Callable[[T], bool]:
        if leaf.path[0] == "labels":
            labelled = label_test(leaf)
            return lambda record: labelled(getattr(record, "labels", ()))
        text_of = texts.get(snake_case(leaf.name))
        if text_of is None or isinstance(leaf, Term):
            known = ", ".join((*texts, "labels.KEY"))
            raise FilterError(
                f"{noun} cannot be filtered by {leaf.name!r}; compare one of: {known}"
            )
        test = text_test(leaf)
        return lambda record: test(text_of(record))

    return compile_filter(text, compiled)


def text_test(comparison: Comparison, *, fold_case: bool = False) -> Callable[[str], bool]:
    """Return the test of a text: `=` and `!=` compare whole texts, `:` looks for a part, or for a pattern if
    it holds `*`. Raises FilterError for other operators."""
    wanted = comparison.value.casefold() if fold_case else comparison.value

    def folded(text: str) -> str:
        return text.casefold() if fold_case else text

    match comparison.operator:
        case Operator.EQUAL:
            return lambda text: folded(text) == wanted
        case Operator.NOT_EQUAL:
            return lambda text: folded(text) != wanted
        case Operator.HAS if "*" in wanted:
            matches = compile_wildcard(wanted)
            return lambda text: matches(folded(text))
        case Operator.HAS:
            return lambda text: wanted in folded(text)
        case _:
            raise FilterError(
                f"{comparison.name} is text and cannot be compared by {comparison.operator}; use =, != or :"
            )


def label_test(leaf: Comparison | Term) -> Callable[[Labels], bool]:
    """Return the test of labels: `labels.k=v`, `labels.k:*`, `labels.k`, or `labels:k`, which tests for the
    key as well. Raises FilterError."""
    if len(leaf.path) == 1:
        if isinstance(leaf, Term) or leaf.operator is not Operator.HAS:
            raise FilterError("name a label: labels.KEY=VALUE, or labels.KEY:* for any value")
        wanted_key = leaf.value
        return lambda labels: any(key == wanted_key for key, _ in labels)
    key = ".".join(leaf.path[1:])
    if isinstance(leaf, Term):
        return lambda labels: any(name == key for name, _ in labels)
    test = text_test(leaf)
    if leaf.operator is Operator.NOT_EQUAL:
        return lambda labels: all(test(value) for name, value in labels if name == key)
    return lambda labels: any(name == key and test(value) for name, value in labels)


def moment_test(comparison: Comparison) -> Callable[[int], bool]:
    """Return the test of a time, in nanoseconds since the epoch: `end_time:*` is true of any that has come;
    one that has not (0) matches nothing. Raises FilterError."""
    if _is_any(comparison):
        return bool
    test = ordered_test(comparison, moment(comparison.value))
    return lambda at: at != 0 and test(at)


def span_of(comparison: Comparison) -> tuple[int, int] | None:
    """Return the time from which on, and before which, what passes the test of a time has happened; None if
    that may be any. Raises FilterError."""
    if _is_any(comparison):
        return None
    at = moment(comparison.value)
    behind = min(at + 1, LAST_MOMENT)
    match comparison.operator:
        case Operator.EQUAL | Operator.HAS:
            return at, behind
        case Operator.LESS:
            return 0, at
        case Operator.LESS_EQUAL:
            return 0, behind
        case Operator.GREATER:
            return behind, LAST_MOMENT
        case Operator.GREATER_EQUAL:
            return at, LAST_MOMENT
        case Operator.NOT_EQUAL:
            return None
        case _:
            assert_never(comparison.operator)


def _is_any(comparison: Comparison) -> bool:
    return comparison.operator is Operator.HAS and comparison.value == "*"


def ranked_test(comparison: Comparison, ranks: Mapping[str, int]) -> Callable[[int], bool]:
    """Return the test of a word's rank, such as a log severity's. Raises FilterError for an unknown word."""
    rank = ranks.get(comparison.value.upper())
    if rank is None:
        raise FilterError(
            f"{comparison.value!r} is no value of {comparison.name}; it has: {', '.join(ranks)}"
        )
    return ordered_test(comparison, rank)


def moment(text: str) -> int:
    """Return the nanoseconds since the epoch of an RFC 3339 time or a date; without an offset it is UTC.
    Raises FilterError. What lies beyond LAST_MOMENT, or as far before 1970, is moved to there."""
    match = _MOMENT.fullmatch(text.strip())
    if match is None:
        raise FilterError(f"{text!r} is not a time such as 2026-05-18T00:00:00Z")
    date, clock, fraction, offset = match.groups()
    iso = f"{date}T{clock or '00:00:00'}{'+00:00' if offset in (None, 'Z', 'z') else offset}"
    try:
        parsed = datetime.fromisoformat(iso)
    except ValueError as error:
        raise FilterError(f"{text!r} is not a time: {error}") from None
    whole = parsed - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = whole.days * 86_400 + whole.seconds
    nanos = seconds * 10**9 + int((fraction or "").ljust(9, "0"))
    return max(-LAST_MOMENT, min(nanos, LAST_MOMENT))


def ordered_test(comparison: Comparison, wanted: K) -> Callable[[K], bool]:
    """Return the test of a value in its own order."""
    match comparison.operator:
        case Operator.EQUAL | Operator.HAS:
            return lambda value: value == wanted
        case Operator.NOT_EQUAL:
            return lambda value: value != wanted
        case Operator.LESS:
            return lambda value: value < wanted
        case Operator.LESS_EQUAL:
            return lambda value: value <= wanted
        case Operator.GREATER:
            return lambda value: value > wanted
        case Operator.GREATER_EQUAL:
            return lambda value: value >= wanted
        case _:
            assert_never(comparison.operator)
