"""`gcloud ai custom-jobs`, unmodified (spec/clients#recipes): create, stream-logs, list, cancel, describe;
and gcloud inside a job.
"""

import json
from pathlib import Path

import pytest

from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import CUSTOM_JOBS, REGION, SKLEARN, Service, custom_job, submit, worker_pool

pytestmark = [pytest.mark.gcloud, needs_gcloud]

BUCKET = "trainshed"
JOBS = ("ai", "custom-jobs")
CONTAINER = f"machine-type=n1-standard-4,container-image-uri={SKLEARN}"
LINES = 340
"""Lines of each of three replicas before the pause: together more than a page of 1,000."""

_TALKER = f"""
import pathlib, signal, sys, time

print("has", sys.argv[1:])
for number in range({LINES}):
    print("line", number, flush=True)
while not pathlib.Path("/gcs/{BUCKET}/talk/go-on").exists():
    time.sleep(0.02)
for number in range({LINES}, {LINES} + 10):
    print("line", number, flush=True)
signal.pause()
"""


def test_gcloud_creates_follows_lists_and_cancels_a_job(service: Service, tmp_path: Path) -> None:
    """spec/clients#log-pages, spec/clients#stream-logs: no missing, duplicate or reordered line over several
    pages. spec/lifecycle#cancel: an accepted cancel ends in CANCELLED.
    """
    gcloud = Gcloud(service, tmp_path)
    name = gcloud.run(
        *(*JOBS, "create", "--format=value(name)", "--display-name=talk"),
        f"--worker-pool-spec={CONTAINER}",
        "--worker-pool-spec=",
        f"--worker-pool-spec={CONTAINER},replica-count=2",
        "--command=python3,-c",
        f"--args=^|^{_TALKER}|--rate=0.1|in $(CLOUD_ML_REGION)",
        "--labels=suite=vertex,kind=flags",
    ).stdout.strip()
    parent, _, job_id = name.rpartition("/")
    assert parent == CUSTOM_JOBS.removeprefix("/v1/")
    next(view for view in service.watch(job_id) if view["state"] == "RUNNING")
    # For a running job it reads the job's state once and never exits, so it is killed.
    with gcloud.start(*JOBS, "stream-logs", job_id, "--polling-interval=1") as output:
        for replica in range(3):
            assert str(LINES - 1) in output.until(f"line {LINES - 1}"), replica
        service.put(BUCKET, "talk/go-on", b"")
        for replica in range(3):
            assert str(LINES + 9) in output.until(f"line {LINES + 9}"), replica
    seen: dict[str, list[str]] = {}
    for line in output.lines:
        fields = line.split("\t")
        if len(fields) == 4 and fields[3].startswith(("has ", "line ")):
            severity, _, task, message = fields
            assert severity == "INFO"
            seen.setdefault(task, []).append(message)
    expected = [f"has ['--rate=0.1', 'in {REGION}']"]
    expected += [f"line {number}" for number in range(LINES + 10)]
    assert set(seen) == {"workerpool0-0", "workerpool2-0", "workerpool2-1"}
    for task, messages in seen.items():
        assert messages == expected, task

    # gcloud applies filters itself to the service's list (spec/clients#filters).
    chosen = "--filter=labels.kind=flags AND state=JOB_STATE_RUNNING"
    listed = gcloud.run(*JOBS, "list", chosen, "--format=value(displayName)")
    assert listed.stdout.split() == ["talk"]
    assert "has been sent" in gcloud.run(*JOBS, "cancel", job_id).stderr
    service.finish(job_id)
    job = json.loads(gcloud.run(*JOBS, "describe", job_id, "--format=json").stdout)
    assert (job["state"], job["error"]["code"]) == ("JOB_STATE_CANCELLED", 1)
    assert (job["displayName"], job["labels"]) == ("talk", {"suite": "vertex", "kind": "flags"})
    primary, workers, servers = job["jobSpec"]["workerPoolSpecs"]
    assert (primary["replicaCount"], servers["replicaCount"]) == ("1", "2")
    assert primary["containerSpec"] == servers["containerSpec"]
    assert primary["containerSpec"]["imageUri"] == SKLEARN
    # A skipped position stays in place.
    assert workers == {}


def test_gcloud_storage_commands_succeed_inside_a_job(service: Service) -> None:
    """spec/clients#inside-jobs: samples copy with gcloud from inside; spec/program#storage: without
    configuration.
    """
    script = f"echo weights > w && gcloud storage cp w gs://{BUCKET}/inside/w"
    script += f" && cat /gcs/{BUCKET}/inside/w"
    container = {"imageUri": SKLEARN, "command": ["sh", "-c", script]}
    job_id = submit(service, custom_job(worker_pool(containerSpec=container)))
    view = service.finish(job_id)
    lines = service.lines(job_id)
    assert view["state"] == "SUCCEEDED", (view.get("error"), lines)
    assert lines[-1] == "weights"
