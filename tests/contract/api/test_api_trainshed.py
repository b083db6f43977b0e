"""Trainshed's own API over a real store and real files: describe, timeline, launches, live logs, watch."""

import asyncio
import json
import threading
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, SECOND, SETTINGS, START, ApiService, Lines
from tests.people import add_user
from tests.unit.jobs import exit_record
from tests.unit.specs_requests import custom_job, ml_job, pool
from trainshed.api.calls import streams
from trainshed.core.lifecycle.events import JobAdmitted, RuntimePrepared
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaNoted, ReplicaStarted
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid, ReplicaId
from trainshed.store.logs.lines import LogLine
from trainshed.store.logs.reader import LogReader

OURS = "/trainshed/v1"
PRIMARY, WORKER = ReplicaId(0, 0), ReplicaId(1, 0)
NAME = "projects/p1/locations/us-central1/customJobs/1000"
JOB = "/trainshed/v1/jobs/1000"
NO_DIRECTORY = "FileNotFoundError: [Errno 2] No such file or directory: '/gcs/b/m.pt'"


async def create_job(service: ApiService) -> None:
    """Create job 1000 with a primary and a worker."""
    answer = await service.call("POST", f"{LOCATION}/customJobs", custom_job(pool(), pool()))
    assert answer.json["name"] == NAME


@pytest.fixture
async def service(service: ApiService) -> ApiService:
    """The service with job 1000."""
    await create_job(service)
    return service


async def start_job(service: ApiService) -> None:
    service.clock = START + SECOND
    await service.run(NAME)


async def end_job(service: ApiService) -> None:
    service.clock = START + 9 * SECOND
    await service.apply_events(
        NAME,
        ReplicaExited(1, PRIMARY, 1, exit_record(0, ended=service.clock)),
        ReplicaExited(1, WORKER, 1, exit_record(None, signal=15, ended=service.clock)),
    )


async def test_job_description_shows_replicas_exits_and_the_applied_failure_rule(service: ApiService) -> None:
    queued = await service.result("GET", JOB)
    assert [replica["state"] for replica in queued["replicas"]] == ["WAITING", "WAITING"]
    await start_job(service)
    await end_job(service)
    view = await service.result("GET", JOB)
    assert (view["state"], view["rule"], view["attempt"]) == ("SUCCEEDED", "primary_succeeded", 1)
    assert view["resource"]["state"] == "JOB_STATE_SUCCEEDED"
    assert [replica["id"] for replica in view["replicas"]] == ["workerpool0-0", "workerpool1-0"]
    assert view["replicas"][1]["exit"] == {
        "exitCode": None,
        "signal": 15,
        "outOfMemory": False,
        "stopped": False,
        "startTime": "1970-01-01T00:16:41.000000Z",
        "endTime": "2025-10-09T08:53:29.000000Z",
        "logLines": 0,
    }


async def test_job_is_found_by_uid_id_or_encoded_name(service: ApiService) -> None:
    assert (await service.call("POST", "/v1/projects/p2/jobs", ml_job(job_id="mine"))).status == 200
    for key, name in (
        ("1000", NAME),
        (quote(NAME, safe=""), NAME),
        ("mine", "projects/p2/jobs/mine"),
        ("1001", "projects/p2/jobs/mine"),
    ):
        assert (await service.result("GET", f"/trainshed/v1/jobs/{key}"))["name"] == name
    assert (await service.call("GET", "/trainshed/v1/jobs/none")).status == 404
    assert (await service.call("GET", "/trainshed/v1/jobs/a%2Fb")).status == 400


async def test_job_list_contains_ml_jobs_and_vertex_jobs_newest_first(service: ApiService) -> None:
    await service.call("POST", "/v1/projects/p1/jobs", ml_job(job_id="mine"))
    path = "/trainshed/v1/jobs?project=p1"
    view = await service.result("GET", path)
    assert [job["jobId"] for job in view["jobs"]] == ["mine", "1000"]
    assert [job["api"] for job in view["jobs"]] == ["ml", "vertex"]
    page = await service.result("GET", f"{path}&limit=1")
    rest = await service.result("GET", f"{path}&limit=1&pageToken={page['nextPageToken']}")
    assert [job["jobId"] for job in page["jobs"] + rest["jobs"]] == ["mine", "1000"]
    assert (await service.result("GET", f"{path}&state=running"))["jobs"] == []
    assert len((await service.result("GET", f"{path}&state=QUEUED"))["jobs"]) == 2
    (by_name,) = (await service.result("GET", f"{path}&displayName=job"))["jobs"]
    assert by_name["jobId"] == "1000"
    assert (await service.result("GET", f"{path}&displayName=jo"))["jobs"] == []
    many = "?project=p1" + "&label=a" * 9
    for bad in ("?project=p1&state=odd", "?project=p1&limit=x", "?project=-x-", many):
        assert (await service.call("GET", f"/trainshed/v1/jobs{bad}")).status == 400


