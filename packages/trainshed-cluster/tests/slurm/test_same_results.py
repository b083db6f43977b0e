"""The same job file on one machine and on a Slurm cluster yields the same result, the same shape of
CLUSTER_SPEC, and the same lines. Both APIs are tested."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.running import (
    CUSTOM_JOBS,
    PROJECT,
    REGION,
    SKLEARN,
    Service,
    container_job,
    custom_job,
    running,
    submit,
    worker_pool,
)
from tests.slurm.lab import SlurmLab
from tests.slurm.services import configure, service_on

SUM_PROGRAM = """
import json, os, pathlib, signal, socket, sys, time
spec = json.loads(os.environ["CLUSTER_SPEC"])
own, cluster = spec["task"], spec["cluster"]
(first, *_) = pools = sorted(cluster)
print("spec", json.dumps(spec, sort_keys=True), flush=True)
host, port = cluster[first][0].split(":")
others = sum(len(each) for each in cluster.values()) - 1
if (own["type"], own["index"]) != (first, 0):
    while True:
        try:
            server = socket.create_connection((host, int(port)))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    server.sendall(str(10 + own["index"]).encode())
    signal.pause()
server, total = socket.create_server(("", int(port))), 0
for _ in range(others):
    worker, _ = server.accept()
    total += int(worker.recv(9))
place = os.environ.get("AIP_MODEL_DIR") or sys.argv[-1] + "/"
model = pathlib.Path(place.replace("gs://", "/gcs/"))
model.mkdir(parents=True, exist_ok=True)
(model / "sum.txt").write_text(str(total))
while not (model / "seen-running").exists():
    time.sleep(0.05)
print("sum", total, flush=True)
"""
"""Each worker sends a number to the primary's address, and the primary stores the sum. The workers end with
the primary, after the service has reported that all of them run (`seen`)."""

_CONTAINER = {"imageUri": SKLEARN, "command": ["python3", "-c", SUM_PROGRAM]}
CUSTOM_JOB = custom_job(*(worker_pool(count, "n1-standard-4", containerSpec=_CONTAINER) for count in (1, 2)))
CUSTOM_JOB["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": "gs://trainshed/same-sums"}
_ROLE = {"imageUri": SKLEARN, "containerCommand": ["python3", "-c", SUM_PROGRAM]}
ML_JOB = {
    "jobId": "sums",
    "trainingInput": {
        "scaleTier": "CUSTOM",
        "region": REGION,
        "masterType": "n1-standard-4",
        "masterConfig": _ROLE,
        "workerType": "n1-standard-4",
        "workerCount": "2",
        "workerConfig": _ROLE,
        "jobDir": "gs://trainshed/same-ml",
    },
}
_UNIQUE_FIELDS = {"createTime", "startTime", "endTime", "updateTime", "etag"}
"""Fields of a job that are unique."""


def run_job(service: Service, path: str, file: Path, result: str) -> tuple[dict[str, Any], bytes, list[str]]:
    """Run the job of a file to its end. Return its resource and its replicas' output, without unique values,
    and the object `result`."""
    kind = {"Content-Type": "application/json"}
    created = service.ask("POST", path, file.read_bytes(), headers=kind).json
    is_ml = "jobId" in created
    name = f"projects/{PROJECT}/jobs/{created['jobId']}" if is_ml else created["name"]
    view: dict[str, Any] = {}
    for view in service.watch(quote(name, safe="") if is_ml else name.rpartition("/")[2], 600):
        if view["state"] == "RUNNING":
            # A node may report a start only after the end of a program on another node. A job that has
            # finished by then would never count as running, so primaries wait.
            service.put("trainshed", f"{result.rpartition('/')[0]}/seen-running", b"")
    resource = service.call("GET", f"/v1/{name}")
    lines = [service.lines(view["jobId"], replica["id"]) for replica in view["replicas"]]
    return (
        {
            key: without_unique_values(json.dumps(resource[key]))
            for key in resource
            if key not in _UNIQUE_FIELDS
        },
        service.read("trainshed", result),
        sorted(without_unique_values(line) for of_replica in lines for line in of_replica),
    )


def without_unique_values(text: str) -> str:
    """Remove the numbers of jobs, ports, nodes and times."""
    text = re.sub(r"\b\d{16,20}\b", "JOB", text)
    text = re.sub(r"(cmle-training-[a-z0-9-]+?-)[0-9a-f]{6,}(-\d+)(:\d+)?", r"\1ID\2:PORT", text)
    text = re.sub(r"MASTER_PORT \d+", "MASTER_PORT PORT", text)
    text = re.sub(r"\bnode\d\b|\blocal\b", "NODE", text)
    return re.sub(r"\d+(\.\d+)? (ms|s|seconds?)\b", "SOME TIME", text)


@pytest.fixture(scope="module")
def services(
    slurm_lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Service]]:
    directory = configure(slurm_lab, "same", "grace = 1\nmemory_per_replica = 256\n")
    with running(tmp_path_factory.mktemp("same") / "data") as here, service_on(slurm_lab, directory) as there:
        for service in (here, there):
            # The first job's log contains the build of the runtime, which does not depend on the job.
            service.finish(submit(service, container_job("pass")), 120)
        yield here, there


@pytest.mark.parametrize(
    ("path", "job", "result"),
    [
        (CUSTOM_JOBS, CUSTOM_JOB, "same-sums/model/sum.txt"),
        (f"/v1/projects/{PROJECT}/jobs", ML_JOB, "same-ml/sum.txt"),
    ],
    ids=["aiplatform", "ml"],
)
def test_job_file_has_the_same_result_on_the_local_and_the_slurm_engine(
    services: tuple[Service, Service], tmp_path: Path, path: str, job: dict[str, Any], result: str
) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job, indent=1))
    here, there = (run_job(service, path, file, result) for service in services)
    resource, total, lines = there
    assert resource["state"] in ('"JOB_STATE_SUCCEEDED"', '"SUCCEEDED"')
    assert here == there
    assert total == b"21"
    assert sum(line.startswith("spec ") for line in lines) == 3
