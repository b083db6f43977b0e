"""Log filters: which jobs, tasks and time span to read, and which other conditions a line must meet.

Accepts what `stream-logs` and `gcloud logging read` send (spec/clients#log-pages): resource, labels,
timestamp, insertId, severity, payloads, text. Texts compare without regard to case, as in the public
language.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from msgspec import Struct

from trainshed.api.calls.call import camel_case
from trainshed.api.filters.matching import (
    LAST_MOMENT,
    compile_tree,
    implied,
    moment_test,
    ordered_test,
    ranked_test,
    span_of,
    text_test,
)
from trainshed.api.filters.syntax import (
    And,
    Comparison,
    Expression,
    FilterError,
    Term,
    parse_filter,
)
from trainshed.api.logging_v2.entry import RESOURCE_TYPE, Entry
from trainshed.api.logging_v2.special_fields import FIELDS
from trainshed.core.patterns import Operator
from trainshed.core.units import Nanos
from trainshed.store.logs.lines import Severity

EntryTest = Callable[[Entry], bool]
_EVERYTHING: Final = (0, LAST_MOMENT)
_RANKS: Final = {severity.value: rank for rank, severity in enumerate(Severity)}
_TYPES: Final = frozenset({RESOURCE_TYPE, "cloudml_job"})
"""Both names of the resource; old clients ask for the second one as well."""
_FIELDS: Final = frozenset(FIELDS.values()) - {"insertId"}
_AUDIT: Final = "cloudaudit"
"""What names the audit's log: `:` looks for a part of the name."""


class LogFilter(Struct, frozen=True):
    """What passes a filter, and where nothing can pass it."""

    #: Ids of jobs that can match; None = any.
    job_ids: frozenset[str] | None
    #: Tasks that can match; None = any.
    tasks: frozenset[str] | None
    #: Nanoseconds since the epoch.
    start: Nanos
    #: Nanoseconds since the epoch; exclusive.
    end: Nanos
    #: The filter, except for upper time bounds that apply to all of it, which `end` covers.
    passes: EntryTest
    is_of_audit: bool


def compile_log_filter(text: str) -> LogFilter:
    """Read a filter. Raises FilterError."""
    tree = parse_filter(text)
    start, end = implied(tree, _span, _common, _hull) or _EVERYTHING
    return LogFilter(
        job_ids=_values(tree, "resource.labels.job_id"),
        tasks=_values(tree, "resource.labels.task_name"),
        start=start,
        end=end,
        passes=compile_tree(_without_end(tree), _leaf),
        is_of_audit=implied(tree, _of_audit, all, all) is not None,
    )


def _leaf(leaf: Comparison | Term) -> EntryTest:
    if isinstance(leaf, Term):
        wanted = leaf.name.casefold()
        return lambda entry: wanted in entry.text.casefold()
    match leaf.path:
        case ("timestamp",) | ("receiveTimestamp",) | ("receive_timestamp",):
            happened = moment_test(leaf)
            return lambda entry: happened(entry.at)
        case ("severity",):
            severe = ranked_test(leaf, _RANKS)
            return lambda entry: severe(_RANKS[entry.severity.value])
        case ("insertId",) | ("insert_id",):
            # They order as texts, by which a reader goes on within one moment.
            ordered = ordered_test(leaf, leaf.value)
            return lambda entry: ordered(entry.shown_id)
        case ("jsonPayload" | "json_payload" | "protoPayload" | "proto_payload", *inside) if (
            inside and inside != ["message"]
        ):
            return _field(leaf, tuple(inside), lambda entry: entry.payload)
        case (name, *inside) if (field := camel_case(name)) in _FIELDS:
            return _field(leaf, (field, *map(camel_case, inside)), lambda entry: entry.fields)
        case _:
            read = _text_field(leaf)
            test = text_test(leaf, fold_case=True)
            absent = leaf.operator is Operator.NOT_EQUAL

            def compare(entry: Entry) -> bool:
                value = read(entry)
                return absent if value is None else test(value)

            return compare


