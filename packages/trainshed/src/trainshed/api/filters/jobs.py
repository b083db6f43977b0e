"""Filters of job lists in both training APIs (facts/resources#ml, facts/resources#vertex).

`aiplatform` v1 accepts the fields display_name, state, create_time, update_time and labels. `ml` v1 accepts
the same fields in its own spelling, and jobId. Lists of tuning jobs accept the same fields. Lists of
pipelines accept additional fields. Every field name is accepted in both spellings.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from trainshed.api.filters.matching import (
    LAST_TIME,
    compile_tree,
    derive_bounds,
    label_test,
    matches_all,
    span_of,
    text_test,
    time_test,
)
from trainshed.api.filters.syntax import Comparison, FilterError, Term, parse_filter
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.lifecycle.states import JobState
from trainshed.core.patterns import Operator
from trainshed.core.requests import snake_case
from trainshed.core.works import Work
from trainshed.store.port import Column, Condition, Contains, Created, Either, Equal, Every, HasLabel

JobTest = Callable[[Work], bool]

States = Mapping[str, JobState | None]
"""Job states by their names in an API. None = jobs never have this state."""

AdditionalFields = Mapping[str, Callable[[Comparison], JobTest]]
"""Additional filter fields of a list, by name. Each value is a function that compiles a comparison."""

NO_ADDITIONAL_FIELDS: Final[AdditionalFields] = {}
_MAX_TESTS: Final = 10
"""Maximum number of tests in a condition for the store. The store applies each test to every job that it
reads. A filter with more tests is therefore not passed to the store."""


class JobFilter(Struct, frozen=True):
    """The filter of a list of jobs, tuning jobs or pipelines."""

    passes: JobTest = matches_all
    #: A condition on columns of the store. All matching jobs meet it; other jobs may meet it as well. None =
    #: no condition.
    where: Condition | None = None


_TEXTS: Final[Mapping[str, Callable[[Work], str]]] = {
    "display_name": lambda work: work.display_name,
    "job_id": lambda work: work.name.job_id,
}
_COLUMNS: Final = {"display_name": Column.DISPLAY_NAME, "job_id": Column.JOB_ID}
_STATE: Final = "state"
_MOMENTS: Final[Mapping[str, Callable[[Work], int]]] = {
    "create_time": lambda work: work.created,
    "update_time": lambda work: work.updated,
    "start_time": lambda work: work.started,
    "end_time": lambda work: work.ended,
}


def compile_job_filter(
    text: str, states: States, additional: AdditionalFields = NO_ADDITIONAL_FIELDS
) -> JobFilter:
    """Compile the filter of a list of jobs, tuning jobs or pipelines. Raises InvalidRequest for `filter` if
    the text is invalid or contains an unknown field."""
    try:
        tree = parse_filter(text)
        passes = compile_tree(tree, lambda leaf: _compile_test(leaf, states, additional).passes)
        where = derive_bounds(
            tree,
            lambda leaf: _compile_test(leaf, states, additional).where,
            lambda conditions: Every(tuple(conditions)),
            lambda conditions: Either(tuple(conditions)),
        )
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None
    is_short = where is not None and sum(1 for _ in _flat_tests(where)) <= _MAX_TESTS
    return JobFilter(passes, where if is_short else None)


def _compile_test(leaf: Comparison | Term, states: States, additional: AdditionalFields) -> JobFilter:
    if leaf.path[0] == "labels":
        has_label = label_test(leaf)
        return JobFilter(lambda job: has_label(job.labels), _label_condition(leaf))
    if isinstance(leaf, Term):
        raise FilterError(
            f'{leaf.name!r} is not a comparison. Compare a field, for example display_name="{leaf.name}"'
        )
    field = snake_case(leaf.name)
    if field in additional:
        return JobFilter(additional[field](leaf))
    if field == _STATE:
        return _state_filter(leaf, states)
    if text_of := _TEXTS.get(field):
        matches = text_test(leaf)
        return JobFilter(lambda job: matches(text_of(job)), _text_condition(leaf, _COLUMNS[field]))
    if moment_of := _MOMENTS.get(field):
        # Times are compared in microseconds, as in responses. Otherwise a job would be newer than the time in
        # its response.
        is_matching_time = time_test(leaf)
        span = span_of(leaf) if field == "create_time" else None
        where = Created(span[0], min(span[1] + 998, LAST_TIME)) if span else None
        return JobFilter(lambda job: is_matching_time(moment_of(job) // 1_000 * 1_000), where)
    field_names = ", ".join((*_TEXTS, _STATE, *_MOMENTS, *additional))
    raise FilterError(f"jobs cannot be filtered by {leaf.name!r}. Use {field_names} or labels.KEY")


def _state_filter(leaf: Comparison, states: States) -> JobFilter:
    if leaf.value not in states:
        near = [state for state in states if state.endswith(f"_{leaf.value.upper()}")]
        hint = f". Did you mean {near[0]}?" if near else ""
        raise FilterError(f"{leaf.value!r} is not a state. Use one of {', '.join(states)}{hint}")
    state = states[leaf.value]
    if leaf.operator in (Operator.EQUAL, Operator.HAS):
        where = Either(()) if state is None else Equal(Column.STATE, state.value)
        return JobFilter(lambda job: job.state is state, where)
    if leaf.operator is Operator.NOT_EQUAL:
        return JobFilter(lambda job: job.state is not state)
    raise FilterError(
        f"the field state has no order and cannot be compared with {leaf.operator}. Use = or !="
    )


def _label_condition(leaf: Comparison | Term) -> Condition | None:
    key = ".".join(leaf.path[1:])
    if isinstance(leaf, Term):
        return HasLabel(key)
    if not key:
        return HasLabel(leaf.value)
    match leaf.operator:
        case Operator.EQUAL:
            return HasLabel(key, leaf.value)
        case Operator.HAS:
            return HasLabel(key)
        case _:
            return None


def _text_condition(leaf: Comparison, column: Column) -> Condition | None:
    if leaf.operator is Operator.EQUAL:
        return Equal(column, leaf.value)
    if leaf.operator is Operator.HAS and column is Column.DISPLAY_NAME:
        # Search the store for the longest part between the asterisks. Every text that matches the pattern
        # contains this part, and the longest part excludes the most jobs.
        return Contains(max(leaf.value.split("*"), key=len))
    return None


def _flat_tests(where: Condition) -> Iterator[Condition]:
    match where:
        case Every(conditions) | Either(conditions):
            for condition in conditions:
                yield from _flat_tests(condition)
        case _:
            yield where
