"""Logging v2 `entries:list` over real log files and timelines (facts/packaging#endpoints,
spec/clients#log-pages, spec/logs#lines)."""

import json
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, SECOND, START, Answer, ApiService
from tests.contract.api.violations import fields
from tests.people import add_user
from tests.unit.jobs import exit_record
from tests.unit.specs_requests import custom_job, ml_job, pool
from trainshed.api.logging_v2 import entries as entries_module
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import SERVICE_TASK, ReplicaId

PRIMARY = ReplicaId(0, 0)
ALL_TIME = 'timestamp>="1970-01-01T01:00:00.000000000Z"'


async def entries(service: ApiService, filter_: str = "", **more: Any) -> Answer:
    body = {"resourceNames": ["projects/p1"], "filter": filter_, "orderBy": "timestamp asc"} | more
    return await service.call("POST", "/v2/entries:list", body)


async def two_replicas(service: ApiService, *, over: bool = True) -> None:
    """Create job 1000 with lines of two replicas, some with equal timestamps. If `over`, end the
    job and set the clock after its end."""
    await service.result("POST", f"{LOCATION}/customJobs", custom_job(pool(), pool()))
    service.write_log(1000, "workerpool0-0", *((START + n * SECOND, f"a{n}") for n in range(1, 9, 2)))
    service.write_log(1000, "workerpool1-0", *((START + n * SECOND, f"b{n}") for n in range(1, 9)))
    service.clock = START + 10 * SECOND
    if over:
        await end(service)
    service.clock = START + 60 * SECOND


async def end(service: ApiService) -> None:
    """Run job 1000 until it succeeds."""
    both = (PRIMARY, ReplicaId(1, 0))
    ends = [ReplicaExited(1, replica, 1, exit_record(0, ended=service.clock)) for replica in both]
    await service.run(f"{LOCATION}/customJobs/1000"[4:], *ends, at=START)


