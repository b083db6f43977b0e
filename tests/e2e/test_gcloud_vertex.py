"""`gcloud ai custom-jobs`, unmodified (spec/clients#recipes): create, list, describe, cancel, stream-logs,
errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.gcloud import Gcloud, Output, needs_gcloud
from tests.e2e.running import (
    CUSTOM_JOBS,
    PROJECT,
    REGION,
    SKLEARN,
    Service,
    container_job,
    custom_job,
    submit,
    worker_pool,
)

pytestmark = [pytest.mark.gcloud, needs_gcloud]

BUCKET = "trainshed"
JOBS = ("ai", "custom-jobs")
CONTAINER = f"machine-type=n1-standard-4,container-image-uri={SKLEARN}"
LINES = 600
"""Lines of each of three replicas before the pause: together more than a page of 1,000."""

_TALKER = f"""
import json, os, pathlib, time

task = json.loads(os.environ["CLUSTER_SPEC"])["task"]
me = f"{{task['type']}}-{{task['index']}}"
for number in range({LINES}):
    print("line", number, flush=True)
def wait_for(name):
    while not pathlib.Path("/gcs/{BUCKET}/talk", name).exists():
        time.sleep(0.02)
wait_for("go-on")
for number in range({LINES}, {LINES} + 10):
    print("line", number, flush=True)
pathlib.Path("/gcs/{BUCKET}/talk", me).touch()
if me == "workerpool0-0":
    wait_for("workerpool1-0")
    wait_for("workerpool1-1")
    print("that was all")
"""


@pytest.fixture(scope="module")
def gcloud(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    return Gcloud(service, tmp_path_factory.mktemp("gcloud"))


def create(gcloud: Gcloud, *arguments: str) -> str:
    """Create a job by flags; its id."""
    name = gcloud.run(*JOBS, "create", "--format=value(name)", *arguments).stdout.strip()
    assert name.startswith(f"projects/{PROJECT}/locations/{REGION}/customJobs/"), name
    return name.rsplit("/", 1)[1]


def described(gcloud: Gcloud, job_id: str) -> dict[str, Any]:
    return json.loads(gcloud.run(*JOBS, "describe", job_id, "--format=json").stdout)


class Talk:
    """A job of three replicas whose log gcloud follows while the other tests of this file go on."""

    def __init__(self, gcloud: Gcloud, output: Output, job_id: str, directory: Path) -> None:
        self.gcloud, self.output, self.job_id = gcloud, output, job_id
        self._directory = directory

    def go_on(self) -> None:
        (self._directory / "go-on").touch()


@pytest.fixture(scope="module", autouse=True)
def talk(gcloud: Gcloud, service: Service) -> Iterator[Talk]:
    directory = Path(service.extra["buckets"]) / BUCKET / "talk"
    directory.mkdir()
    job_id = create(
        gcloud,
        "--display-name=talk",
        f"--worker-pool-spec={CONTAINER}",
        f"--worker-pool-spec={CONTAINER},replica-count=2",
        "--command=python3,-c",
        f"--args=^|^{_TALKER}",
    )
    for view in service.watch(job_id):
        if view["state"] == "RUNNING":
            break
    with gcloud.started(*JOBS, "stream-logs", job_id, "--polling-interval=1") as output:
        yield Talk(gcloud, output, job_id, directory)


def test_create_by_flags_describe_and_list(gcloud: Gcloud, service: Service) -> None:
    job_id = create(
        gcloud,
        "--display-name=by-flags",
        f"--worker-pool-spec={CONTAINER}",
        "--worker-pool-spec=",
        "--worker-pool-spec=",
        f"--worker-pool-spec={CONTAINER}",
        "--command=python3,-c",
        "--args=^|^import sys; print('out', sys.argv[1:])|--rate=0.1|in $(CLOUD_ML_REGION)",
        "--labels=suite=vertex,kind=flags",
    )
    service.finish(job_id)
    assert service.lines(job_id, "workerpool0-0")[-1] == f"out ['--rate=0.1', 'in {REGION}']"
    job = described(gcloud, job_id)
    assert (job["state"], job["displayName"]) == ("JOB_STATE_SUCCEEDED", "by-flags")
    assert job["labels"] == {"suite": "vertex", "kind": "flags"}
    primary, workers, servers, evaluators = job["jobSpec"]["workerPoolSpecs"]
    assert primary["replicaCount"] == "1"
    assert primary["containerSpec"]["imageUri"] == SKLEARN
    # Positions that were skipped stay where they are.
    assert (workers, servers, evaluators) == ({}, {}, primary)
    # A filter is applied by gcloud itself, to what the service lists (spec/clients#filters).
    listed = gcloud.run(
        *JOBS,
        "list",
        "--filter=labels.kind=flags AND state=JOB_STATE_SUCCEEDED",
        "--format=value(displayName)",
    )
    assert listed.stdout.split() == ["by-flags"]


def test_gcloud_storage_inside_a_job(service: Service) -> None:
    """spec/clients#inside-jobs: samples copy with gcloud from inside; spec/program#storage: with nothing set
    up."""
    script = f"echo weights > w && gcloud storage cp w gs://{BUCKET}/inside/w"
    script += f" && cat /gcs/{BUCKET}/inside/w"
    container = {"imageUri": SKLEARN, "command": ["sh", "-c", script]}
    job_id = submit(service, custom_job(worker_pool(containerSpec=container)))
    view = service.finish(job_id)
    lines = service.lines(job_id)
    assert view["state"] == "SUCCEEDED", (view.get("error"), lines)
    assert lines[-1] == "weights"


def test_cancel(gcloud: Gcloud, service: Service) -> None:
    """spec/lifecycle#cancel: an accepted cancel ends in CANCELLED."""
    job_id = submit(service, container_job("import signal; signal.pause()"))
    cancelled = gcloud.run(*JOBS, "cancel", job_id)
    assert "has been sent" in cancelled.stderr
    service.finish(job_id)
    job = service.call("GET", f"{CUSTOM_JOBS}/{job_id}")
    assert (job["state"], job["error"]["code"]) == ("JOB_STATE_CANCELLED", 1)


def test_stream_logs_shows_every_line_of_a_running_job_in_order(
    talk: Talk, service: Service
) -> None:
    """spec/clients#log-pages, spec/clients#stream-logs: nothing missing, nothing twice, nothing out of order,
    over several pages.

    Started on a running job it reads the job's state once and never ends by itself, so it is killed.
    """
    for replica in range(3):
        assert str(LINES - 1) in talk.output.until(f"line {LINES - 1}"), replica
    talk.go_on()
    service.finish(talk.job_id)
    # Under load a worker's keeper may read its last lines after the primary's has read the very last one.
    for replica in range(3):
        assert str(LINES + 9) in talk.output.until(f"line {LINES + 9}"), replica
    if not any("that was all" in line for line in talk.output.lines):
        talk.output.until("that was all")
    seen: dict[str, list[str]] = {}
    for line in talk.output.lines:
        fields = line.split("\t")
        if len(fields) == 4 and fields[3].startswith("line "):
            severity, _, task, message = fields
            assert severity == "INFO"
            seen.setdefault(task, []).append(message)
    expected = [f"line {number}" for number in range(LINES + 10)]
    assert set(seen) == {"workerpool0-0", "workerpool1-0", "workerpool1-1"}
    for task, messages in seen.items():
        assert messages == expected, task