async def test_list_without_project_uses_the_services_default_project(service: ApiService) -> None:
    assert (await service.result("GET", "/trainshed/v1/jobs"))["jobs"] == []
    service.serve(settings=replace(SETTINGS, project="p1"))
    (job,) = (await service.call("GET", "/trainshed/v1/jobs")).json["jobs"]
    assert job["name"] == NAME


async def test_job_appears_once_in_a_list_when_its_state_changes(service: ApiService) -> None:
    """The job's state changes between two pages."""
    for job_id in ("first", "second", "third"):
        await service.call("POST", "/v1/projects/p1/jobs", ml_job(job_id=job_id))
    path = "/trainshed/v1/jobs?project=p1&limit=1&state="
    page = await service.result("GET", f"{path}queued,running")
    seen = page["jobs"]
    everything = (await service.result("GET", "/trainshed/v1/jobs?project=p1"))["jobs"]
    for job in everything:
        await service.update_job(job["name"], state=JobState.RUNNING)
    other = f"{path}preparing&state=running&pageToken={page['nextPageToken']}"
    assert (await service.call("GET", other)).status == 400
    while token := page["nextPageToken"]:
        page = await service.result("GET", f"{path}running&state=queued&pageToken={token}")
        seen += page["jobs"]
    assert [job["jobId"] for job in seen] == ["third", "second", "first", "1000"]


async def test_timeline_and_typed_failure_are_shown_with_the_public_error(service: ApiService) -> None:
    """spec/operations#errors: the timeline contains every attempt, replica incarnation, verdict and
    rule. Typed errors are shown in addition to the public messages."""
    await start_job(service)
    service.clock = START + 3 * SECOND
    await service.apply_events(NAME, ReplicaLost(1, WORKER, 1, "its shim is gone"))
    view = await service.result("GET", JOB)
    assert view["replicas"][1]["restarts"] == {"replica_lost": 1}
    assert (view["replicas"][1]["incarnation"], view["failure"]) == (2, None)
    record = replace(exit_record(7, ended=START + 4 * SECOND), tail=NO_DIRECTORY)
    await service.apply_events(
        NAME,
        ReplicaStarted(1, WORKER, 2, START + 4 * SECOND),
        ReplicaExited(1, WORKER, 2, record),
        ReplicaExited(1, PRIMARY, 1, exit_record(None, signal=15, ended=START + 5 * SECOND)),
    )
    timeline = await service.result("GET", f"{JOB}/timeline")
    story = [(entry["kind"], entry["details"]) for entry in timeline["entries"]]
    first, second = [details for kind, details in story if kind == "verdict"]
    assert (first["effect"], first["count"], first["budget"]) == ("replica_restarts", 1, 5)
    assert second["effect"] == "job_fails"
    exits = [details for kind, details in story if kind == "replica_exited"]
    assert [details["exit_code"] for details in exits if details["incarnation"] == 2] == [7]
    failure = (await service.result("GET", JOB))["failure"]
    assert failure == {
        "rule": second["rule"],
        "cause": "exited",
        "replica": "workerpool1-0",
        "task": "workerpool1-0",
        "status": 7,
        "reason": NO_DIRECTORY,
        "tail": NO_DIRECTORY,
        "advice": failure["advice"],
    }
    assert "os.makedirs" in failure["advice"]


async def test_job_shows_each_warning_of_its_replicas_once(service: ApiService) -> None:
    await start_job(service)
    text = "there is a directory gs: in its working directory"
    noted = [ReplicaNoted(1, PRIMARY, 1, n, START, "storage_written_here", "WARNING", text) for n in (1, 2)]
    full = ReplicaNoted(1, PRIMARY, 1, 3, START, "disk_room_again", "INFO", "free again")
    await service.apply_events(NAME, *noted, full)
    assert (await service.result("GET", JOB))["warnings"] == [f"workerpool0-0: {text}"]


