"""What keeps a Pod from running, and what ends it, with the whole service on it: each is a cause of its own
on the timeline, what clients are told, and what the failure table makes of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.processes import new_mark
from tests.e2e.running import container_job, submit, trainshed
from tests.e2e.stories import PRIMARY, Story, Verdict, story_of, telling, until
from tests.kubernetes.lab import IMAGE, KubernetesLab, manifest
from tests.kubernetes.whole import Site, await_condition, configure, service_on, settle

pytestmark = pytest.mark.kubernetes

FILLS_SHM = """
with open('/dev/shm/filling', 'wb') as file:
    for _ in range(2000):
        file.write(bytes(1 << 20))
"""
"""Files in memory count as the Pod's, and as no program's."""
FILLS_DISK = """
import time
with open('filling', 'wb') as file:
    for _ in range({mib}):
        file.write(bytes(1 << 20))
time.sleep(600)
"""


@pytest.fixture(scope="module")
def opened(
    kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    config = configure(
        kubernetes_lab, tmp_path_factory.mktemp("rows") / "service", pull_minutes=0.2, grace=1.0
    )
    with service_on(kubernetes_lab, config) as service:
        yield Site(kubernetes_lab, service)
    kubernetes_lab.clear()


@pytest.fixture
def site(opened: Site) -> Iterator[Site]:
    yield opened
    settle(opened.lab, opened.service)


def described(site: Site, job_id: str) -> str:
    """What `trainshed jobs describe` prints, as one line."""
    printed = trainshed("jobs", "describe", job_id, data=site.service.data).stdout
    return " ".join(printed.split())


def causes(story: Story) -> list[str]:
    """Of all verdicts but the one by which a job succeeds."""
    verdicts = (entry["details"] for entry in story.of_kind("verdict"))
    return [verdict["cause"] for verdict in verdicts if verdict["effect"] != "job_succeeds"]


def test_a_pod_that_the_kernel_ends_for_its_memory_is_out_of_memory(site: Site) -> None:
    job_id = submit(site.service, container_job(FILLS_SHM))
    story = story_of(site.service, job_id)
    assert story.state == "FAILED"
    assert story.verdicts == [Verdict("out_of_memory", "job_fails")]
    assert causes(story) == ["out_of_memory"]
    assert "ran out of memory" in story.message


def test_a_pod_beyond_its_limit_of_disk_is_out_of_disk(site: Site) -> None:
    """A limit that the namespace gives all Pods that ask for none."""
    limits = [{"type": "Container", "default": {"ephemeral-storage": "100Mi"}}]
    site.lab.apply(manifest("LimitRange", "disk", limits=limits))
    try:
        job_id = submit(site.service, container_job(FILLS_DISK.format(mib=200)))
        story = story_of(site.service, job_id)
    finally:
        site.lab.kubectl("delete", "limitrange", "disk")
    assert story.state == "FAILED"
    assert story.verdicts == [Verdict("out_of_disk", "job_fails")]
    assert causes(story) == ["out_of_disk"]
    assert "its files exceeded the size of its disk" in story.message
    assert "usage exceeds the total limit of containers 100Mi (Evicted)" in described(site, job_id)


def test_a_node_that_is_short_of_disk_evicts_and_the_replica_goes_on_elsewhere(site: Site) -> None:
    key = new_mark()
    script = telling(
        f"from google.cloud import storage\n"
        f"been = storage.Client().bucket('trainshed').blob({key!r})\n"
        f"if been.exists(): raise SystemExit\n"
        f"been.upload_from_string('here')\n{FILLS_DISK.format(mib=80)}"
    )
    site.lab.stop("kubelet.node1")
    site.lab.start_kubelet("node1", disk_mib=120)
    try:
        site.lab.kubectl("cordon", "node2")
        for node, condition in (("node1", "READY"), ("node2", "DRAINED")):
            await_condition(site.service, node, condition)
        job_id = submit(site.service, container_job(script))
        until(site.service.follow(job_id, PRIMARY), "begun")
        site.lab.kubectl("uncordon", "node2")
        story = story_of(site.service, job_id)
    finally:
        site.lab.stop("kubelet.node1")
        site.lab.run("node1", ["umount", "-l", str(site.lab.directory / "node1" / "kubelet")])
        site.lab.start_kubelet("node1")
    assert story.state == "SUCCEEDED" and story.begun == {PRIMARY: 2}
    assert causes(story) == ["pod_evicted"]
    [put_out, _] = story.of_kind("verdict")
    assert "was evicted: The node was low on resource: ephemeral-storage" in put_out["message"]
    assert [entry["details"]["node"] for entry in story.of_kind("replica_started")] == [
        "node1",
        "node2",
    ]


def urgent(node: str) -> list[dict[str, Any]]:
    """A Pod that goes before all others and takes nearly all of a node, and its class."""
    container = {
        "name": "urgent",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "1900m"}},
    }
    kind = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
    pod = manifest(
        "Pod",
        "urgent",
        priorityClassName="urgent",
        nodeSelector={"kubernetes.io/hostname": node},
        terminationGracePeriodSeconds=1,
        containers=[container],
    )
    return [kind, pod]


def test_a_pod_that_goes_before_ours_takes_its_place(site: Site) -> None:
    """By this version's scheduler, which deletes the Pod and says nowhere in it why."""
    job_id = site.staying()
    [pod] = site.lab.get("pods", "-l", "app.kubernetes.io/managed-by=trainshed")["items"]
    node = pod["spec"]["nodeName"]
    site.lab.apply(*urgent(node))
    try:
        message = site.told(job_id, "Rule pod_evicted")
        assert f"Pod {pod['metadata']['name']} was deleted, or evicted from its node" in message
        site.told(job_id, "again, for the 2nd time")
    finally:
        site.lab.kubectl("delete", "pod", "urgent")
        site.lab.kubectl("delete", "priorityclass", "urgent")
    story = site.finished(job_id)
    assert causes(story) == ["pod_evicted"]
    assert story.verdicts == [Verdict("pod_evicted", "replica_restarts", budget="1/5")]
    first, second = [entry["details"]["node"] for entry in story.of_kind("replica_started")]
    assert first == node != second


