"""`trainshed jobs`: select, list, describe and follow jobs. test_job_actions.py tests the commands
that change them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import (
    JOBS,
    FakeService,
    Stream,
    entry,
    exit_record,
    job,
    job_page,
    line,
    replica,
)


def test_job_list_is_an_aligned_table(service: FakeService) -> None:
    jobs = job_page(job("12", "RUNNING"), job("3", "SUCCEEDED", displayName="a longer name"))
    service.on("GET", JOBS, jobs)
    result = service.cli("jobs", "list")
    assert result.exit_code == 0, result.stderr
    header, first, second = result.stdout.splitlines()
    assert header.split() == ["JOB", "NAME", "STATE", "CREATED", "LASTED"]
    assert first.split()[:3] == ["12", "digits", "RUNNING"]
    assert first.endswith("59s")
    assert second.endswith("4.0s")
    assert first.index("RUNNING") == second.index("SUCCEEDED") == header.index("STATE")
    service.on("GET", JOBS, job_page(*reversed(jobs["jobs"])))
    assert service.cli("jobs", "list", "--sort", "lasted").stdout == result.stdout


def test_list_and_description_show_a_jobs_progress(service: FakeService) -> None:
    progress = {"done": 0.5, "text": "epoch 4 of 8", "remainingSeconds": 6840.0}
    service.on("GET", JOBS, job_page(job("7", progress=progress)))
    words = "50 %, epoch 4 of 8, about 110 min left"
    assert words in service.cli("jobs", "list").stdout
    service.on("GET", f"{JOBS}/7", job(progress=progress))
    assert words in service.cli("jobs", "describe", "7").stdout


def test_job_list_continues_after_a_short_page(service: FakeService) -> None:
    service.on("GET", JOBS, job_page(job("3"), token="t"), job_page(token="u"), job_page(job("2")))
    result = service.cli("jobs", "list", "--state", "running", "--format", "json")
    assert [record["uid"] for record in json.loads(result.stdout)] == ["3", "2"]
    assert [request.query.get("pageToken") for request in service.sent] == [None, "t", "u"]
    assert service.sent[1].query["limit"] == "20"
    assert service.sent[0].query["state"] == "running"


def test_list_options_become_query_parameters(service: FakeService) -> None:
    service.on("GET", JOBS, job_page())
    result = service.cli(
        *("jobs", "list", "--mine", "--name", "digits gpu", "--metric", "loss<1"),
        *("--label", "team=a", "--since", "1m", "--all"),
    )
    query = service.sent[0].query
    assert (query["label"], query["since"]) == ("team=a", "2026-11-20T06:00:00.000000000Z")
    assert query["metric"] == "loss<1"
    assert (query["user"], query["search"], query["project"]) == ("me", "digits gpu", "-")
    assert "No such jobs in project -" in result.stderr


def test_job_id_is_looked_up_in_the_given_project(service: FakeService) -> None:
    """IDs of ml jobs are names that each project can use. The newest job of all projects with this
    ID is in another project."""
    service.on("GET", f"{JOBS}/a", job("7", jobId="a", project="p"))
    others = [job(uid, jobId=name, project="vision") for uid, name in (("8", "ab"), ("9", "a"))]
    service.on("GET", JOBS, job_page(), job_page(*others))
    service.on("GET", f"{JOBS}/9", others[1])
    result = service.cli("jobs", "describe", "a", "--project", "vision", "--format", "json")
    assert json.loads(result.stdout)["uid"] == "9", result.stderr
    result = service.cli("jobs", "describe", "a", "--project", "-", "--format", "json")
    assert json.loads(result.stdout)["uid"] == "7", result.stderr
    service.on("GET", JOBS, job_page())
    result = service.cli("jobs", "cancel", "a", "--project", "vision")
    assert result.exit_code == 1 and "Job 'a' does not exist." in result.stderr
    assert not service.bodies("POST", f"{JOBS}/7:cancel")


def test_describe_shows_error_and_replicas(service: FakeService) -> None:
    replicas = [replica("workerpool0-0", "EXITED", exit=exit_record(3)), replica("workerpool1-0", "WAITING")]
    error = {"code": 3, "message": "The replica failed. \nTraceback\n"}
    service.on("GET", f"{JOBS}/7", job(state="FAILED", replicas=replicas, error=error, rule="user_code"))
    result = service.cli("jobs", "describe", "7")
    assert result.exit_code == 0, result.stderr
    assert "Rule     user_code\n" in result.stdout
    assert "Error    The replica failed.\n         Traceback\nCode     3\n" in result.stdout
    rows = result.stdout.splitlines()[-2:]
    assert rows[0].split() == ["workerpool0-0", "EXITED", "exit", "3", "3.5s", "node-0"]
    assert rows[1].split() == ["workerpool1-0", "WAITING", "–", "–", "node-0"]


def test_job_is_found_by_the_beginning_of_its_id(service: FakeService) -> None:
    service.on("GET", JOBS, job_page(job("1234"), job("1299"), job("5678")))
    service.on("GET", f"{JOBS}/5678", job("5678"))
    assert service.cli("jobs", "describe", "56").exit_code == 0
    service.refuse("GET", f"{JOBS}/56", 403, "It is no job of the projects that you may see.")
    assert service.cli("jobs", "describe", "56").exit_code == 0
    several = service.cli("jobs", "describe", "12")
    assert several.exit_code == 1
    assert "2 jobs have an ID that begins with '12':\n  1234" in several.stderr
    within = service.cli("jobs", "describe", "git")
    assert "Did you mean:\n  1234  digits" in within.stderr
    service.on("GET", JOBS, job_page())
    gone = service.cli("jobs", "delete", "7530240697833491539")
    assert "It may be deleted" in gone.stderr


def test_logs_are_coloured_on_a_terminal(service: FakeService) -> None:
    service.on("GET", f"{JOBS}/7", job(replicas=[replica("workerpool0-0")]))
    service.on("GET", f"{JOBS}/7/logs", Stream([line("workerpool0-0", "oh", severity="ERROR")]))
    assert "\x1b[36mworkerpool0-0" in service.cli("jobs", "logs", "7", color=True).stdout
    plain = service.cli("jobs", "logs", "7", color=True, env={"NO_COLOR": "1"}).stdout
    assert plain == "workerpool0-0  oh\n"


def test_interrupted_log_stream_is_an_error(service: FakeService) -> None:
    service.on("GET", f"{JOBS}/7", job(state="SUCCEEDED"))
    service.on("GET", f"{JOBS}/7/logs", Stream([line("workerpool0-0", "one")], broken=True))
    result = service.cli("jobs", "logs", "7")
    assert result.exit_code == 1
    assert "broke off" in result.stderr
    assert "IncompleteRead" not in result.stderr


def test_watch_prints_the_timeline_and_the_result(service: FakeService) -> None:
    error = {"code": 3, "message": "It failed."}
    over = job(state="FAILED", error=error)
    service.on("GET", f"{JOBS}/7", job())
    service.on("GET", f"{JOBS}/7/watch", Stream([job(), over]))
    first, second = entry("created", "It was created."), entry("failed", "It failed.", 5)
    service.on(
        "GET",
        f"{JOBS}/7/timeline",
        {"name": "x", "entries": [first]},
        {"name": "x", "entries": [first, second]},
    )
    result = service.cli("jobs", "watch", "7")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "06:00:00.000  created: It was created.",
        "06:00:05.000  failed: It failed.",
        "FAILED after 4.0s",
        "It failed.",
    ]


def test_describe_shows_the_shell_command_and_links(service: FakeService) -> None:
    """spec/operations#shells: jobs with web access show this while they run."""
    links = {"workerpool0-0": "http://h/shell/#a", "workerpool1-0": "http://h/shell/#b"}
    service.on("GET", f"{JOBS}/7", job(webAccessUris=links))
    lines = service.cli("jobs", "describe", "7").stdout.splitlines()
    (first,) = (n for n, line in enumerate(lines) if line.startswith("Shell "))
    printed, *output = (" ".join(line.split()) for line in lines[first : first + 3])
    assert printed == "Shell trainshed jobs shell 7 [REPLICA], or in a browser:"
    assert output == [" ".join(link) for link in links.items()]
    service.on("GET", f"{JOBS}/7", job())
    assert "Shell" not in service.cli("jobs", "describe", "7").stdout