async def test_finished_ml_jobs_and_vertex_jobs_can_be_deleted(service: ApiService) -> None:
    """`jobs delete` uses this method because the public ml API has no delete."""
    refused = await service.call("DELETE", JOB)
    assert refused.status == 400
    assert "cancel it, and delete it after it has finished" in refused.json["error"]["message"]
    await start_job(service)
    await end_job(service)
    assert await service.result("DELETE", JOB) == {}
    assert (await service.call("GET", JOB)).status == 404
    await service.call("POST", "/v1/projects/p1/jobs", ml_job())
    name = (await service.result("GET", "/trainshed/v1/jobs?project=p1"))["jobs"][0]["name"]
    await service.update_job(name, state=JobState.FAILED)
    assert await service.result("DELETE", f"/trainshed/v1/jobs/{quote(name, safe='')}") == {}
    assert (await service.result("GET", "/trainshed/v1/jobs?project=p1"))["jobs"] == []


async def test_launch_method_shows_the_command_and_environment_of_a_replica(service: ApiService) -> None:
    """spec/program#launches: the launch is read from a file that the replica's shim writes."""
    path = f"{JOB}/launch"
    before = await service.result("GET", path)
    assert (before["incarnation"], before["attempt"], before["command"]) == (0, 0, [])
    assert before["machine"]["type"] == "n1-standard-4"
    assert before["runtime"]["family"]
    await service.apply_events(NAME, JobAdmitted(()))
    directory = service.log_root / "1000" / "1" / "workerpool1-0"
    directory.mkdir(parents=True)
    cluster = {"cluster": {"workerpool0": ["a:2222"]}, "task": {"index": 0}, "job": {"much": 1}}
    entry = {
        "incarnation": 1,
        "at": 10**18,
        "argv": ["python3", "task.py"],
        "names": ["CLUSTER_SPEC", "RANK"],
        "values": {"CLUSTER_SPEC": json.dumps(cluster), "RANK": "1"},
        "hostname": "h",
        "user": -1,  # The form written by shims of 0.2.0.
        "memory": 5,
    }
    (directory / "launches.jsonl").write_text(json.dumps(entry) + "\n")
    launch = await service.result("GET", f"{path}?replica=worker+0")
    assert (launch["task"], launch["incarnation"]) == ("workerpool1-0", 1)
    assert launch["command"] == ["python3", "task.py"]
    assert launch["clusterSpec"] == {"cluster": cluster["cluster"], "task": cluster["task"]}
    assert launch["values"] == {"RANK": "1"}
    assert launch["variables"] == ["CLUSTER_SPEC", "RANK"]
    assert (launch["machine"]["memoryLimitBytes"], launch["user"]) == (5, None)
    assert (await service.result("GET", path))["incarnation"] == 0, "the primary's"
    assert (await service.call("GET", f"{path}?replica=ps-1")).status == 400
    assert (await service.call("GET", f"{path}?attempt=2")).status == 400
    assert (await service.call("GET", "/trainshed/v1/jobs/1/launch")).status == 404


@pytest.mark.parametrize(
    ("query", "messages"),
    [
        ("tail=3", ["b1", "a2", "b2"]),
        ("tail=0", []),
        ("tail=100", ["a0", "b0", "a1", "b1", "a2", "b2"]),
        ("replica=workerpool1-0", ["b0", "b1", "b2"]),
        ("replica=workerpool1-0&tail=1", ["b2"]),
        ("since=2025-10-09T08:53:22Z", ["a2", "b2"]),
        ("since=2030-01-01T00:00:00Z", []),
        ("after=workerpool0-0/1/1", ["b0", "b1", "a2", "b2"]),
        ("after=workerpool0-0/1/1,workerpool1-0/1/2,service/1/7", ["a2"]),
        ("after=workerpool0-0/2/0&since=2025-10-09T08:53:22Z", ["b2"]),
    ],
)
async def test_query_parameters_of_a_log_request_select_the_returned_lines(
    service: ApiService, query: str, messages: list[str]
) -> None:
    service.write_log(1000, "workerpool0-0", *((START + n * SECOND, f"a{n}") for n in range(3)))
    service.write_log(1000, "workerpool1-0", *((START + n * SECOND + 1, f"b{n}") for n in range(3)))
    async with service.stream(f"{JOB}/logs?{query}") as lines:
        assert [line["message"] async for line in lines] == messages