def texts(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [entry["textPayload"] for entry in answer.json.get("entries", [])]


async def test_time_limit_of_a_log_filter_applies_only_while_the_job_can_write_lines(
    service: ApiService,
) -> None:
    """spec/clients#stream-logs: gcloud requests lines older than 5 s and stops at the end of a job
    without output."""

    def until(moment: int) -> str:
        stamp = datetime.fromtimestamp(moment // SECOND, UTC).isoformat()
        return f'resource.labels.job_id="1000" AND {ALL_TIME} AND timestamp<"{stamp}"'

    await two_replicas(service, over=False)
    service.clock = START + 10 * SECOND
    running = texts(await entries(service, until(service.clock - 5 * SECOND)))
    assert "b4" in running
    assert "b5" not in running
    await end(service)
    ended = texts(await entries(service, until(service.clock - 5 * SECOND)))
    assert "b8" in ended
    assert ended[-1] == "Job completed successfully."
    service.clock = START + 60 * SECOND
    past = texts(await entries(service, until(START + 5 * SECOND)))
    assert [text for text in past if text[0] in "ab"] == running[-6:]


async def test_stream_logs_filter_returns_all_lines_in_order(service: ApiService) -> None:
    await two_replicas(service)
    answer = await entries(
        service,
        f'resource.type="ml_job" AND resource.labels.job_id="1000" AND {ALL_TIME} AND '
        'timestamp<"2025-10-09T09:00:00.000000+00:00"',
        pageSize=1000,
    )
    listed = answer.json["entries"]
    places = [(entry["timestamp"], entry["insertId"]) for entry in listed]
    assert all(before < after for before, after in pairwise(places))
    assert all(len(timestamp) == len("2025-10-09T08:53:21.000000000Z") for timestamp, _ in places)
    assert [t for t in texts(answer) if t[0] in "ab"] == [
        *("a1", "b1", "b2", "a3", "b3", "b4", "a5", "b5", "b6", "a7", "b7", "b8")
    ]
    assert texts(answer)[0] == "Waiting for job to be provisioned."
    assert texts(answer)[-1] == "Job completed successfully."
    assert next(e for e in listed if e["textPayload"] == "a1")["resource"] == {
        "type": "ml_job",
        "labels": {"job_id": "1000", "project_id": "p1", "task_name": "workerpool0-0"},
    }


async def test_filter_with_impossible_job_number_returns_no_lines(service: ApiService) -> None:
    await two_replicas(service)
    answer = await entries(service, f'resource.labels.job_id="{"9" * 5000}"')
    assert (answer.status, texts(answer)) == (200, [])


async def test_log_page_is_limited_in_bytes(service: ApiService, monkeypatch: pytest.MonkeyPatch) -> None:
    await two_replicas(service)
    monkeypatch.setattr(entries_module, "_MAX_PAGE_LENGTH", 100)
    service.write_log(1000, "workerpool0-0", *((START + n * SECOND, "x" * 60) for n in range(1, 9)))
    first = await entries(service, '"xxx"', pageSize=1000)
    assert [len(text) for text in texts(first)] == [60]
    second = await entries(service, '"xxx"', pageSize=1000, pageToken=first.json["nextPageToken"])
    assert [len(text) for text in texts(second)] == [60]


async def test_unknown_project_number_returns_not_found(service: ApiService) -> None:
    """An empty response would indicate that the project exists."""
    for filter_ in ("", AUDIT):
        answer = await entries(service, filter_, resourceNames=["projects/123456789012"])
        assert answer.status == 404
        assert "123456789012" in answer.error["message"]
    assert (await service.call("GET", "/trainshed/v1/audit?project=123456789012")).status == 404


@pytest.mark.parametrize("order", ["timestamp asc", "timestamp desc"])
@pytest.mark.parametrize("size", [1, 3, 5])
async def test_log_pages_contain_each_entry_once_in_ascending_and_descending_order(
    service: ApiService, order: str, size: int
) -> None:
    await two_replicas(service)
    whole = (await entries(service, pageSize=1000, orderBy=order)).json["entries"]
    assert len(whole) >= 12
    listed: list[dict[str, Any]] = []
    token = ""
    while True:
        page = (await entries(service, pageSize=size, orderBy=order, pageToken=token)).json
        assert len(page["entries"]) <= size
        listed += page["entries"]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert listed == whole
    stamps = [entry["timestamp"] for entry in listed]
    assert stamps == sorted(stamps, reverse=order.endswith("desc"))


async def test_runtime_notice_appears_once_in_each_log_view(service: ApiService) -> None:
    """The notice is the first line of the job's log, as a line of the service. Other readers find a
    second copy of it among the stored lines, which is filtered out here."""
    await service.result("POST", "/v1/projects/p1/jobs", ml_job())
    notice = "asked for '2.6' on '3.7'"
    service.write_log(1000, SERVICE_TASK, (START + SECOND, notice), stream="b")
    service.write_log(1000, "workerpool0-0", (START + 2 * SECOND, "hello"))
    service.write_log(1000, "workerpool0-0", (START + 3 * SECOND, "stalled"), stream="b")
    service.clock = START + 60 * SECOND
    job = 'resource.labels.job_id="job_1"'
    everything = texts(await entries(service, job))
    assert everything[0] == notice
    assert everything.count(notice) == 1
    assert everything[-2:] == ["hello", "stalled"]
    for label in ("resource.labels.task_name", 'labels."ml.googleapis.com/task_name"'):
        service_lines = await entries(service, f'{job} AND {label}="service"')
        assert texts(service_lines)[0] == notice
        alone = (await entries(service, f'{job} AND {label}="master-replica-0"')).json["entries"]
        assert [(entry["textPayload"], entry["severity"]) for entry in alone] == [
            ("hello", "INFO"),
            ("stalled", "NOTICE"),
        ]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"filter": "colour=red"}, "filter"),
        ({"orderBy": "severity"}, "order_by"),
        ({"resourceNames": []}, "resource_names"),
        ({"resourceNames": ["folders/1"]}, "resource_names"),
        ({"pageSize": -1}, "page_size"),
        ({"pageToken": "x"}, "page_token"),
    ],
)
async def test_invalid_log_request_error_names_the_wrong_field(
    service: ApiService, more: dict[str, Any], field: str
) -> None:
    body = {"resourceNames": ["projects/p1"]} | more
    assert fields(await service.call("POST", "/v2/entries:list", body)) == {field}


AUDIT = "logName:cloudaudit"


async def test_audit_log_entries_are_listed_for_permitted_callers_in_pages(service: ApiService) -> None:
    for _ in range(3):
        service.clock += SECOND
        await service.call("POST", f"{LOCATION}/customJobs", custom_job(pool()))
    await service.call("POST", f"{LOCATION.replace('p1', 'p2')}/customJobs", custom_job(pool()))
    first = (await entries(service, AUDIT, orderBy="timestamp desc", pageSize=2)).json
    more = {"orderBy": "timestamp desc", "pageToken": first["nextPageToken"], "pageSize": 2}
    rest = (await entries(service, AUDIT, **more)).json["entries"]
    names = [entry["protoPayload"]["resourceName"] for entry in (*first["entries"], *rest)]
    assert [name.rpartition("/")[0] for name in names] == [f"{LOCATION}/customJobs"[4:]] * 3
    entry = rest[0]
    assert entry["logName"] == "projects/p1/logs/cloudaudit.googleapis.com%2Factivity"
    assert entry["protoPayload"]["@type"] == "type.googleapis.com/google.cloud.audit.AuditLog"
    assert entry["protoPayload"]["serviceName"] == "aiplatform.googleapis.com"
    assert (entry["severity"], entry["protoPayload"]["status"]) == ("NOTICE", {})
    who = 'protoPayload.authenticationInfo.principalEmail="{}"'
    for email, count in (("owner@trainshed.local", 3), ("ana@corp.example", 0)):
        answer = await entries(service, f"{AUDIT} AND {who.format(email)}")
        assert len(answer.json.get("entries", [])) == count
    lines = (await entries(service)).json["entries"]
    assert lines and not any("protoPayload" in line for line in lines)
    ana = add_user(service.tokens, "ana@corp.example", "roles/aiplatform.user", "p1")
    body = {"resourceNames": ["projects/p1"], "filter": AUDIT}
    refused = await service.call("POST", "/v2/entries:list", body, token=ana)
    assert refused.status == 403 and "trainshed.audit.list" in refused.error["message"]
    await service.call("POST", "/v3/projects", {"projectId": "more"}, token=ana)
    await service.call("DELETE", "/v3/projects/p1", token=ana)
    [denied] = (await entries(service, f"{AUDIT} AND protoPayload.status.code=7")).json["entries"]
    assert denied["protoPayload"]["status"] == {"code": 7, "message": "PERMISSION_DENIED"}
    assert denied["severity"] == "ERROR"
    assert denied["protoPayload"]["serviceName"] == "cloudresourcemanager.googleapis.com"