def _text_field(leaf: Comparison) -> Callable[[Entry], str | None]:
    """Return the function that reads a path's value from an entry; it returns None if the entry has no such
    value. Raises FilterError for an unknown path."""
    match leaf.path:
        case ("resource", "type"):
            # An entry of a job has whichever of the two names is asked for.
            kind = leaf.value if leaf.value in _TYPES else RESOURCE_TYPE
            kinds = {RESOURCE_TYPE: kind}
            return lambda entry: kinds.get(entry.source.resource_type, entry.source.resource_type)
        case ("resource", "labels", *rest) if rest:
            resource_label = ".".join(rest)
            return lambda entry: entry.source.resource_labels.get(resource_label)
        case ("labels", *rest) if rest:
            label = ".".join(rest)
            return lambda entry: entry.labels.get(label)
        case ("logName",) | ("log_name",):
            return lambda entry: entry.source.log_name
        case ("textPayload" | "text_payload",) | ("jsonPayload" | "json_payload", "message"):
            return lambda entry: entry.text
        case _:
            raise FilterError(
                f"log entries cannot be filtered by {leaf.name!r}; use timestamp, severity, insertId, "
                "resource.type, resource.labels.NAME, labels.NAME, logName, textPayload, jsonPayload.NAME, "
                "httpRequest.NAME, operation.NAME, sourceLocation.NAME, spanId, trace or traceSampled"
            )


def _field(
    leaf: Comparison, path: tuple[str, ...], read: Callable[[Entry], dict[str, Any] | None]
) -> EntryTest:
    """Return the test of a value at a path in JSON of an entry. Numbers order as numbers; everything else
    compares as text."""
    absent = leaf.operator is Operator.NOT_EQUAL
    if absent or leaf.operator in (Operator.EQUAL, Operator.HAS):
        test = text_test(leaf, fold_case=True)

        def compare(entry: Entry) -> bool:
            value = _inside(read(entry), path)
            if value is None:
                return absent
            return test(str(value).lower() if isinstance(value, bool) else str(value))

        return compare
    try:
        ordered = ordered_test(leaf, float(leaf.value))
    except ValueError:
        raise FilterError(
            f"{leaf.name} can be compared by {leaf.operator} with a number only"
        ) from None

    def in_order(entry: Entry) -> bool:
        value = _inside(read(entry), path)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)  # The text of an integer with 64 bits.
        return isinstance(value, int | float) and ordered(value)

    return in_order


def _inside(payload: Any, path: tuple[str, ...]) -> Any:
    value = payload
    for name in path:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value


Span = tuple[int, int]
"""A half-open span of time, outside which nothing can match."""


def _common(spans: list[Span]) -> Span:
    return max(start for start, _ in spans), min(end for _, end in spans)


def _hull(spans: list[Span]) -> Span:
    return min(start for start, _ in spans), max(end for _, end in spans)


def _without_end(tree: Expression | None) -> Expression | None:
    """Return the filter without the upper time bounds that all of it is subject to."""
    match tree:
        case Comparison(path=("timestamp",), operator=Operator.LESS | Operator.LESS_EQUAL):
            return None
        case And():
            rest = [part for part in map(_without_end, tree.operands) if part is not None]
            return And(tuple(rest)) if len(rest) > 1 else rest[0] if rest else None
        case _:
            return tree


def _span(leaf: Comparison | Term) -> Span | None:
    return span_of(leaf) if isinstance(leaf, Comparison) and leaf.path == ("timestamp",) else None


def _of_audit(leaf: Comparison | Term) -> bool | None:
    """Return True if the test names the audit's log."""
    if isinstance(leaf, Term) or leaf.operator not in (Operator.EQUAL, Operator.HAS):
        return None
    is_named = leaf.name in ("logName", "log_name") and _AUDIT in leaf.value.casefold()
    return True if is_named else None


def _values(tree: Expression | None, name: str) -> frozenset[str] | None:
    """Return the values of which field `name` must have one; None if the filter does not say."""

    def value(leaf: Comparison | Term) -> frozenset[str] | None:
        if isinstance(leaf, Term) or leaf.operator is not Operator.EQUAL:
            return None
        return frozenset({leaf.value}) if leaf.name == name else None

    return implied(
        tree,
        value,
        lambda sets: sets[0].intersection(*sets[1:]),
        lambda sets: frozenset[str]().union(*sets),
    )
