"""Where jobs of a whole service go: by machine type to partitions, by region to clusters
(docs/slurm.md). Two partitions of one Slurm stand for two clusters."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.running import CUSTOM_JOBS, Service, container_job, submit
from tests.slurm.lab import SlurmLab
from tests.slurm.whole import configure, service_on

_CLUSTERS = """
[engines.slurm.clusters.west]
regions = ["us-central1"]
partition = "main"
constraint = "new"
[[engines.slurm.clusters.west.machines]]
types = ["n1-highmem-*"]
partition = "hi"
constraint = "new"

[engines.slurm.clusters.east]
regions = ["us-east1"]
partition = "tiny"
directory = "/tmp/agents-east"
"""


@pytest.fixture(scope="module")
def service(slurm_lab: SlurmLab) -> Iterator[Service]:
    directory = configure(slurm_lab, "places", "grace = 1", _CLUSTERS)
    with service_on(slurm_lab, directory) as started:
        yield started


def a_job() -> dict[str, Any]:
    body = container_job("pass")
    body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["machineType"] = "n4-highcpu-2"
    return body


def node_of(service: Service, job_id: str) -> str:
    view = service.call("GET", f"/trainshed/v1/jobs/{job_id}")
    return view["replicas"][0]["node"]


def test_a_job_goes_to_the_cluster_of_its_region(service: Service) -> None:
    nodes = service.call("GET", "/trainshed/v1/nodes")["nodes"]
    assert [node["name"] for node in nodes] == ["east.node1", "west.node2", "west.node3"]
    west = submit(service, a_job())
    there = CUSTOM_JOBS.replace("us-central1", "us-east1")
    east = service.call("POST", there, a_job())["name"].rpartition("/")[2]
    for job_id, cluster in ((west, "west"), (east, "east")):
        assert service.finish(job_id)["state"] == "SUCCEEDED"
        assert node_of(service, job_id).startswith(f"{cluster}.")
