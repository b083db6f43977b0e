"""Compiles log filters to the jobs, tasks and time span to read, and to a test of entries.

Accepts the filters of `stream-logs` and `gcloud logging read` (spec/clients#log-pages): resource, labels,
timestamp, insertId, severity, payloads and text. Text comparisons ignore case, as in the public language.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from msgspec import Struct

from trainshed.api.calls.call import camel_case
from trainshed.api.filters.matching import (
    LAST_TIME,
    compile_tree,
    derive_bounds,
    ordered_test,
    ranked_test,
    span_of,
    text_test,
    time_test,
)
from trainshed.api.filters.syntax import And, Comparison, Expression, FilterError, Term, parse_filter
from trainshed.api.logging_v2.entry import RESOURCE_TYPE, Entry
from trainshed.api.logging_v2.special_fields import FIELDS
from trainshed.core.patterns import Operator
from trainshed.core.units import Nanos
from trainshed.store.logs.lines import Severity

EntryTest = Callable[[Entry], bool]
_ALL_TIMES: Final = (0, LAST_TIME)
_RANKS: Final = {severity.value: rank for rank, severity in enumerate(Severity)}
_RESOURCE_TYPES: Final = frozenset({RESOURCE_TYPE, "cloudml_job"})
"""The resource type in two spellings. Old clients use the second one."""
_FIELDS: Final = frozenset(FIELDS.values()) - {"insertId"}
_AUDIT_LOG_NAME: Final = "cloudaudit"
"""The part of the audit log's name that identifies it. The operator `:` can match parts of a name."""


class LogFilter(Struct, frozen=True):
    """A compiled filter: a test of entries, and limits that all matching entries meet."""

    #: IDs of the jobs that may have matching entries; None = all jobs.
    job_ids: frozenset[str] | None
    #: Tasks that may have matching entries; None = all tasks.
    tasks: frozenset[str] | None
    #: Start of the time span in nanoseconds since the epoch.
    start: Nanos
    #: End of the time span in nanoseconds since the epoch, exclusive.
    end: Nanos
    #: The test of an entry. It omits upper time limits that apply to the whole filter, because `end` contains
    #: them.
    passes: EntryTest
    is_audit: bool


def compile_log_filter(text: str) -> LogFilter:
    """Return a compiled filter. Raises FilterError."""
    tree = parse_filter(text)
    start, end = derive_bounds(tree, _time_span, _intersection, _union) or _ALL_TIMES
    return LogFilter(
        job_ids=_values(tree, "resource.labels.job_id"),
        tasks=_values(tree, "resource.labels.task_name"),
        start=start,
        end=end,
        passes=compile_tree(_without_end(tree), _leaf),
        is_audit=derive_bounds(tree, _selects_audit, all, all) is not None,
    )


def _leaf(leaf: Comparison | Term) -> EntryTest:
    if isinstance(leaf, Term):
        text_part = leaf.name.casefold()
        return lambda entry: text_part in entry.text.casefold()
    match leaf.path:
        case ("timestamp",) | ("receiveTimestamp",) | ("receive_timestamp",):
            is_matching_time = time_test(leaf)
            return lambda entry: is_matching_time(entry.time)
        case ("severity",):
            is_matching_severity = ranked_test(leaf, _RANKS)
            return lambda entry: is_matching_severity(_RANKS[entry.severity.value])
        case ("insertId",) | ("insert_id",):
            # Insert IDs are compared as text. Clients use this comparison to continue after an entry with the
            # same timestamp.
            ordered = ordered_test(leaf, leaf.value)
            return lambda entry: ordered(entry.public_id)
        case ("jsonPayload" | "json_payload" | "protoPayload" | "proto_payload", *path) if path and path != [
            "message"
        ]:
            return _field(leaf, tuple(path), lambda entry: entry.payload)
        case (name, *path) if (field := camel_case(name)) in _FIELDS:
            return _field(leaf, (field, *map(camel_case, path)), lambda entry: entry.fields)
        case _:
            read = _text_field(leaf)
            test = text_test(leaf, fold_case=True)
            absent = leaf.operator is Operator.NOT_EQUAL

            def compare(entry: Entry) -> bool:
                value = read(entry)
                return absent if value is None else test(value)

            return compare


