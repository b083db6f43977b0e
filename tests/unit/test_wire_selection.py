"""The system parameter `fields` (docs/spec/clients.md#partial-answers)."""

from typing import Any

import pytest

from trainshed.wire import plans, pool
from trainshed.wire.selection import parse, select
from trainshed.wire.status import WireError

JOBS = plans.plan_for(pool.message_class("google.cloud.aiplatform.v1.ListCustomJobsResponse"))
DEEP = "customJobs/labels" + "/a" * 2_000
ANSWER: dict[str, Any] = {
    "customJobs": [
        {
            "name": "n1",
            "displayName": "a",
            "jobSpec": {
                "workerPoolSpecs": [
                    {"replicaCount": "1", "machineSpec": {"machineType": "m", "tpuTopology": "t"}}
                ],
                "scheduling": {"timeout": "7s"},
            },
            "labels": {"team": "x", "owner": "y"},
        },
        {"name": "n2", "displayName": "b"},
    ],
    "nextPageToken": "t",
}


@pytest.mark.parametrize(
    ("fields", "selected"),
    [
        ("nextPageToken", {"nextPageToken": "t"}),
        ("customJobs/name", {"customJobs": [{"name": "n1"}, {"name": "n2"}]}),
        ("customJobs.name", {"customJobs": [{"name": "n1"}, {"name": "n2"}]}),
        ("customJobs(name)", {"customJobs": [{"name": "n1"}, {"name": "n2"}]}),
        ("custom_jobs(display_name)", {"customJobs": [{"displayName": "a"}, {"displayName": "b"}]}),
        (
            " next_page_token , customJobs ( name ) ",
            {"customJobs": [{"name": "n1"}, {"name": "n2"}], "nextPageToken": "t"},
        ),
        (
            "customJobs(jobSpec/workerPoolSpecs(machineSpec/machineType),labels/team)",
            {
                "customJobs": [
                    {
                        "jobSpec": {"workerPoolSpecs": [{"machineSpec": {"machineType": "m"}}]},
                        "labels": {"team": "x"},
                    },
                    {},
                ]
            },
        ),
        (
            "customJobs/jobSpec/*/timeout",
            {
                "customJobs": [
                    {"jobSpec": {"workerPoolSpecs": [{}], "scheduling": {"timeout": "7s"}}},
                    {},
                ]
            },
        ),
        ("customJobs/name,customJobs,customJobs/labels", {"customJobs": ANSWER["customJobs"]}),
        ("*", ANSWER),
    ],
)
def test_what_is_wanted_is_left(fields: str, selected: dict[str, Any]) -> None:
    assert select(ANSWER, parse(fields, JOBS)) == selected


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ("nope", "nope"),
        ("customJobs(name,nope)", "customJobs.nope"),
        ("customJobs/name/more", "customJobs.name.more"),
        ("customJobs(name", "customJobs(name"),
        ("customJobs(name))", "customJobs(name))"),
        ("customJobs,", "customJobs,"),
        ("/", "/"),
        ("()", "()"),
        ("customJobs" + "(jobSpec" * 60, "customJobs.jobSpec.jobSpec"),
        (DEEP, DEEP),
    ],
)
def test_what_cannot_be_is_refused(fields: str, path: str) -> None:
    with pytest.raises(WireError) as refused:
        parse(fields, JOBS)
    assert refused.value.violations[0].field == path
    assert f"for path '{path}'" in refused.value.violations[0].description