async def test_log_of_a_job_contains_the_output_of_its_environment_build(service: ApiService) -> None:
    """spec/logs#lines, facts/lifecycle#service-lines: task `service`. test_api_logging.py tests the
    filters of Logging."""
    await service.apply_events(NAME, JobAdmitted(()))
    built = (START + 2 * SECOND, "Building"), (START + 3 * SECOND, "Downloading numpy")
    service.write_log(1000, "service", *built)
    service.clock = START + 60 * SECOND
    for query in ("tail=1", "replica=service&tail=1"):
        async with service.stream(f"{JOB}/logs?{query}") as lines:
            assert [line["message"] async for line in lines] == ["Downloading numpy"]
    async with service.stream(f"{JOB}/logs?follow=true") as lines:
        first = await lines.next()
        assert (first["task"], first["replica"]) == ("service", "service")
        assert first["message"] == "Building"
        assert (await lines.next())["message"] == "Downloading numpy"
        service.write_log(1000, "service", (START + 4 * SECOND, "Installed"))
        assert (await lines.next())["message"] == "Installed"
        await service.apply_events(NAME, RuntimePrepared(1, SECOND))
        service.write_log(1000, "workerpool0-0", (START + 5 * SECOND, "hello"))
        assert (await lines.next())["task"] == "workerpool0-0"


async def test_followed_log_returns_new_lines_and_ends_with_the_job(service: ApiService) -> None:
    """spec/invariants#last-lines-first: the stream ends after the last line, even if that line was
    written late."""
    service.write_log(1000, "workerpool0-0", (START + SECOND, "first"))
    async with service.stream(f"{JOB}/logs?follow=true&tail=1") as lines:
        assert (await lines.next())["message"] == "first"
        service.write_log(1000, "workerpool1-0", (START + 1, "late, with an earlier time"))
        assert (await lines.next())["message"] == "late, with an earlier time"
        await start_job(service)
        service.write_log(1000, "workerpool0-0", (START + 2 * SECOND, "last"))
        assert (await lines.next())["message"] == "last"
        await end_job(service)
        assert await lines.next() is None