def test_an_image_that_does_not_come_is_waited_for_and_fails_the_job_in_the_end(site: Site) -> None:
    """Of a registry that does not answer."""
    body = container_job("pass")
    container = body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    container |= {"imageUri": "127.0.0.1:9/team/nowhere:1", "command": ["true"]}
    job_id = submit(site.service, body)
    words = "its image 127.0.0.1:9/team/nowhere:1 does not come"
    site.told(job_id, words)
    assert words in described(site, job_id)
    story = story_of(site.service, job_id)
    assert story.state == "FAILED" and story.code == 9
    assert causes(story) == ["rejected"]
    assert words in story.message and "tried for 0.2 minutes" in story.message
    assert "connection refused" in story.message or "ImagePullBackOff" in story.message


def test_a_pod_that_can_be_placed_nowhere_waits_and_runs_when_it_can(
    kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For the volume of a claim that is not there yet, which is the jobs' `cache`."""
    place = tmp_path_factory.mktemp("claim")
    config = configure(kubernetes_lab, place / "service", cache="claim:environments")
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    path = {"path": "/tmp/environments", "type": "DirectoryOrCreate"}
    volume = manifest(
        "PersistentVolume", "environments", **common, capacity={"storage": "10Gi"}, hostPath=path
    )
    asks = {"requests": {"storage": "1Gi"}}
    claim = manifest("PersistentVolumeClaim", "environments", **common, resources=asks)
    with service_on(kubernetes_lab, config) as service:
        site = Site(kubernetes_lab, service)
        job_id = submit(service, container_job("print('came')"))
        message = site.told(job_id, "Kubernetes has not placed Pod")
        assert 'persistentvolumeclaim "environments" not found' in message
        assert 'persistentvolumeclaim "environments" not found' in described(site, job_id)
        try:
            site.lab.apply(volume, claim)
            story = story_of(service, job_id)
            again = story_of(service, submit(service, container_job("print('came')")))
        finally:
            for kind in ("persistentvolumeclaim", "persistentvolume"):
                kubernetes_lab.kubectl("delete", "--wait=false", kind, "environments")
    kubernetes_lab.clear()
    assert story.state == again.state == "SUCCEEDED", story.public
    assert not causes(story)
