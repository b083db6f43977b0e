"""`trainshed pipelines`: requests, the tree of tasks, and messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import JOBS, FakeService, Stream, job, line

PLACE = "projects/p/locations/us-central1"
PIPELINES = f"/v1/{PLACE}/pipelineJobs"
NAME = f"{PLACE}/pipelineJobs/run-1"
AT = "2026-11-20T06:00:{:02}Z"
TYPES = {"lr": "NUMBER_DOUBLE", "names": "LIST", "text": "STRING", "flag": "BOOLEAN"}
DECLARED = {name: {"parameterType": kind} for name, kind in TYPES.items()}
LOOP = {"itemInput": "i", "items": {"raw": '[1, "two", 3, 4]'}}
TEMPLATE: dict[str, Any] = {
    "pipelineInfo": {"name": "pipe"},
    "root": {
        "inputDefinitions": {"parameters": DECLARED | {"old": {"type": "INT"}}},
        "dag": {
            "tasks": {
                "prepare": {"componentRef": {"name": "comp-job"}},
                "loop": {"componentRef": {"name": "comp-loop"}, "parameterIterator": LOOP},
            }
        },
    },
    "components": {
        "comp-job": {"executorLabel": "exec"},
        "comp-loop": {"dag": {"tasks": {"train": {"componentRef": {"name": "comp-job"}}}}},
    },
}


def description(state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    more |= {"kind": "pipeline_job", "displayName": "pipe"}
    details = {"template": "pipe", "root": "gs://b/pipelines"}
    return job("9", state, name=NAME, jobId="run-1", pipelineJob=details, **more)


def task(number: int, name: str, parent: int, state: str = "SUCCEEDED", **more: Any) -> dict[str, Any]:
    detail = {"taskId": str(number), "taskName": name, "state": state, **more}
    detail |= {"parentTaskId": str(parent)} if parent else {}
    if state != "PENDING":
        detail["startTime"] = AT.format(number)
    if state not in ("PENDING", "RUNNING"):
        detail["endTime"] = AT.format(number + 10)
    return detail


def with_job(number: str) -> dict[str, Any]:
    return {"containerDetail": {"mainJob": f"{PLACE}/customJobs/{number}"}}


ERROR = {"code": 3, "message": "It exited with status 3.\nthe log"}
TASKS = [
    task(1, "run-1", 0, "RUNNING"),
    task(2, "prepare", 1, "SKIPPED"),
    task(3, "loop", 1, "RUNNING"),
    task(4, "loop-0", 3, "SUCCEEDED"),
    task(5, "train", 4, executorDetail=with_job("51")),
    task(6, "loop-1", 3, "FAILED", error=ERROR),
    task(7, "train", 6, "FAILED", error=ERROR, executorDetail=with_job("71")),
    task(8, "loop-2", 3, "RUNNING"),
    task(9, "train", 8, "PENDING"),
]


def public(*tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": NAME,
        "displayName": "pipe",
        "state": "PIPELINE_STATE_RUNNING",
        "pipelineSpec": TEMPLATE,
        "runtimeConfig": {"parameterValues": {"lr": 0.1}, "gcsOutputDirectory": "gs://b/pipelines"},
        "jobDetail": {"taskDetails": list(tasks)},
        "createTime": AT.format(0),
    } | more


@pytest.fixture
def ready(service: FakeService) -> FakeService:
    status = {"project": "p", "region": "us-central1", "bucket": "b"}
    service.on("GET", "/trainshed/v1/status", status)
    service.on("GET", "/storage/v1/b/b", {})
    service.on("POST", PIPELINES, {"name": NAME})
    service.on("GET", f"/v1/{NAME}", public(*TASKS))
    for reference in (NAME, "run-1"):
        service.on("GET", f"{JOBS}/{reference}", description())
    return service


@pytest.fixture
def template(tmp_path: Path) -> str:
    file = tmp_path / "pipe.json"
    file.write_text(json.dumps(TEMPLATE))
    return str(file)


def sent_job(service: FakeService) -> dict[str, Any]:
    return json.loads(service.bodies("POST", PIPELINES)[-1])


def test_run_sends_the_template_and_typed_parameters(
    trainshed: Invoke, ready: FakeService, template: str
) -> None:
    values = ("lr=1e-3", 'names=["a"]', "text=5", "flag=True", "old=x=y", "unknown=7")
    result = trainshed(
        *("pipelines", "run", template, "--name", "run-1", "--label", "team=x"),
        *(word for value in values for word in ("-p", value)),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{NAME}\n"
    assert result.stderr == "To follow it: trainshed pipelines watch run-1\n"
    assert sent_job(ready) == {
        "pipelineSpec": TEMPLATE,
        "labels": {"team": "x"},
        "runtimeConfig": {
            "parameterValues": {"lr": 0.001, "names": ["a"], "text": "5", "flag": True}
            | {"old": "x=y", "unknown": "7"},
            "gcsOutputDirectory": "gs://b/pipelines",
        },
    }
    (request,) = [sent for sent in ready.sent if (sent.method, sent.path) == ("POST", PIPELINES)]
    assert request.query == {"pipelineJobId": "run-1"}


def test_run_sends_the_other_options(trainshed: Invoke, ready: FakeService, template: str) -> None:
    result = trainshed(
        *("pipelines", "run", template, "--root", "gs://c/d", "--no-cache", "--fail-fast"),
        *("--service-account", "a@b.c"),
    )
    assert result.exit_code == 0, result.stderr
    body = sent_job(ready)
    assert body["serviceAccount"] == "a@b.c"
    config = body["runtimeConfig"]
    assert config["failurePolicy"] == "PIPELINE_FAILURE_POLICY_FAIL_FAST"
    assert config["gcsOutputDirectory"] == "gs://c/d"
    spec = body["pipelineSpec"]
    dags = (spec["root"]["dag"], spec["components"]["comp-loop"]["dag"])
    settings = [task["cachingOptions"] for dag in dags for task in dag["tasks"].values()]
    assert settings == [{"enableCache": False}] * 3


def test_run_reads_a_pipeline_job_in_yaml_from_a_bucket(trainshed: Invoke, ready: FakeService) -> None:
    spec = "pipelineInfo: {name: pipe}\ndefaultPipelineRoot: gs://x/y"
    ready.on("GET", "/storage/v1/b/c/o/d/pipe.yaml", f"# PIPELINE\n{spec}\n".encode())
    assert trainshed("pipelines", "run", "gs://c/d/pipe.yaml").exit_code == 0
    assert sent_job(ready)["runtimeConfig"]["gcsOutputDirectory"] == "gs://x/y"
    wrapped = {"name": "n", "pipelineSpec": {}, "runtimeConfig": {"parameterValues": {"a": 1}}}
    ready.on("GET", "/storage/v1/b/c/o/d/pipe.yaml", json.dumps(wrapped).encode())
    assert trainshed("pipelines", "run", "gs://c/d/pipe.yaml", "-p", "b=2").exit_code == 0
    body = sent_job(ready)
    assert body["runtimeConfig"]["parameterValues"] == {"a": 1, "b": "2"}
    assert "name" not in body


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from kfp import dsl\n\ndef f(a: int): ...", "neither JSON nor YAML: line 3, column 8: "),
        ("import kfp", "does not contain a compiled pipeline. Compile it: kfp dsl compile"),
        ("a: 1\n---\nplatforms: {kubernetes: {}}", "has a second YAML document"),
    ],
)
def test_run_rejects_files_that_are_not_compiled_pipelines(
    trainshed: Invoke, ready: FakeService, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "pipe.yaml"
    file.write_text(text)
    result = trainshed("pipelines", "run", str(file))
    assert result.exit_code == 1
    assert message in result.stderr
    assert not ready.bodies("POST", PIPELINES)


def test_run_shows_violations_with_their_paths(
    trainshed: Invoke, ready: FakeService, template: str, tmp_path: Path
) -> None:
    violation = {"runtime_config.parameter_values.lr": "It is missing."}
    ready.refuse("POST", PIPELINES, 400, "wrong", **violation)
    result = trainshed("pipelines", "run", template)
    assert "\n  runtime_config.parameter_values.lr: It is missing.\n" in result.stderr
    assert "'lr' has no value" in trainshed("pipelines", "run", template, "-p", "lr").stderr
    result = trainshed("pipelines", "run", str(tmp_path / "missing.yaml"))
    assert "missing.yaml cannot be read. No such file or directory." in result.stderr


def test_describe_folds_loops(ready: FakeService) -> None:
    result = ready.cli("pipelines", "describe", "run-1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"Job         {NAME}",
        "Name        pipe",
        "Pipeline    pipe",
        "State       RUNNING",
        "Created     2026-11-20 06:00:00",
        "Lasted      59s",
        "Parameters  lr=0.1",
        "Root        gs://b/pipelines",
        "",
        "TASK              STATE    LASTED  JOB  NOTE",
        "prepare           CACHED      10s  –    –",
        "loop              RUNNING     57s  –    1 failed, 1 running, 1 of 4 done",
        '  loop-1 ("two")  FAILED      10s  –    –',
        "    train         FAILED      10s  71   It exited with status 3.",
    ]
    table = ready.cli("pipelines", "describe", "run-1", "--all").stdout.partition("\n\n")[2]
    assert [row.split()[0] for row in table.splitlines()[3:]] == [
        *("loop-0", "train", "loop-1", "train", "loop-2", "train")
    ]


def test_watch_prints_changes_and_the_end_of_failed_logs(ready: FakeService) -> None:
    error = {"code": 3, "message": "The task 'loop[1]/train' failed.\nthe log"}
    over = description("FAILED", error=error)
    ready.on("GET", f"{JOBS}/9/watch", Stream([description(), over]))
    ready.on("GET", f"{JOBS}/9/timeline", {"name": "x", "entries": []})
    ended = [task(1, "run-1", 0, "FAILED"), TASKS[1], task(3, "loop", 1, "FAILED"), *TASKS[3:7]]
    ready.on("GET", f"/v1/{NAME}", public(*TASKS[:3]), public(*ended))
    log = json.dumps(line("workerpool0-0", "bad lr")).encode()
    ready.on("GET", f"{JOBS}/{PLACE}/customJobs/71/logs", log)
    result = ready.cli("pipelines", "watch", "run-1")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "loop  RUNNING  0 of 4 done",
        "prepare  CACHED after 10s",
        "loop  FAILED after 10s  1 failed, 1 of 4 done",
        'loop/loop-1 ("two")/train  FAILED after 10s',
        "  workerpool0-0  bad lr",
        f"  job {PLACE}/customJobs/71",
        "FAILED after 4.0s",
        "The task 'loop[1]/train' failed.",
    ]
    assert result.stderr == "To run the failed tasks again: trainshed pipelines retry run-1\n"


def test_retry_creates_the_same_job_with_a_label(ready: FakeService) -> None:
    ready.on("GET", f"{JOBS}/run-1", description("FAILED"))
    old = public(*TASKS, labels={"team": "x"}, serviceAccount="a@b.c", etag="e")
    ready.on("GET", f"/v1/{NAME}", old)
    result = ready.cli("pipelines", "retry", "run-1")
    assert (result.exit_code, result.stdout) == (0, f"{NAME}\n")
    inputs = ("displayName", "pipelineSpec", "runtimeConfig", "serviceAccount")
    labels = {"team": "x", "trainshed-retry-of": "run-1"}
    assert sent_job(ready) == {"labels": labels, **{name: old[name] for name in inputs}}
    long = f"{PLACE}/pipelineJobs/{'a' * 64}"
    ready.on("GET", f"/v1/{NAME}", old | {"name": long})
    ready.cli("pipelines", "retry", "run-1")
    assert sent_job(ready)["labels"]["trainshed-retry-of"] == "9"


def test_retry_needs_failed_tasks(ready: FakeService) -> None:
    for state, advice in (("RUNNING", "watch run-1"), ("SUCCEEDED", "run TEMPLATE")):
        ready.on("GET", f"{JOBS}/run-1", description(state))
        result = ready.cli("pipelines", "retry", "run-1")
        assert result.exit_code == 1
        assert f"has no failed tasks to run: it is {state}." in result.stderr
        assert f"trainshed pipelines {advice}" in result.stderr


def test_only_pipeline_jobs_are_cancelled(ready: FakeService) -> None:
    ready.on("GET", f"{JOBS}/7", job("7"))
    ready.on("POST", f"{JOBS}/9:cancel", {})
    result = ready.cli("pipelines", "cancel", "run-1", "7")
    assert result.exit_code == 1
    assert result.stdout == "run-1  is being cancelled\n"
    assert "is not a pipeline job. Show it: trainshed jobs describe 7" in result.stderr


def test_pipelines_are_listed_and_deleted(ready: FakeService) -> None:
    listed = public() | {"scheduleName": f"{PLACE}/schedules/77", "endTime": ""}
    ready.on("GET", PIPELINES, {"pipelineJobs": [listed] * 50, "nextPageToken": "t"})
    result = ready.cli("pipelines", "list")
    header, row, *_ = result.stdout.splitlines()
    assert header == "PIPELINE JOB  NAME  STATE    CREATED              ENDED  SCHEDULE"
    assert row == "run-1         pipe  RUNNING  2026-11-20 06:00:00  –      77"
    assert result.stderr == "These are the newest 50. To show all: --all\n"
    assert ready.cli("pipelines").stdout == result.stdout
    (query, *_) = [sent.query for sent in ready.sent if sent.path == PIPELINES]
    assert (query["pageSize"], query["readMask"].split(",")[0]) == ("50", "name")
    ready.on("DELETE", f"{PIPELINES}/run-1", {"done": True})
    assert ready.cli("pipelines", "delete", "run-1").stdout == "run-1  is deleted\n"