def test_describe_shows_warnings_of_replicas(service: FakeService) -> None:
    service.on("GET", f"{JOBS}/7", job(state="SUCCEEDED", warnings=["a is full", "b is full"]))
    shown = service.cli("jobs", "describe", "7").stdout
    assert "Warned   a is full\n         b is full\n" in shown


def test_describe_shows_why_a_job_waits(service: FakeService) -> None:
    """test_dry_run.py tests all texts for waiting jobs."""
    waiting = {"reason": "quota", "message": "needs 8 CPUs", "position": 1}
    service.on("GET", f"{JOBS}/7", job(state="QUEUED", waiting=waiting, waits=["x"]))
    shown = service.cli("jobs", "describe", "7").stdout
    assert "Waits    needs 8 CPUs (quota)\n         it is the next one\n" in shown


def test_describe_shows_failure_details_and_restarts(service: FakeService) -> None:
    failure = {
        "rule": "replica_lost",
        "cause": "lost",
        "task": "workerpool1-0",
        "status": 137,
        "reason": "node-1 does not answer",
    }
    replicas = [
        replica("workerpool0-0", restarts={"replica_lost": 2}),
        replica("workerpool1-0", "STOPPING", leaving="new disk"),
    ]
    service.on(
        "GET",
        f"{JOBS}/7",
        job(
            state="FAILED",
            replicas=replicas,
            error={"code": 3, "message": "It failed."},
            failure=failure,
            retries={"replica_lost": 3, "preempted": 1},
        ),
    )
    lines = service.cli("jobs", "describe", "7").stdout.splitlines()
    assert "Retries  4 (replica_lost 3, preempted 1)" in lines
    assert lines[lines.index("Error    It failed.") + 1 :][:3] == [
        "Code     3",
        "Cause    lost: workerpool1-0, status 137",
        "         node-1 does not answer",
    ]
    header, first, second = lines[-3:]
    assert header.split() == [*("REPLICA", "STATE", "ENDED", "RAN", "RESTARTS", "NODE", "STOPS", "BECAUSE")]
    assert "  2 replica_lost  node-0  –" in first
    assert second.endswith("  node-0  new disk")


