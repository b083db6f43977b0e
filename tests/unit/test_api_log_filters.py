"""Log filters: filters that gcloud sends, the time range and jobs that they select, and matching entries."""

import pytest
from msgspec.structs import replace

from trainshed.api.filters.matching import LAST_TIME
from trainshed.api.filters.syntax import FilterError
from trainshed.api.logging_v2.entry import Entry, task_source
from trainshed.api.logging_v2.filters import compile_log_filter
from trainshed.core.names import Api, JobName
from trainshed.store.logs.lines import Severity

SECOND = 10**9
ENTRY = Entry(
    task_source(JobName(Api.VERTEX, "p1", "us-central1", "42"), "workerpool0-0"),
    100 * SECOND,
    "id5",
    Severity.WARNING,
    "Loss is 0.5",
    {"loss": 0.5, "step": {"n": 3}, "done": False, "message": "Loss is 0.5"},
)


def test_log_filter_of_a_resumed_client_starts_after_the_last_entry_it_received() -> None:
    """spec/clients#log-pages: a client that resumes filters by the time and the ID of its last entry."""
    compiled = compile_log_filter(
        '((timestamp="1970-01-01T00:01:40Z" AND insertId>"id4") OR timestamp>"1970-01-01T00:01:40Z")'
    )
    assert (compiled.start, compiled.end) == (100 * SECOND, LAST_TIME)
    assert compiled.passes(ENTRY)
    assert not compiled.passes(replace(ENTRY, insert_id="id4"))
    assert compiled.passes(replace(ENTRY, insert_id="id4", time=100 * SECOND + 1))


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ("severity>=WARNING", True),
        ("severity>warning", False),
        ("severity=(ERROR OR WARNING)", True),
        ('textPayload:"loss is"', True),
        ("loss", True),
        ('"not there"', False),
        ('-"not there"', True),
        ('jsonPayload.message:"Loss"', True),
        ("jsonPayload.loss<1", True),
        ("jsonPayload.loss>=0.5", True),
        ("jsonPayload.loss>0.5", False),
        ("jsonPayload.step.n=3", True),
        ("jsonPayload.done=false", True),
        ("jsonPayload.absent:*", False),
        ("jsonPayload.absent!=1", True),
        ('labels."ml.googleapis.com/task_name"="workerpool0-0"', True),
        ("labels.ml.googleapis.com/task_name=WORKERPOOL0-0", True),
        ("resource.labels.project_id=p1", True),
        ('resource.type="gce_instance"', False),
        ('logName="projects/p1/logs/ml.googleapis.com%2Fworkerpool0-0"', True),
        ("NOT severity=WARNING", False),
    ],
)
def test_log_filter_selects_the_matching_entries(text: str, passes: bool) -> None:
    assert compile_log_filter(text).passes(ENTRY) is passes


def test_and_in_a_log_filter_intersects_job_ids_and_or_unites_job_ids() -> None:
    either = "(resource.labels.job_id=a OR resource.labels.job_id=b)"
    assert compile_log_filter(either).job_ids == {"a", "b"}
    assert compile_log_filter(f"{either} AND resource.labels.job_id=b").job_ids == {"b"}
    assert compile_log_filter(f"{either} OR severity=ERROR").job_ids is None
    assert compile_log_filter("NOT resource.labels.job_id=a").job_ids is None


@pytest.mark.parametrize(
    "text",
    ["colour=red", "severity>=LOUD", "timestamp>soon", "jsonPayload.loss>much", "textPayload<x", "a=~b"],
)
def test_log_filter_with_impossible_comparison_is_rejected(text: str) -> None:
    with pytest.raises(FilterError):
        compile_log_filter(text)
