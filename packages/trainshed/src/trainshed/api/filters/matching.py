"""Compiles filters to predicates: tests of texts, labels, times and ranked words, and trees of these tests.

All other work is done when a filter is compiled. The predicates only compare values.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar, assert_never

from trainshed.api.filters.syntax import And, Comparison, Expression, FilterError, Not, Or, Term, parse_filter
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.patterns import Operator, compile_wildcard
from trainshed.core.requests import snake_case

T = TypeVar("T")

Labels = tuple[tuple[str, str], ...]


K = TypeVar("K", int, float, str)

LAST_TIME: Final = 2**63 - 1
"""The latest time that the store can compare."""
_TIME_PATTERN = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9})\d*)?)?([Zz]|[+-]\d\d:?\d\d)?"
)


def matches_all(value: object) -> bool:
    """Return True. This is the predicate of an empty filter."""
    return True


def compile_filter(
    text: str, leaf: Callable[[Comparison | Term], Callable[[T], bool]]
) -> Callable[[T], bool]:
    """Return the predicate for a list's filter. `leaf`: as for `compile_tree`. Raises InvalidRequest for
    `filter`."""
    try:
        return compile_tree(parse_filter(text), leaf)
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None


def compile_tree(
    expression: Expression | None, leaf: Callable[[Comparison | Term], Callable[[T], bool]]
) -> Callable[[T], bool]:
    """Return the predicate for a tree. `leaf` compiles one test. It raises FilterError for an invalid
    test."""
    match expression:
        case None:
            return matches_all
        case Comparison() | Term():
            return leaf(expression)
        case Not():
            inner = compile_tree(expression.operand, leaf)
            return lambda value: not inner(value)
        case And():
            every = tuple(compile_tree(operand, leaf) for operand in expression.operands)
            return lambda value: all(test(value) for test in every)
        case Or():
            alternatives = tuple(compile_tree(operand, leaf) for operand in expression.operands)
            return lambda value: any(test(value) for test in alternatives)
        case _:
            assert_never(expression)


def derive_bounds(
    expression: Expression | None,
    leaf: Callable[[Comparison | Term], T | None],
    every: Callable[[list[T]], T],
    either: Callable[[list[T]], T],
) -> T | None:
    """Return bounds that include all values that match a filter, such as a span of time; None = no bounds.

    `leaf`: returns the bounds of one test. `every`: combines the bounds of the operands of AND. `either`:
    combines the bounds of the operands of OR.
    """
    match expression:
        case Comparison() | Term():
            return leaf(expression)
        case And(operands) | Or(operands):
            parts = [derive_bounds(operand, leaf, every, either) for operand in operands]
            fields = [part for part in parts if part is not None]
            if isinstance(expression, And):
                return every(fields) if fields else None
            return either(fields) if len(fields) == len(parts) else None
        case Not() | None:
            return None
        case _:
            assert_never(expression)


def record_filter(text: str, noun: str, texts: Mapping[str, Callable[[T], str]]) -> Callable[[T], bool]:
    """Return the predicate for a filter by labels (`labels.KEY`) and by text fields of records. `texts`: for
    each field, a function that returns its text. Field names are accepted in both spellings. `noun`: the
    plural noun for the records in errors. Raises InvalidRequest for `filter`."""

    def compile_test(leaf: Comparison | Term) -> Callable[[T], bool]:
        if leaf.path[0] == "labels":
            has_label = label_test(leaf)
            return lambda record: has_label(getattr(record, "labels", ()))
        text_of = texts.get(snake_case(leaf.name))
        if text_of is None or isinstance(leaf, Term):
            fields = ", ".join((*texts, "labels.KEY"))
            raise FilterError(f"{noun} cannot be filtered by {leaf.name!r}. Use one of: {fields}")
        test = text_test(leaf)
        return lambda record: test(text_of(record))

    return compile_filter(text, compile_test)


def text_test(comparison: Comparison, *, fold_case: bool = False) -> Callable[[str], bool]:
    """Return the test of a text. `=` and `!=` compare complete texts. `:` searches for a part of the text, or
    for a pattern with `*`. Raises FilterError for other operators."""
    expected = comparison.value.casefold() if fold_case else comparison.value

    def fold(text: str) -> str:
        return text.casefold() if fold_case else text

    match comparison.operator:
        case Operator.EQUAL:
            return lambda text: fold(text) == expected
        case Operator.NOT_EQUAL:
            return lambda text: fold(text) != expected
        case Operator.HAS if "*" in expected:
            matches = compile_wildcard(expected)
            return lambda text: matches(fold(text))
        case Operator.HAS:
            return lambda text: expected in fold(text)
        case _:
            raise FilterError(
                f"{comparison.name} is text and cannot be compared with {comparison.operator}. Use =, != or :"
            )


def label_test(leaf: Comparison | Term) -> Callable[[Labels], bool]:
    """Return the test of labels: `labels.k=v`, `labels.k:*`, `labels.k` or `labels:k`. The last three forms
    test whether the key exists. Raises FilterError."""
    if len(leaf.path) == 1:
        if isinstance(leaf, Term) or leaf.operator is not Operator.HAS:
            raise FilterError("the label has no key. Use labels.KEY=VALUE, or labels.KEY:* for any value")
        wanted_key = leaf.value
        return lambda labels: any(key == wanted_key for key, _ in labels)
    key = ".".join(leaf.path[1:])
    if isinstance(leaf, Term):
        return lambda labels: any(name == key for name, _ in labels)
    test = text_test(leaf)
    if leaf.operator is Operator.NOT_EQUAL:
        return lambda labels: all(test(value) for name, value in labels if name == key)
    return lambda labels: any(name == key and test(value) for name, value in labels)


def time_test(comparison: Comparison) -> Callable[[int], bool]:
    """Return the test of a time in nanoseconds since the epoch. The filter `end_time:*` matches if the time
    is set. All other filters never match an unset time (0). Raises FilterError."""
    if _is_any(comparison):
        return bool
    test = ordered_test(comparison, parse_time(comparison.value))
    return lambda time: time != 0 and test(time)


def span_of(comparison: Comparison) -> tuple[int, int] | None:
    """Return the earliest time (inclusive) and the latest time (exclusive) that the test of a time accepts;
    None = the test accepts all times. Raises FilterError."""
    if _is_any(comparison):
        return None
    time = parse_time(comparison.value)
    next_time = min(time + 1, LAST_TIME)
    match comparison.operator:
        case Operator.EQUAL | Operator.HAS:
            return time, next_time
        case Operator.LESS:
            return 0, time
        case Operator.LESS_EQUAL:
            return 0, next_time
        case Operator.GREATER:
            return next_time, LAST_TIME
        case Operator.GREATER_EQUAL:
            return time, LAST_TIME
        case Operator.NOT_EQUAL:
            return None
        case _:
            assert_never(comparison.operator)


def _is_any(comparison: Comparison) -> bool:
    return comparison.operator is Operator.HAS and comparison.value == "*"


def ranked_test(comparison: Comparison, ranks: Mapping[str, int]) -> Callable[[int], bool]:
    """Return a test that compares ranked words, such as log severities, by their rank. `ranks`: the rank of
    each word. Raises FilterError if the filter contains an unknown word."""
    rank = ranks.get(comparison.value.upper())
    if rank is None:
        raise FilterError(
            f"{comparison.value!r} is not a value of {comparison.name}. Use one of: {', '.join(ranks)}"
        )
    return ordered_test(comparison, rank)


def parse_time(text: str) -> int:
    """Return an RFC 3339 time or date in nanoseconds since the epoch. Without an offset, it is in UTC. Times
    outside ±LAST_TIME are replaced by the limit. Raises FilterError."""
    match = _TIME_PATTERN.fullmatch(text.strip())
    if match is None:
        raise FilterError(f"{text!r} is not a time such as 2026-05-18T00:00:00Z")
    date, clock, fraction, offset = match.groups()
    iso = f"{date}T{clock or '00:00:00'}{'+00:00' if offset in (None, 'Z', 'z') else offset}"
    try:
        parsed = datetime.fromisoformat(iso)
    except ValueError as error:
        raise FilterError(
            f"{text!r} is not a time: {error}. Use a time such as 2026-05-18T00:00:00Z"
        ) from None
    elapsed = parsed - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = elapsed.days * 86_400 + elapsed.seconds
    nanos = seconds * 10**9 + int((fraction or "").ljust(9, "0"))
    return max(-LAST_TIME, min(nanos, LAST_TIME))


def ordered_test(comparison: Comparison, expected: K) -> Callable[[K], bool]:
    """Return a test that compares a value with `expected`. The operator in `comparison` determines the test,
    such as `value < expected`."""
    match comparison.operator:
        case Operator.EQUAL | Operator.HAS:
            return lambda value: value == expected
        case Operator.NOT_EQUAL:
            return lambda value: value != expected
        case Operator.LESS:
            return lambda value: value < expected
        case Operator.LESS_EQUAL:
            return lambda value: value <= expected
        case Operator.GREATER:
            return lambda value: value > expected
        case Operator.GREATER_EQUAL:
            return lambda value: value >= expected
        case _:
            assert_never(comparison.operator)
