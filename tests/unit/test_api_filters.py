"""List filters: grammar, comparison of values, and filterable job fields (facts/resources#ml,
facts/resources#vertex)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.jobs import job
from trainshed.api.aiplatform_v1.views import STATES
from trainshed.api.filters.jobs import compile_job_filter
from trainshed.api.filters.matching import LAST_TIME, parse_time
from trainshed.api.filters.syntax import And, Comparison, FilterError, Not, Or, Term, parse_filter
from trainshed.api.ml_v1 import STATES as ML_STATES
from trainshed.core.errors import InvalidRequest
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, JobName
from trainshed.core.patterns import Operator

A, B, C = (Comparison((name,), Operator.EQUAL, "1") for name in "abc")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", None),
        ("  ", None),
        ("a=1", A),
        ("a = 1", A),
        ('a="1"', A),
        ("a='1'", A),
        ("(a=1)", A),
        ("a=1 AND b=1", And((A, B))),
        ("a=1 b=1", And((A, B))),
        ("a=1 OR b=1", Or((A, B))),
        ("a=1 AND b=1 OR c=1", And((A, Or((B, C))))),
        ("(a=1 AND b=1) OR c=1", Or((And((A, B)), C))),
        ("NOT a=1", Not(A)),
        ("-a=1", Not(A)),
        ("NOT (a=1 b=1)", Not(And((A, B)))),
        ("NOT NOT a=1", A),
        ("a=(1 OR 2)", Or((A, Comparison(("a",), Operator.EQUAL, "2")))),
        ("a.b.c!=x", Comparison(("a", "b", "c"), Operator.NOT_EQUAL, "x")),
        ('labels."k.x/y">=2', Comparison(("labels", "k.x/y"), Operator.GREATER_EQUAL, "2")),
        ("t<2026-01-01T00:00:00Z", Comparison(("t",), Operator.LESS, "2026-01-01T00:00:00Z")),
        ("labels.k:*", Comparison(("labels", "k"), Operator.HAS, "*")),
        ("labels.k", Term(("labels", "k"))),
        (r'a="q\"x\\"', Comparison(("a",), Operator.EQUAL, 'q"x\\')),
        ("ORDER=1", Comparison(("ORDER",), Operator.EQUAL, "1")),
    ],
)
def test_filter_text_is_parsed_into_the_expected_tree(text: str, tree: object) -> None:
    assert parse_filter(text) == tree


@pytest.mark.parametrize(
    "text", ["a=", "=1", "(a=1", "a=1)", 'a="1', "a=1 AND", "OR a=1", "a=~x", "a=()", "NOT", "(" * 60 + "a"]
)
def test_error_of_an_invalid_filter_contains_the_position_of_the_fault(text: str) -> None:
    with pytest.raises(FilterError, match=r"character \d+|nested deeper"):
        parse_filter(text)


@given(st.text(max_size=40))
def test_filter_parser_never_crashes(text: str) -> None:
    try:
        parse_filter(text)
    except FilterError:
        return


@given(st.text())
def test_string_filter_value_of_any_characters_is_accepted_in_quotes(value: str) -> None:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_filter(f'a="{quoted}"') == Comparison(("a",), Operator.EQUAL, value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1),
        ("1970-01-01T00:00:01.5z", 1.5),
        ("1970-01-01T01:00:01+01:00", 1),
        ("1970-01-01T01:00:01+0100", 1),
        ("1970-01-02", 86_400),
        ("1970-01-01T00:00:01", 1),
        ("1969-12-31T23:59:59.25Z", -0.75),
        ("0001-01-01T00:00:00+01:00", -62_135_600_400),
    ],
)
def test_filter_times_are_parsed_to_nanoseconds(text: str, seconds: float) -> None:
    assert parse_time(text) == max(-LAST_TIME, seconds * 10**9)


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026-01-01T25:00:00Z", "17"])
def test_invalid_filter_time_is_rejected(text: str) -> None:
    with pytest.raises(FilterError, match="not a time"):
        parse_time(text)


CREATED = "1970-01-01T00:16:40Z"
"""Creation time of the jobs in `tests.unit.jobs`."""


def sample() -> Job:
    labels, made = (("team", "vision"), ("tier", "")), job()
    # The API shows microseconds, so it drops these nanoseconds.
    shown = replace(made, created=made.created + 999)
    return replace(shown, display_name="my_job_1", labels=labels, state=JobState.RUNNING)


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ('display_name="my_job_1"', True),
        ("displayName=my_job", False),
        ('display_name:"my_job_*"', True),
        ('display_name:"job_1"', True),
        ('display_name:"*_2"', False),
        ('NOT display_name="my_job_1"', False),
        ('display_name!="other"', True),
        ('state="JOB_STATE_RUNNING"', True),
        ("state!=JOB_STATE_RUNNING", False),
        ("state=JOB_STATE_PAUSED", False),
        (f'create_time="{CREATED}"', True),
        (f'create_time>"{CREATED}"', False),
        (f'create_time>="{CREATED}"', True),
        (f'create_time<"{CREATED}"', False),
        ('create_time!="2020-01-01T00:00:00Z"', True),
        ('end_time<"2030-01-01T00:00:00Z"', False),
        ("create_time:* AND NOT endTime:*", True),
        ("labels.team=vision", True),
        ("labels.team=sound", False),
        ("labels.team:*", True),
        ("labels.other:*", False),
        ("labels.team", True),
        ("labels.tier:*", True),
        ("labels:team", True),
        ("labels.team!=sound", True),
        ("labels.other!=sound", True),
        ('state="JOB_STATE_FAILED" OR display_name:"my*"', True),
        ('state="JOB_STATE_RUNNING" AND display_name:"your*"', False),
    ],
)
def test_vertex_job_filter_selects_the_matching_jobs(text: str, passes: bool) -> None:
    assert compile_job_filter(text, STATES).passes(sample()) is passes


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("jobId:census*", True),
        ("jobId:rnn* AND state:FAILED", False),
        ("jobId:census* AND state:FAILED", True),
        ("state:FAILED jobId=census_7", True),
        ("NOT state=FAILED", False),
        ('createTime>"2020-01-01T00:00:00Z"', False),
    ],
)
def test_ml_job_filter_selects_the_matching_jobs(text: str, passes: bool) -> None:
    failed = replace(job(api=Api.ML), name=JobName(Api.ML, "p", "", "census_7"), state=JobState.FAILED)
    assert compile_job_filter(text, ML_STATES).passes(failed) is passes


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("colour=red", "colour"),
        ("vision", "is not a comparison"),
        ("state=RUNNING", "JOB_STATE_RUNNING"),
        ("state>JOB_STATE_RUNNING", "no order"),
        ("display_name<x", "Use =, != or :"),
        ("create_time>now", "not a time"),
        ("labels=x", "labels.KEY"),
    ],
)
def test_job_filter_with_an_impossible_comparison_is_rejected(text: str, part: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compile_job_filter(text, STATES)
    (violation,) = refused.value.violations
    assert violation.field == "filter"
    assert part in violation.description


def test_filter_longer_than_the_limit_is_rejected() -> None:
    with pytest.raises(FilterError, match="longer"):
        parse_filter("a" * 20_001)