async def test_all_followers_of_a_log_share_one_reading_thread(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads would compete with the event loop: 200 followers once blocked all other
    callers for 9 s."""
    service.write_log(1000, "workerpool0-0", *((START + n, 1000 * "x") for n in range(500)))
    readers: set[str] = set()

    def record_thread(*read: Any) -> Any:
        readers.add(threading.current_thread().name)
        return runs(*read)

    runs = LogReader.new_line_groups
    monkeypatch.setattr(LogReader, "new_line_groups", record_thread)
    await asyncio.gather(*(service.call("GET", f"{JOB}/logs") for _ in range(20)))
    assert len(readers - {"MainThread"}) == 1


async def test_long_log_is_sent_in_several_chunks(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream whose client does not read keeps one part in memory, and a caller can have thousands
    of streams."""
    for index in range(2):
        lines = ((START + 2 * n + index, 1000 * "x") for n in range(1000))
        service.write_log(1000, f"workerpool{index}-0", *lines)
    sizes: list[int] = []
    send = Lines.send

    async def record_size(lines: Lines, message: Any) -> None:
        sizes.append(len(message.get("body", b"")))
        await send(lines, message)

    monkeypatch.setattr(Lines, "send", record_size)
    async with service.stream(f"{JOB}/logs") as stream:
        moments = [line["at"] async for line in stream]
    assert len(moments) == 2000
    assert moments == sorted(moments)
    assert max(sizes) < 100_000


@pytest.mark.parametrize("before", [[], ["first"]])
async def test_log_line_written_during_the_first_read_is_sent_to_the_client(
    service: ApiService, monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    service.write_log(1000, "workerpool1-0", *((START + SECOND, text) for text in before))
    read = LogReader.tail

    async def tail(reader: LogReader, uid: JobUid, n: int, **options: Any) -> tuple[LogLine, ...]:
        lines = await read(reader, uid, n, **options)
        if n == 400:
            service.write_log(1000, "workerpool0-0", (START, "meanwhile"))
        return lines

    monkeypatch.setattr(LogReader, "tail", tail)
    async with service.stream(f"{JOB}/logs?tail=400") as lines:
        assert sorted([line["message"] async for line in lines]) == [*before, "meanwhile"]


async def test_watch_returns_the_job_after_each_change(service: ApiService) -> None:
    async with service.stream(f"{JOB}/watch") as lines:
        first = await lines.next()
        assert (first["state"], first["waits"]) == ("QUEUED", [])
        await service.apply_events(NAME, JobAdmitted(()))
        second = await lines.next()
        assert second["state"] == "PREPARING"
        assert second["waits"] == ["Attempt 1: 2 replicas placed."]
        starts = (ReplicaStarted(1, replica, 1, service.clock) for replica in (PRIMARY, WORKER))
        await service.apply_events(NAME, RuntimePrepared(1), *starts)
        state = ""
        while state != "RUNNING":
            state = (await lines.next())["state"]
        await end_job(service)
        while (view := await lines.next()) is not None:
            state = view["state"]
        assert state == "SUCCEEDED"


@pytest.mark.parametrize("path", ["watch", "logs?follow=true&replica=workerpool1-0"])
async def test_stream_without_new_output_sends_keep_alives(
    service: ApiService, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Lines of other replicas, or log lines in a stream of states, wake the stream without output."""
    monkeypatch.setattr(streams, "_KEEP_ALIVE", 0.05)
    async with asyncio.timeout(60), service.stream(f"{JOB}/{path}") as lines:
        while lines.signs_of_life < 2:
            service.notices.publish(JobUid(1000))
            await asyncio.sleep(0)


async def test_streams_end_when_the_client_disconnects_or_the_server_stops(service: ApiService) -> None:
    async with service.stream(f"{JOB}/logs?follow=true"):
        pass  # Leaving the context disconnects and awaits the stream's task.
    async with service.stream(f"{JOB}/watch") as lines:
        assert (await lines.next())["state"] == "QUEUED"
        service.services.closing.set()
        assert await lines.next() is None


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{JOB}/logs?replica=workerpool7-0", 400),
        (f"{JOB}/logs?follow=perhaps", 400),
        (f"{JOB}/logs?since=soon", 400),
        (f"{JOB}/logs?tail=many", 400),
        (f"{JOB}/logs?after=workerpool0-0", 400),
        (f"{JOB}/logs?after=workerpool9-0/1/1", 400),
        ("/trainshed/v1/jobs/7/logs", 404),
        ("/trainshed/v1/nothing", 404),
        ("/trainshed/v2/status", 404),
    ],
)
async def test_invalid_stream_request_is_rejected_before_the_stream_starts(
    service: ApiService, path: str, status: int
) -> None:
    answer = await service.call("GET", path)
    assert answer.status == status
    assert answer.error["message"]


async def submit_job(service: ApiService, person: str, project: str = "p1") -> str:
    path = f"/v1/projects/{project}/locations/us-central1/customJobs"
    service.clock += SECOND
    token = add_user(service.tokens, person)
    return (await service.result("POST", path, custom_job(pool()), token=token))["name"]


async def is_cancelled(service: ApiService, name: str) -> bool:
    """Return whether a cancel request of the job is stored."""
    live = await service.store.ledger.load_live()
    return any(work.intents for work in live if str(work.job.name) == name)


async def test_all_jobs_of_a_user_are_cancelled(service: ApiService) -> None:
    ana, bo = "ana@corp.example", "bo@corp.example"
    first, second = await submit_job(service, ana), await submit_job(service, ana, "p2")
    other = await submit_job(service, bo)
    wanted = {"project": "-", "user": "Ana@Corp.Example"}
    lead = add_user(service.tokens, "lead@corp.example", "roles/viewer", "p1")
    refused = await service.call("POST", f"{OURS}/jobs:cancel", wanted, token=lead)
    assert refused.status == 403
    answer = await service.result("POST", f"{OURS}/jobs:cancel", wanted)
    assert set(answer["jobs"]) == {first, second}
    assert [await is_cancelled(service, name) for name in (first, second, other)] == [True, True, False]
    entry, *_ = (await service.result("GET", f"{OURS}/audit?project=-"))["entries"]
    assert (entry["resource"], entry["detail"]) == (f"jobs of {ana}", {"count": 2})


async def test_all_jobs_of_a_deleted_project_are_cancelled(service: ApiService) -> None:
    left, other = await submit_job(service, "ana@x.io", "p2"), await submit_job(service, "ana@x.io")
    await service.result("POST", "/v1/projects", {"projectId": "p2"})
    assert (await service.call("DELETE", "/v1/projects/p2")).status == 200
    answer = await service.result("POST", f"{OURS}/jobs:cancel", {"project": "p2"})
    assert answer["jobs"] == [left] and not await is_cancelled(service, other)
    for vague in ({}, {"project": "-"}, {"user": "nobody"}, {"project": "p 2", "user": "a@x.io"}):
        assert (await service.call("POST", f"{OURS}/jobs:cancel", vague)).status == 400


async def test_member_can_cancel_all_jobs_only_in_a_named_project(service: ApiService) -> None:
    name = await submit_job(service, "ana@corp.example")
    member = add_user(service.tokens, "bo@corp.example", "roles/aiplatform.user", "p1")
    for vague in ({}, {"project": ""}, {"project": "-"}, {"user": ""}, {"project": "p2"}):
        answer = await service.call("POST", f"{OURS}/jobs:cancel", vague, token=member)
        assert answer.status == 403, vague
    assert not await is_cancelled(service, name)
    answer = await service.result("POST", f"{OURS}/jobs:cancel", {"project": "p1"}, token=member)
    assert name in answer["jobs"]
