"""What the job lists can be filtered by, for both training APIs (facts/resources#ml, facts/resources#vertex).

`aiplatform` v1: display_name, state, create_time, update_time, labels. `ml` v1: the same in its spelling, and
jobId. Lists of tuning jobs and pipelines take the same; pipelines more. Either spelling of a field name is
taken.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Final, assert_never

from trainshed.api.filters.matching import compile_filter, label_test, moment_test, text_test
from trainshed.api.filters.syntax import (
    Comparison,
    FilterError,
    Term,
)
from trainshed.core.lifecycle.states import JobState, PipelineState
from trainshed.core.operators import Operator
from trainshed.core.works import Work

JobTest = Callable[[Work], bool]

States = Mapping[str, JobState | None] | Mapping[str, PipelineState | None]
"""The states as an API spells them (None: nothing here is ever in it)."""

Further = Mapping[str, Callable[[Comparison], JobTest]]
"""What else a list can be filtered by: how a comparison of the field is compiled, by name."""

_NOTHING: Final[Further] = {}


class _Field(enum.Enum):
    DISPLAY_NAME = enum.auto()
    JOB_ID = enum.auto()
    STATE = enum.auto()
    CREATE_TIME = enum.auto()
    UPDATE_TIME = enum.auto()
    START_TIME = enum.auto()
    END_TIME = enum.auto()


_FIELDS: Final[Mapping[str, _Field]] = {
    "display_name": _Field.DISPLAY_NAME,
    "displayName": _Field.DISPLAY_NAME,
    "job_id": _Field.JOB_ID,
    "jobId": _Field.JOB_ID,
    "state": _Field.STATE,
    "create_time": _Field.CREATE_TIME,
    "createTime": _Field.CREATE_TIME,
    "update_time": _Field.UPDATE_TIME,
    "updateTime": _Field.UPDATE_TIME,
    "start_time": _Field.START_TIME,
    "startTime": _Field.START_TIME,
    "end_time": _Field.END_TIME,
    "endTime": _Field.END_TIME,
}


def compile_job_filter(text: str, states: States, further: Further = _NOTHING) -> JobTest:
    """The predicate of a list filter of jobs, tuning jobs or pipelines.

    Raises InvalidRequest on `filter` for a text that is no filter or names what cannot be filtered by.
    """
    return compile_filter(text, lambda leaf: _leaf(leaf, states, further))


def _leaf(leaf: Comparison | Term, states: States, further: Further) -> JobTest:
    if leaf.path[0] == "labels":
        labelled = label_test(leaf)
        return lambda job: labelled(job.labels)
    if isinstance(leaf, Term):
        raise FilterError(
            f'{leaf.name!r} stands alone; compare a field, for example display_name="{leaf.name}"'
        )
    if leaf.name in further:
        return further[leaf.name](leaf)
    field = _FIELDS.get(leaf.name)
    if field is None:
        known = ", ".join(name for name in (*_FIELDS, *further) if name == name.lower())
        raise FilterError(f"jobs cannot be filtered by {leaf.name!r}; use {known} or labels.KEY")
    return _comparison(field, leaf, states)


def _comparison(field: _Field, leaf: Comparison, states: States) -> JobTest:
    match field:
        case _Field.DISPLAY_NAME:
            named = text_test(leaf)
            return lambda job: named(job.display_name)
        case _Field.JOB_ID:
            identified = text_test(leaf)
            return lambda job: identified(job.name.job_id)
        case _Field.STATE:
            return _state(leaf, states)
        case _Field.CREATE_TIME:
            created = moment_test(leaf)
            return lambda job: created(job.created)
        case _Field.UPDATE_TIME:
            updated = moment_test(leaf)
            return lambda job: updated(job.updated)
        case _Field.START_TIME:
            started = moment_test(leaf)
            return lambda job: started(job.started)
        case _Field.END_TIME:
            ended = moment_test(leaf)
            return lambda job: ended(job.ended)
        case _:
            assert_never(field)


def _state(leaf: Comparison, states: States) -> JobTest:
    if leaf.value not in states:
        raise FilterError(f"{leaf.value!r} is no state; the states are: {', '.join(states)}")
    wanted = states[leaf.value]
    if leaf.operator in (Operator.EQUAL, Operator.HAS):
        return lambda job: job.state is wanted
    if leaf.operator is Operator.NOT_EQUAL:
        return lambda job: job.state is not wanted
    raise FilterError(f"states have no order, so {leaf.operator} cannot compare them; use = or !=")
