"""Where jobs of a whole service go: by machine type to partitions, by region to clusters, and elsewhere when
there is nothing for them (docs/slurm.md). Two partitions of one Slurm stand for two clusters."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.running import CUSTOM_JOBS, Service, container_job, submit
from tests.e2e.stories import story
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


def a_job(machine: str = "n4-highcpu-2", script: str = "pass", **labels: str) -> dict[str, Any]:
    body = container_job(script)
    body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["machineType"] = machine
    if labels:
        named = {name.replace("_", "-"): text for name, text in labels.items()}
        body["labels"] = {f"trainshed-fallback-{name}": text for name, text in named.items()}
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


def test_a_job_that_fits_in_no_partition_of_its_cluster_goes_on_to_the_next_region(
    service: Service,
) -> None:
    told = story(
        service,
        submit(service, a_job("n1-highmem-32", regions="us-east1", machine_types="n4-highcpu-2")),
    )
    assert told.state == "SUCCEEDED"
    (fell,) = told.of_kind("fallback")
    assert fell["message"].startswith(
        "The job takes n4-highcpu-2 in us-central1 now, choice 2 of 4: "
    )
    assert "the largest node of partition hi with features new has 16" in fell["message"]
    drained = service.call("GET", "/trainshed/v1/nodes")["nodes"][1:]
    for node in drained:
        service.call("POST", f"/trainshed/v1/nodes/{node['name']}:drain", {})
    try:
        job_id = submit(service, a_job(regions="us-east1", after="0"))
        moved = story(service, job_id)
    finally:
        for node in drained:
            service.call("POST", f"/trainshed/v1/nodes/{node['name']}:undrain", {})
    assert moved.state == "SUCCEEDED" and node_of(service, job_id) == "east.node1"
    (fell,) = moved.of_kind("fallback")
    assert "in us-east1 now, choice 2 of 2: has waited" in fell["message"]
    assert "west.node2 is drained" in fell["message"]