def test_timeline_shows_the_time_between_entries(service: FakeService) -> None:
    entries = [
        entry("created", "It was created.", 0),
        entry("admitted", "Attempt 1: 2 replicas placed.\nMore.", 1),
        entry("verdict", "Rule replica_lost.", 5),
    ]
    service.on("GET", f"{JOBS}/7", job())
    service.on("GET", f"{JOBS}/7/timeline", {"name": "x", "entries": entries})
    assert service.cli("jobs", "timeline", "7").stdout.splitlines()[2:] == [
        "06:00:00.000  +0.00s  created   It was created.",
        "06:00:01.000   +1.0s  admitted  Attempt 1: 2 replicas placed.",
        "06:00:05.000   +5.0s  verdict   Rule replica_lost.",
    ]


def test_job_name_selects_the_newest_job_of_that_name(service: FakeService) -> None:
    jobs = job_page(job("31"), job("22", displayName="other"), job("13"))
    service.on("GET", JOBS, jobs)
    service.on("GET", f"{JOBS}/31", job("31"))
    result = service.cli("jobs", "describe", "digits", "--format", "json")
    assert json.loads(result.stdout)["uid"] == "31"
    assert result.stderr == "digits is 31, the newest of 2\n"
    service.on("GET", f"{JOBS}/22", job("22", displayName="other"))
    assert service.cli("jobs", "describe", "other").stderr == "other is 22\n"


def test_job_reference_last_selects_the_newest_job(service: FakeService) -> None:
    service.on("GET", JOBS, job_page(job("31"), job("22")))
    service.on("GET", f"{JOBS}/31", job("31"))
    result = service.cli("jobs", "describe", "@last")
    assert (result.exit_code, result.stderr) == (0, "@last is 31  digits\n")
    service.on("GET", JOBS, job_page())
    none = service.cli("jobs", "describe", "@last")
    assert none.exit_code == 1
    assert "No job exists yet. Submit one: trainshed run" in none.stderr


def test_yaml_output_equals_json_output(service: FakeService) -> None:
    about: dict[str, Any] = {
        "displayName": "yes: #1",
        "labels": {"a": "1", "b": ""},
        "error": None,
        "waits": [],
    }
    service.on("GET", JOBS, job_page(job("31", **about)))
    as_json = json.loads(service.cli("jobs", "list", "--format", "json").stdout)
    assert yaml.safe_load(service.cli("jobs", "list", "--format", "yaml").stdout) == as_json
    assert "'table', 'json', 'yaml'" in service.cli("jobs", "list", "--format", "xml").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("nodes", "--format", "json"),
        ("--data", "DATA", "nodes", "--format=json"),
        ("nodes", "--data", "DATA", "list", "--format", "json"),
    ],
)
def test_shared_options_are_accepted_at_every_position_of_the_command_line(
    service: FakeService, tmp_path: Path, words: tuple[str, ...]
) -> None:
    service.on("GET", "/trainshed/v1/nodes", {"nodes": []})
    result = service.cli(*(word.replace("DATA", str(tmp_path)) for word in words))
    assert (result.exit_code, result.stdout) == (0, "[]\n"), result.stderr