@pytest.mark.parametrize(
    ("filter_", "is_of_audit"),
    [
        (f"NOT {AUDIT}", False),
        (f"severity>=DEFAULT -{AUDIT}", False),
        ('textPayload:"cloudaudit.googleapis.com"', False),
        (f"{AUDIT} OR severity>=DEFAULT", False),
        ('log_name="projects/p1/logs/CloudAudit.googleapis.com%2Factivity"', True),
        (f'logName:("cloudaudit.googleapis.com" OR "x/cloudaudit.googleapis.com") {ALL_TIME}', True),
    ],
)
async def test_only_a_filter_for_the_audit_log_returns_audit_entries(
    service: ApiService, filter_: str, is_of_audit: bool
) -> None:
    await two_replicas(service)
    service.write_log(1000, "workerpool0-0", (START + 9 * SECOND, "cloudaudit.googleapis.com"))
    shown = (await entries(service, filter_)).json["entries"]
    assert {"protoPayload" in entry for entry in shown} == {is_of_audit}


async def test_special_fields_of_structured_log_lines_are_converted(service: ApiService) -> None:
    """facts/packaging#structured-logs."""
    await service.result("POST", f"{LOCATION}/customJobs", custom_job(pool(), pool()))
    google = "logging.googleapis.com/"
    lines = [
        {
            "message": "one",
            f"{google}labels": {"run": "7", "ml.googleapis.com/job_id": "another"},
            f"{google}trace": "projects/p/traces/1",
            f"{google}insertId": "mine",
            "httpRequest": {"status": 404},
        },
        {"message": {"nested": {"a": 1}}, "x": 2},
        {"message": "three", f"{google}sourceLocation": {"file": "a.py", "line": "12"}, "y": 3},
    ]
    texts_ = [json.dumps(line) for line in lines]
    stamped = ((START + n * SECOND, text) for n, text in enumerate(texts_, 1))
    service.write_log(1000, "workerpool0-0", *stamped)
    service.clock = START + 60 * SECOND
    shown = 'resource.labels.task_name="workerpool0-0"'
    labelled, nested, located = (await entries(service, shown)).json["entries"]
    assert labelled["textPayload"] == "one"
    assert (labelled["labels"]["run"], labelled["labels"]["ml.googleapis.com/job_id"]) == ("7", "1000")
    assert (labelled["trace"], labelled["insertId"]) == ("projects/p/traces/1", "mine")
    assert labelled["httpRequest"] == {"status": 404}
    assert nested["jsonPayload"] == {"message": {"nested": {"a": 1}}, "x": 2}
    assert located["sourceLocation"] == {"file": "a.py", "line": "12"}
    assert located["jsonPayload"] == {"message": "three", "y": 3}
    for filter_, expected in {
        'labels.run="7"': ["mine"],
        'trace="projects/p/traces/1"': ["mine"],
        "httpRequest.status>=400": ["mine"],
        'http_request.status="404"': ["mine"],
        "sourceLocation.line>10": [located["insertId"]],
        'source_location.file:"a.py"': [located["insertId"]],
        'insertId="mine"': ["mine"],
        "jsonPayload.message.nested.a=1": [nested["insertId"]],
    }.items():
        matching = (await entries(service, f"{shown} AND {filter_}")).json.get("entries", [])
        assert [entry["insertId"] for entry in matching] == expected, filter_


async def test_service_log_lines_contain_the_state_of_an_ml_job(service: ApiService) -> None:
    await service.result("POST", "/v1/projects/p1/jobs", ml_job(job_id="job_1"))
    service.clock = START + 60 * SECOND
    over = ReplicaExited(1, PRIMARY, 1, exit_record(0, ended=service.clock))
    await service.run("projects/p1/jobs/job_1", over, at=START)
    service.clock += 60 * SECOND
    answer = await entries(service, 'labels."ml.googleapis.com/endpoint"=""')
    states = [entry["labels"]["ml.googleapis.com/job_state"] for entry in answer.json["entries"]]
    assert list(dict.fromkeys(states)) == ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
