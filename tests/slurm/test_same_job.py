"""The same job file, byte for byte, on one machine and on a Slurm cluster: the same result, the same shape of
CLUSTER_SPEC, the same words on the timeline. Through both APIs."""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import (
    CUSTOM_JOBS,
    PROJECT,
    REGION,
    SKLEARN,
    Service,
    container_job,
    running,
)
from tests.e2e.running import submit as submit_container
from tests.e2e.stories import timeline

SUMS = """
import json, os, pathlib, signal, socket, sys
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
            continue
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
print("sum", total, flush=True)
"""
"""The others send the primary a number each, by the address that they are told; it keeps their sum. Its end
is theirs."""

_PROGRAM = {"imageUri": SKLEARN, "command": ["python3", "-c", SUMS]}
CUSTOM_JOB = {
    "displayName": "sums",
    "jobSpec": {
        "baseOutputDirectory": {"outputUriPrefix": "gs://trainshed/same"},
        "workerPoolSpecs": [
            {
                "machineSpec": {"machineType": "n1-standard-4"},
                "replicaCount": str(count),
                "containerSpec": _PROGRAM,
            }
            for count in (1, 2)
        ],
    },
}
_ROLE = {"imageUri": SKLEARN, "containerCommand": ["python3", "-c", SUMS]}
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
_ITS_OWN = {"createTime", "startTime", "endTime", "updateTime", "etag"}
"""Fields of a job that no two have in common."""


@dataclass(frozen=True)
class Seen:
    """What a job was, without what no two runs have in common: numbers of jobs, ports, nodes, times."""

    resource: dict[str, Any]
    result: str
    specs: list[Any]
    story: list[str]


def submit(service: Service, path: str, file: Path) -> dict[str, Any]:
    request = urllib.request.Request(
        service.rest + path,
        data=file.read_bytes(),
        headers={"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def seen(service: Service, path: str, file: Path) -> Seen:
    """Run the job of a file to its end."""
    created = submit(service, path, file)
    is_ml = "jobId" in created
    name = f"projects/{PROJECT}/jobs/{created['jobId']}" if is_ml else created["name"]
    job_id = urllib.parse.quote(name, safe="") if is_ml else name.rpartition("/")[2]
    view = service.finish(job_id, 60)
    resource = service.call("GET", f"/v1/{name}")
    lines = [service.lines(job_id, replica["id"]) for replica in view["replicas"]]
    return Seen(
        {key: bare(json.dumps(resource[key])) for key in resource if key not in _ITS_OWN},
        written(service, "same-ml/sum.txt" if is_ml else "same/model/sum.txt"),
        [
            json.loads(bare(line.removeprefix("spec ")))
            for each in lines
            for line in each
            if line.startswith("spec ")
        ],
        sorted(
            f"{entry['kind']}: {bare(entry['message'])}"
            for entry in timeline(service, job_id)
            # Only the first job of a runtime in the life of a service is told that.
            if entry["kind"] != "preparing"
        ),
    )


def written(service: Service, name: str) -> str:
    """What the program left in the bucket."""
    quoted = urllib.parse.quote(name, safe="")
    request = urllib.request.Request(
        f"{service.rest}/storage/v1/b/trainshed/o/{quoted}?alt=media",
        headers={"Authorization": f"Bearer {service.token}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


def bare(text: str) -> str:
    """Without what no two runs have in common."""
    text = re.sub(r"\b\d{16,20}\b", "JOB", text)
    text = re.sub(r"(cmle-training-[a-z0-9-]+?-)[0-9a-f]{6,}(-\d+):\d+", r"\1ID\2:PORT", text)
    text = re.sub(r"\bnode\d\b|\blocal\b", "NODE", text)
    return re.sub(r"\d+(\.\d+)? (ms|s|seconds?)\b", "SOME TIME", text)


@pytest.fixture(scope="module")
def services(
    slurm_service: Service, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Service]]:
    with running(tmp_path_factory.mktemp("same") / "data") as here:
        for service in (here, slurm_service):
            # Whoever comes first is told of the runtime's being built, which is not of the job.
            service.finish(submit_container(service, container_job("pass")), 120)
        yield here, slurm_service


@pytest.mark.parametrize(
    ("path", "job"),
    [(CUSTOM_JOBS, CUSTOM_JOB), (f"/v1/projects/{PROJECT}/jobs", ML_JOB)],
    ids=["aiplatform", "ml"],
)
def test_the_same_file_is_the_same_job(
    services: tuple[Service, Service], tmp_path: Path, path: str, job: dict[str, Any]
) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job, indent=1))
    here, there = (seen(service, path, file) for service in services)
    assert here.resource["state"] in ('"JOB_STATE_SUCCEEDED"', '"SUCCEEDED"')
    assert here.result == "21"
    assert len(here.specs) == 3
    assert here == there