def entry_at(second: int, entry_: dict[str, Any]) -> dict[str, Any]:
    return entry_ | {"at": f"2026-11-20T06:00:{second:02d}.000000Z"}


@pytest.fixture
def output(service: FakeService) -> FakeService:
    """A failed job with two attempts and its output."""
    replicas = [replica("workerpool0-0", "EXITED", exit=exit_record(3)), replica("workerpool1-0")]
    error = {"code": 3, "message": "It failed."}
    service.on("GET", f"{JOBS}/7", job(state="FAILED", replicas=replicas, attempt=2, error=error))
    first, second = line("workerpool0-0", "epoch 1"), line("workerpool1-0", "oh no", 1, "ERROR")
    last = line("workerpool0-0", "epoch 2", 2) | {"attempt": 2}
    lines = [entry_at(2, first), entry_at(4, second), entry_at(6, last)]
    service.on("GET", f"{JOBS}/7/logs", Stream(lines))
    return service


def test_logs_are_printed_in_order_before_the_error(trainshed: Invoke, output: FakeService) -> None:
    result = trainshed("jobs", "logs", "7", "--tail", "3")
    expected = ["workerpool0-0  epoch 1", "workerpool1-0  oh no", "workerpool0-0  epoch 2"]
    assert result.stdout.splitlines() == expected
    assert result.stderr == "It failed.\n"
    (request,) = [item for item in output.sent if item.path.endswith("/logs")]
    assert request.query["tail"] == "3"


def test_logs_support_the_options_timestamps_and_since(trainshed: Invoke, output: FakeService) -> None:
    result = trainshed("jobs", "logs", "7", "--timestamps", "--since", "10m")
    assert "2026-11-20 06:00:04.000  workerpool1-0  oh no" in result.stdout
    (request,) = [item for item in output.sent if item.path.endswith("/logs")]
    assert request.query["since"] == "2026-11-20T05:51:00.000000000Z"
    wrong = trainshed("jobs", "logs", "7", "--since", "yesterday")
    assert "Write how long ago (30s, 10m, 2h, 1d) or a date" in wrong.stderr


def test_describe_shows_the_submitted_program(service: FakeService) -> None:
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": "1",
        "pythonPackageSpec": {
            "executorImageUri": "img:latest",
            "packageUris": ["gs://b/p.whl"],
            "pythonModule": "trainer.task",
            "env": [{"name": "KEY", "value": "hidden"}],
        },
    }
    spec = {
        "workerPoolSpecs": [pool, {**pool, "replicaCount": "3"}],
        "baseOutputDirectory": {"outputUriPrefix": "gs://b/out"},
    }
    service.on("GET", f"{JOBS}/7", job(resource={"jobSpec": spec}, creator="me@p"))
    text = service.cli("jobs", "describe", "7").stdout
    facts = dict(line.split(None, 1) for line in text.splitlines() if " " in line)
    assert facts["By"] == "me@p"
    assert facts["Runs"] == "workerpool0: 1 × n1-standard-4, img:latest, trainer.task"
    assert "workerpool1: 3 × n1-standard-4" in text
    assert facts["Output"] == "gs://b/out"
    assert "hidden" not in text


def test_cancel_all_jobs_of_a_user_or_project(service: FakeService) -> None:
    service.on("POST", f"{JOBS}:cancel", {"jobs": ["projects/p/locations/l/customJobs/7"]})
    shown = service.cli("jobs", "cancel", "--user", "ana@corp.example", "--project", "-")
    assert shown.stdout == "projects/p/locations/l/customJobs/7  is being cancelled\n"
    service.cli("jobs", "cancel", "--all", "--project", "vision")
    assert [*map(json.loads, service.bodies("POST", f"{JOBS}:cancel"))] == [
        {"project": "-", "user": "ana@corp.example"},
        {"project": "vision", "user": ""},
    ]
    for words in ((), ("7", "--all"), ("--all", "--user", "ana@corp.example")):
        result = service.cli("jobs", "cancel", *words)
        assert "Specify one or more jobs, --user, or --all." in result.stderr
    assert len(service.bodies("POST", f"{JOBS}:cancel")) == 2
