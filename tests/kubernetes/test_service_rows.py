"""What ends a Pod, or keeps it from running, with the whole service on it: each its own cause on the
timeline, and what the failure table makes of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Service, container_job, submit
from tests.e2e.stories import PRIMARY, Verdict, story, timeline, until
from tests.kubernetes.lab import IMAGE, KubernetesLab
from tests.kubernetes.test_service_faults import Site, nodes
from tests.kubernetes.whole import configure, service_on
from tests.slurm.nodes import until as asked_until

pytestmark = pytest.mark.kubernetes

FILLS_SHM = """
with open('/dev/shm/filling', 'wb') as file:
    for _ in range(2000):
        file.write(bytes(1 << 20))
"""
"""Files in memory count as the Pod's, and as no program's."""


@pytest.fixture(scope="module")
def opened(
    kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    config = configure(kubernetes_lab, tmp_path_factory.mktemp("rows") / "service", "grace = 2")
    with service_on(kubernetes_lab, config) as service:
        yield Site(kubernetes_lab, config, service)


@pytest.fixture
def site(opened: Site) -> Iterator[Site]:
    yield opened
    opened.lab.await_ready()
    opened.lab.clear()
    for node in opened.lab.nodes:
        opened.await_condition(node, "READY")


def await_told(service: Service, job_id: str, words: str) -> str:
    for _ in asked_until(f"{words!r} on the timeline", 90):
        for entry in timeline(service, job_id):
            if words in entry["message"]:
                return entry["message"]
    raise AssertionError


def apply(lab: KubernetesLab, **document: Any) -> None:
    lab.kubectl("apply", "-f", "-", given=json.dumps(document))


def test_a_pod_that_the_kernel_ends_for_its_memory_is_out_of_memory(site: Site) -> None:
    told = story(site.service, submit(site.service, container_job(FILLS_SHM)))
    assert told.state == "FAILED"
    assert told.verdicts == [Verdict("out_of_memory", "job_fails")]
    assert told.of_kind("verdict")[-1]["details"]["cause"] == "out_of_memory"


def test_what_a_pod_of_higher_priority_displaces_goes_on_elsewhere(site: Site) -> None:
    apply(
        site.lab,
        apiVersion="scheduling.k8s.io/v1",
        kind="PriorityClass",
        metadata={"name": "urgent"},
        value=1000,
    )
    job_id = site.training()
    node = site.node_of(job_id)
    container = {
        "name": "urgent",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "1900m"}},
    }
    spec = {
        "priorityClassName": "urgent",
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    apply(site.lab, apiVersion="v1", kind="Pod", metadata={"name": "urgent"}, spec=spec)
    try:
        told = site.moved_on(job_id)
    finally:
        site.lab.kubectl("delete", "pod/urgent", "priorityclass/urgent", "--grace-period=1")
    first, second = nodes(told)
    assert first == node != second
    assert [verdict.effect for verdict in told.verdicts] == ["replica_restarts"]
    assert told.of_kind("verdict")[0]["details"]["cause"] == "left"


def test_an_image_that_does_not_come_is_waited_for_and_then_fails_the_job(
    kubernetes_lab: KubernetesLab, tmp_path: Path
) -> None:
    own: dict[str, Any] = {"image_pull_policy": "IfNotPresent", "pull_minutes": 0.3}
    config = configure(kubernetes_lab, tmp_path / "service", **own)
    job = container_job("print('never')")
    container = job["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    container |= {"imageUri": "registry.invalid/none:1", "command": ["true"]}
    with service_on(kubernetes_lab, config) as service:
        job_id = submit(service, job)
        said = await_told(service, job_id, "its image registry.invalid/none:1 does not come")
        assert "ErrImagePull" in said or "ImagePullBackOff" in said
        told = story(service, job_id)
    kubernetes_lab.clear()
    assert told.state == "FAILED"
    assert told.verdicts == [Verdict("launch_rejected", "job_fails", "")]
    assert "it was tried for 0.3 minutes" in told.message


def test_a_pod_that_cannot_be_placed_says_why_until_it_can(
    kubernetes_lab: KubernetesLab, tmp_path: Path
) -> None:
    """For want of a volume that the settings name."""
    config = configure(kubernetes_lab, tmp_path / "service", cache="claim:environments")
    with service_on(kubernetes_lab, config) as service:
        job_id = submit(service, container_job("print('placed', flush=True)"))
        said = await_told(service, job_id, "Kubernetes has not placed Pod")
        assert "persistentvolumeclaim" in said and "environments" in said
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        apply(
            kubernetes_lab,
            apiVersion="v1",
            kind="PersistentVolume",
            metadata={"name": "environments"},
            spec={
                **spec,
                "capacity": {"storage": "10Gi"},
                "hostPath": {"path": "/tmp/environments"},
            },
        )
        apply(
            kubernetes_lab,
            apiVersion="v1",
            kind="PersistentVolumeClaim",
            metadata={"name": "environments"},
            spec={**spec, "resources": {"requests": {"storage": "10Gi"}}},
        )
        until(service.follow(job_id, PRIMARY), "placed")
        assert story(service, job_id).state == "SUCCEEDED"
    kubernetes_lab.clear()
    for one in ("persistentvolumeclaim", "persistentvolume"):
        kubernetes_lab.kubectl("delete", one, "environments")
