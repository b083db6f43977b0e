"""The unmodified clients against the API over loopback: google-cloud-aiplatform, apiclient, gcloud
(spec/clients#recipes)."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.serving import Served, sdk_of, serve
from tests.unit.jobs import exited
from tests.unit.specs_requests import ml_job
from trainshed.core.lifecycle.events import JobAdmitted, RuntimePrepared
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaStarted
from trainshed.core.names import ReplicaId

SECOND = 10**9
PRIMARY = ReplicaId(0, 0)
LINES = 1_500


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve(tmp_path) as running:
        running.house.clock = time.time_ns() - 300 * SECOND
        yield running


def finish(served: Served, name: str, code: int = 0) -> None:
    house = served.house
    start = house.clock
    house.clock += 60 * SECOND
    events = (
        JobAdmitted(((PRIMARY, "node"),)),
        RuntimePrepared(1),
        ReplicaStarted(1, PRIMARY, 1, start + SECOND),
        ReplicaExited(1, PRIMARY, 1, exited(code, ended=start + 59 * SECOND)),
    )
    served.play(house.happen(name, *events))


# --- google-cloud-aiplatform over REST


def test_the_sdk_submits_reads_cancels_lists_and_deletes(served: Served) -> None:
    from google.api_core.exceptions import BadRequest

    sdk = sdk_of(served)
    pools = [
        {
            "machine_spec": {"machine_type": "n1-standard-4"},
            "replica_count": 1,
            "container_spec": {"image_uri": "gcr.io/p1/mine:v1", "command": ["true"]},
        }
    ]
    job = sdk.CustomJob(display_name="sdk", worker_pool_specs=pools, labels={"team": "a"})
    job.submit(service_account="runner@p1.iam.gserviceaccount.com", timeout=7200)
    assert job.state.name == "JOB_STATE_QUEUED"
    job.cancel()
    finish(served, job.resource_name)
    again = sdk.CustomJob.get(job.resource_name)
    assert again.state.name in ("JOB_STATE_SUCCEEDED", "JOB_STATE_CANCELLED")
    assert again.labels == {"team": "a"}
    assert again.end_time is not None
    assert [found.name for found in sdk.CustomJob.list(filter='display_name="sdk"')] == [job.name]
    assert sdk.CustomJob.list(filter='display_name="other"') == []
    again.delete()
    assert sdk.CustomJob.list() == []

    bad = sdk.CustomJob(display_name="bad", worker_pool_specs=[pools[0] | {"replica_count": 2}])
    with pytest.raises(
        BadRequest, match=r"1\.Field: job_spec\.worker_pool_specs\[0\]\.replica_count"
    ):
        bad.submit()


# --- google-api-python-client


def untyped(module: str) -> Any:
    """A module that ships no types."""
    return import_module(module)


def bearer(served: Served) -> Any:
    return untyped("google.oauth2.credentials").Credentials(served.house.token)


def test_apiclient_drives_ml_v1_with_its_own_discovery_document(served: Served) -> None:
    from google.api_core.client_options import ClientOptions

    options = ClientOptions(api_endpoint=served.url)
    ml = untyped("googleapiclient.discovery").build(
        "ml", "v1", static_discovery=True, client_options=options, credentials=bearer(served)
    )
    jobs = ml.projects().jobs()
    body = ml_job(job_id="api_1", scaleTier="CUSTOM", masterType="n1-standard-4")
    created = jobs.create(parent="projects/p1", body=body).execute()
    assert (created["jobId"], created["state"]) == ("api_1", "QUEUED")
    read = jobs.get(name="projects/p1/jobs/api_1").execute()
    assert read == created
    assert jobs.cancel(name="projects/p1/jobs/api_1", body={}).execute() == {}
    patch = {"labels": {"a": "b"}, "etag": read["etag"]}
    patched = jobs.patch(name="projects/p1/jobs/api_1", body=patch, updateMask="labels").execute()
    assert patched["labels"] == {"a": "b"}
    assert jobs.list(parent="projects/p1", filter="jobId:api*").execute()["jobs"] == [patched]
    assert jobs.list(parent="projects/p1", filter="jobId:other*").execute() == {}
    # Longer than an address may be for this client: sent as a POST.
    long = " OR ".join(["jobId:api*", *(f"jobId:other_{number}*" for number in range(200))])
    assert len(long) > 2_048
    assert jobs.list(parent="projects/p1", filter=long).execute()["jobs"] == [patched]
    assert ml.projects().getConfig(name="projects/p1").execute()["serviceAccount"]
    with pytest.raises(untyped("googleapiclient.errors").HttpError) as duplicate:
        jobs.create(parent="projects/p1", body=body).execute()
    refused: Any = duplicate.value
    assert refused.status_code == 409


def test_apiclient_finds_the_served_discovery_document(served: Served) -> None:
    ml = untyped("googleapiclient.discovery").build(
        "ml",
        "v1",
        static_discovery=False,
        discoveryServiceUrl=served.url + "/$discovery/rest?version=v1",
        credentials=bearer(served),
    )
    assert ml.projects().jobs().list(parent="projects/p1").execute() == {}


# --- gcloud


@pytest.fixture
def gcloud(served: Served, tmp_path: Path) -> "Gcloud":
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not installed: what it sends and shows is NOT tested")
    return Gcloud(served, tmp_path / "gcloud")


class Gcloud:
    def __init__(self, served: Served, config: Path) -> None:
        services = ("AIPLATFORM", "ML", "LOGGING", "CLOUDRESOURCEMANAGER")
        self._environment = os.environ | {
            "CLOUDSDK_CONFIG": str(config),
            "CLOUDSDK_AUTH_ACCESS_TOKEN": served.house.token,
            "CLOUDSDK_CORE_PROJECT": "p1",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_ML_ENGINE_POLLING_INTERVAL": "1",
            **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{served.url}/" for name in services},
        }

    def __call__(self, *arguments: str, fails: bool = False) -> str:
        """Standard output; of a command that must fail, its error text."""
        done = subprocess.run(
            ["gcloud", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stderr
        return done.stderr if fails else done.stdout


@pytest.mark.soak
@pytest.mark.gcloud
def test_gcloud_ai_platform_submits_and_streams_every_line(served: Served, gcloud: Gcloud) -> None:
    """spec/clients#log-pages: a server with unordered answers had 5 of 1500 lines shown. With a real service:
    tests/e2e/test_gcloud_ml.py, and test_gcloud_vertex.py over several pages."""
    gcloud(
        *("ai-platform", "jobs", "submit", "training", "job_a", "--region=us-central1"),
        *("--module-name=trainer.task", "--packages=gs://bucket/x.tar.gz", "--scale-tier=basic"),
        *("--runtime-version=2.6", "--python-version=3.7", "--", "--x=1"),
    )
    start = served.house.clock
    at = ((start + SECOND + n // 2 * 1_000_000, f"line {n}") for n in range(LINES))
    served.house.write_log(1000, "workerpool0-0", *at)
    finish(served, "projects/p1/jobs/job_a")
    shown = gcloud("ai-platform", "jobs", "stream-logs", "job_a")
    assert [line.split("\t")[-1].strip() for line in shown.splitlines() if "line " in line] == [
        f"line {n}" for n in range(LINES)
    ]
    assert "master-replica-0" in shown
    assert "Job completed successfully." in shown
    assert gcloud("ai-platform", "jobs", "list", "--format=value(jobId,state)").split() == [
        "job_a",
        "SUCCEEDED",
    ]
    gcloud("ai-platform", "jobs", "update", "job_a", "--update-labels=a=b")
    assert "a: b" in gcloud("ai-platform", "jobs", "describe", "job_a")
    newest = gcloud(
        *("logging", "read", 'resource.type="ml_job" AND textPayload:"line "', "--limit=2"),
        "--format=value(textPayload)",
    )
    assert newest.split("\n")[:2] == [f"line {LINES - 1}", f"line {LINES - 2}"]
    assert "projectId: p1" in gcloud("projects", "describe", "p1")


# --- the server's end


def test_shutdown_does_not_wait_for_followers(tmp_path: Path) -> None:
    import http.client

    with serve(tmp_path) as running:
        body = ml_job(job_id="long")
        answer = running.play(running.house.call("POST", "/v1/projects/p1/jobs", body))
        assert answer.status == 200
        follower = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=10)
        headers = {"Authorization": f"Bearer {running.house.token}"}
        follower.request("GET", "/trainshed/v1/jobs/long/watch", headers=headers)
        response = follower.getresponse()
        assert b'"state":"QUEUED"' in response.readline()
        began = time.monotonic()
    assert response.read() == b""
    assert time.monotonic() - began < 4, "the server waited for a stream"
    follower.close()


def test_a_follower_that_leaves_is_noticed(tmp_path: Path) -> None:
    import socket

    async def waiters(running: Served) -> int:
        return len(asyncio.all_tasks())

    with serve(tmp_path) as running:
        body = ml_job(job_id="long")
        running.play(running.house.call("POST", "/v1/projects/p1/jobs", body))
        host, _, port = running.url.removeprefix("http://").partition(":")
        before = running.play(waiters(running))
        client = socket.create_connection((host, int(port)), 10)
        client.sendall(
            f"GET /trainshed/v1/jobs/long/watch HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {running.house.token}\r\n\r\n".encode()
        )
        assert client.recv(10)
        assert running.play(waiters(running)) > before
        client.close()
        deadline = time.monotonic() + 5
        while running.play(waiters(running)) > before:
            assert time.monotonic() < deadline, "the stream of a client that left goes on"
