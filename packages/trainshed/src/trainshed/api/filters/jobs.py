"""What lists of jobs can be filtered by, in both training APIs (facts/resources#ml, facts/resources#vertex).

`aiplatform` v1: display_name, state, create_time, update_time, labels. `ml` v1: the same in its spelling, and
jobId. Lists of tuning jobs and pipelines accept the same fields, those of pipelines some more. A field's name
is accepted in either spelling.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from trainshed.api.filters.matching import (
    LAST_MOMENT,
    compile_tree,
    everything,
    implied,
    label_test,
    moment_test,
    span_of,
    text_test,
)
from trainshed.api.filters.syntax import Comparison, FilterError, Term, parse_filter
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.lifecycle.states import JobState
from trainshed.core.patterns import Operator
from trainshed.core.requests import snake_case
from trainshed.core.works import Work
from trainshed.store.port import (
    Column,
    Condition,
    Contains,
    Created,
    Either,
    Equal,
    Every,
    Labelled,
)

JobTest = Callable[[Work], bool]

States = Mapping[str, JobState | None]
"""States by their names in an API (None: nothing here is ever in it)."""

Further = Mapping[str, Callable[[Comparison], JobTest]]
"""Further fields that a list can be filtered by: for each name, the function that compiles a comparison."""

NO_FURTHER: Final[Further] = {}
_MOST_TESTS: Final = 10
"""Most tests of a condition, since the store applies each of them to every work that it examines. For a
longer filter the store gets no condition."""


class JobFilter(Struct, frozen=True):
    """The filter of a list of works."""

    passes: JobTest = everything
    #: Holds for every work that passes, and perhaps for others; the store can evaluate it on its columns.
    #: None = there is no such condition.
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


def compile_job_filter(text: str, states: States, further: Further = NO_FURTHER) -> JobFilter:
    """Compile a list filter of jobs, tuning jobs or pipelines.

    Raises InvalidRequest on `filter` for a text that is no filter or names an unknown field.
    """
    try:
        tree = parse_filter(text)
        passes = compile_tree(tree, lambda leaf: _leaf(leaf, states, further).passes)
        where = implied(
            tree,
            lambda leaf: _leaf(leaf, states, further).where,
            lambda conditions: Every(tuple(conditions)),
            lambda conditions: Either(tuple(conditions)),
        )
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None
    is_short = where is not None and sum(1 for _ in _tests(where)) <= _MOST_TESTS
    return JobFilter(passes, where if is_short else None)


def _leaf(leaf: Comparison | Term, states: States, further: Further) -> JobFilter:
    if leaf.path[0] == "labels":
        labelled = label_test(leaf)
        return JobFilter(lambda job: labelled(job.labels), _labelled(leaf))
    if isinstance(leaf, Term):
        raise FilterError(
            f'{leaf.name!r} is not a comparison; compare a field, for example display_name="{leaf.name}"'
        )
    field = snake_case(leaf.name)
    if field in further:
        return JobFilter(further[field](leaf))
    if field == _STATE:
        return _state(leaf, states)
    if text_of := _TEXTS.get(field):
        matches = text_test(leaf)
        return JobFilter(lambda job: matches(text_of(job)), _named(leaf, _COLUMNS[field]))
    if moment_of := _MOMENTS.get(field):
        # To the microsecond, as it is shown: else a job would be newer than itself.
        happened = moment_test(leaf)
        span = span_of(leaf) if field == "create_time" else None
        where = Created(span[0], min(span[1] + 998, LAST_MOMENT)) if span else None
        return JobFilter(lambda job: happened(moment_of(job) // 1_000 * 1_000), where)
    known = ", ".join((*_TEXTS, _STATE, *_MOMENTS, *further))
    raise FilterError(f"jobs cannot be filtered by {leaf.name!r}; use {known} or labels.KEY")


def _state(leaf: Comparison, states: States) -> JobFilter:
    if leaf.value not in states:
        near = [state for state in states if state.endswith(f"_{leaf.value.upper()}")]
        hint = f". Did you mean {near[0]}?" if near else ""
        raise FilterError(f"{leaf.value!r} is no state; the states are: {', '.join(states)}{hint}")
    wanted = states[leaf.value]
    if leaf.operator in (Operator.EQUAL, Operator.HAS):
        where = Either(()) if wanted is None else Equal(Column.STATE, wanted.value)
        return JobFilter(lambda job: job.state is wanted, where)
    if leaf.operator is Operator.NOT_EQUAL:
        return JobFilter(lambda job: job.state is not wanted)
    raise FilterError(f"states have no order, so {leaf.operator} cannot compare them; use = or !=")


def _labelled(leaf: Comparison | Term) -> Condition | None:
    key = ".".join(leaf.path[1:])
    if isinstance(leaf, Term):
        return Labelled(key)
    if not key:
        return Labelled(leaf.value)
    match leaf.operator:
        case Operator.EQUAL:
            return Labelled(key, leaf.value)
        case Operator.HAS:
            return Labelled(key)
        case _:
            return None


def _named(leaf: Comparison, column: Column) -> Condition | None:
    if leaf.operator is Operator.EQUAL:
        return Equal(column, leaf.value)
    if leaf.operator is Operator.HAS and column is Column.DISPLAY_NAME:
        # A text that matches a pattern contains what stands between its asterisks.
        return Contains(max(leaf.value.split("*"), key=len))
    return None


def _tests(where: Condition) -> Iterator[Condition]:
    match where:
        case Every(conditions) | Either(conditions):
            for condition in conditions:
                yield from _tests(condition)
        case _:
            yield where