def _text_field(leaf: Comparison) -> Callable[[Entry], str | None]:
    """Return a function that returns the value of a path in an entry, or None if the entry has no such value.
    Raises FilterError for an unknown path."""
    match leaf.path:
        case ("resource", "type"):
            # Both spellings of the resource type match an entry of a job.
            kind = leaf.value if leaf.value in _RESOURCE_TYPES else RESOURCE_TYPE
            kinds = {RESOURCE_TYPE: kind}
            return lambda entry: kinds.get(entry.source.resource_type, entry.source.resource_type)
        case ("resource", "labels", *parts) if parts:
            resource_label = ".".join(parts)
            return lambda entry: entry.source.resource_labels.get(resource_label)
        case ("labels", *parts) if parts:
            label = ".".join(parts)
            return lambda entry: entry.labels.get(label)
        case ("logName",) | ("log_name",):
            return lambda entry: entry.source.log_name
        case ("textPayload" | "text_payload",) | ("jsonPayload" | "json_payload", "message"):
            return lambda entry: entry.text
        case _:
            raise FilterError(
                f"log entries cannot be filtered by {leaf.name!r}. Use timestamp, severity, insertId, "
                "resource.type, resource.labels.NAME, labels.NAME, logName, textPayload, jsonPayload.NAME, "
                "httpRequest.NAME, operation.NAME, sourceLocation.NAME, spanId, trace or traceSampled"
            )


def _field(
    leaf: Comparison, path: tuple[str, ...], read: Callable[[Entry], dict[str, Any] | None]
) -> EntryTest:
    """Return the test of the value at a path in an entry's JSON. A numeric comparison compares numbers. All
    other comparisons compare texts."""
    absent = leaf.operator is Operator.NOT_EQUAL
    if absent or leaf.operator in (Operator.EQUAL, Operator.HAS):
        test = text_test(leaf, fold_case=True)

        def compare(entry: Entry) -> bool:
            value = _value_at_path(read(entry), path)
            if value is None:
                return absent
            return test(str(value).lower() if isinstance(value, bool) else str(value))

        return compare
    try:
        ordered = ordered_test(leaf, float(leaf.value))
    except ValueError:
        raise FilterError(f"{leaf.name} can be compared with {leaf.operator} only to a number") from None

    def in_order(entry: Entry) -> bool:
        value = _value_at_path(read(entry), path)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)  # Convert, because JSON represents 64-bit integers as text.
        return isinstance(value, int | float) and ordered(value)

    return in_order


def _value_at_path(payload: Any, path: tuple[str, ...]) -> Any:
    value = payload
    for name in path:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value


Span = tuple[int, int]
"""A half-open span of time that contains all matching entries."""


def _intersection(spans: list[Span]) -> Span:
    return max(start for start, _ in spans), min(end for _, end in spans)


def _union(spans: list[Span]) -> Span:
    return min(start for start, _ in spans), max(end for _, end in spans)


def _without_end(tree: Expression | None) -> Expression | None:
    """Return the filter without upper time limits that apply to the whole filter."""
    match tree:
        case Comparison(path=("timestamp",), operator=Operator.LESS | Operator.LESS_EQUAL):
            return None
        case And():
            parts = [part for part in map(_without_end, tree.operands) if part is not None]
            return And(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None
        case _:
            return tree


def _time_span(leaf: Comparison | Term) -> Span | None:
    return span_of(leaf) if isinstance(leaf, Comparison) and leaf.path == ("timestamp",) else None


def _selects_audit(leaf: Comparison | Term) -> bool | None:
    """Return True if the test selects the audit log; otherwise None."""
    if isinstance(leaf, Term) or leaf.operator not in (Operator.EQUAL, Operator.HAS):
        return None
    is_named = leaf.name in ("logName", "log_name") and _AUDIT_LOG_NAME in leaf.value.casefold()
    return True if is_named else None


def _values(tree: Expression | None, name: str) -> frozenset[str] | None:
    """Return the values that the filter allows for the field `name`; None = all values."""

    def value(leaf: Comparison | Term) -> frozenset[str] | None:
        if isinstance(leaf, Term) or leaf.operator is not Operator.EQUAL:
            return None
        return frozenset({leaf.value}) if leaf.name == name else None

    return derive_bounds(
        tree, value, lambda sets: sets[0].intersection(*sets[1:]), lambda sets: frozenset[str]().union(*sets)
    )
