"""Causes that delay or end a Pod, with a whole service. Each has its own cause on the timeline, in the
messages of clients, and in the failure table."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.job_history import PRIMARY, JobHistory, Verdict, history_of, reporting_start, until
from tests.e2e.processes import new_mark
from tests.e2e.running import container_job, submit, trainshed
from tests.kubernetes.lab import IMAGE, KubernetesLab, manifest
from tests.kubernetes.services import Site, await_condition, clean_up, configure, service_on

pytestmark = pytest.mark.kubernetes

SHM_PROGRAM = """
with open('/dev/shm/filling', 'wb') as file:
    for _ in range(2000):
        file.write(bytes(1 << 20))
"""
"""Files in memory count for the Pod, but not for a program."""
DISK_PROGRAM = """
import time
with open('filling', 'wb') as file:
    for _ in range({mib}):
        file.write(bytes(1 << 20))
time.sleep(600)
"""


@pytest.fixture(scope="module")
def shared_site(kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    config = configure(
        kubernetes_lab, tmp_path_factory.mktemp("rows") / "service", pull_minutes=0.2, grace=1.0
    )
    with service_on(kubernetes_lab, config) as service:
        yield Site(kubernetes_lab, service)
    kubernetes_lab.clear()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    yield shared_site
    clean_up(shared_site.lab, shared_site.service)


def description_of(site: Site, job_id: str) -> str:
    """Return the output of `trainshed jobs describe` as one line."""
    printed = trainshed("jobs", "describe", job_id, data=site.service.data).stdout
    return " ".join(printed.split())


def causes(history: JobHistory) -> list[str]:
    """Return the causes of all verdicts except the job's success."""
    verdicts = (entry["details"] for entry in history.of_kind("verdict"))
    return [verdict["cause"] for verdict in verdicts if verdict["effect"] != "job_succeeds"]


def test_kernel_kill_of_a_pod_is_reported_as_out_of_memory(site: Site) -> None:
    job_id = submit(site.service, container_job(SHM_PROGRAM))
    history = history_of(site.service, job_id)
    assert history.state == "FAILED"
    assert history.verdicts == [Verdict("out_of_memory", "job_fails")]
    assert causes(history) == ["out_of_memory"]
    assert "ran out of memory" in history.message


def test_pod_over_its_disk_limit_is_reported_as_out_of_disk(site: Site) -> None:
    """A limit that the namespace sets for Pods without their own."""
    limits = [{"type": "Container", "default": {"ephemeral-storage": "100Mi"}}]
    site.lab.apply(manifest("LimitRange", "disk", limits=limits))
    try:
        job_id = submit(site.service, container_job(DISK_PROGRAM.format(mib=200)))
        history = history_of(site.service, job_id)
    finally:
        site.lab.kubectl("delete", "limitrange", "disk")
    assert history.state == "FAILED"
    assert history.verdicts == [Verdict("out_of_disk", "job_fails")]
    assert causes(history) == ["out_of_disk"]
    assert "its files exceeded the size of its disk" in history.message
    assert "usage exceeds the total limit of containers 100Mi (Evicted)" in description_of(site, job_id)


def test_replica_moves_when_its_node_evicts_pods(site: Site) -> None:
    key = new_mark()
    script = reporting_start(
        f"from google.cloud import storage\n"
        f"been = storage.Client().bucket('trainshed').blob({key!r})\n"
        f"if been.exists(): raise SystemExit\n"
        f"been.upload_from_string('here')\n{DISK_PROGRAM.format(mib=80)}"
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
        history = history_of(site.service, job_id)
    finally:
        site.lab.stop("kubelet.node1")
        site.lab.run("node1", ["umount", "-l", str(site.lab.directory / "node1" / "kubelet")])
        site.lab.start_kubelet("node1")
    assert history.state == "SUCCEEDED" and history.starts == {PRIMARY: 2}
    assert causes(history) == ["pod_evicted"]
    [put_out, _] = history.of_kind("verdict")
    assert "was evicted: The node was low on resource: ephemeral-storage" in put_out["message"]
    assert [entry["details"]["node"] for entry in history.of_kind("replica_started")] == ["node1", "node2"]


def priority_pod(node: str) -> list[dict[str, Any]]:
    """Return a Pod with the highest priority that uses almost all of a node, and its priority class."""
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


def test_replica_restarts_after_preemption_by_a_higher_priority_pod(site: Site) -> None:
    """This version's scheduler deletes the Pod without recording a reason in it."""
    job_id = site.start_waiting_job()
    [pod] = site.lab.get("pods", "-l", "app.kubernetes.io/managed-by=trainshed")["items"]
    node = pod["spec"]["nodeName"]
    site.lab.apply(*priority_pod(node))
    try:
        message = site.await_timeline_entry(job_id, "Rule pod_evicted")
        assert f"Pod {pod['metadata']['name']} was deleted or evicted" in message
        site.await_timeline_entry(job_id, "again, for the 2nd time")
    finally:
        site.lab.kubectl("delete", "pod", "urgent")
        site.lab.kubectl("delete", "priorityclass", "urgent")
    history = site.finish_job(job_id)
    assert causes(history) == ["pod_evicted"]
    assert history.verdicts == [Verdict("pod_evicted", "replica_restarts", budget="1/5")]
    first, second = [entry["details"]["node"] for entry in history.of_kind("replica_started")]
    assert first == node != second


def test_job_fails_if_its_image_cannot_be_pulled_before_the_timeout(site: Site) -> None:
    """The image's registry does not respond."""
    body = container_job("pass")
    container = body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    container |= {"imageUri": "127.0.0.1:9/team/nowhere:1", "command": ["true"]}
    job_id = submit(site.service, body)
    words = "its image 127.0.0.1:9/team/nowhere:1 cannot be pulled"
    site.await_timeline_entry(job_id, words)
    assert words in description_of(site, job_id)
    history = history_of(site.service, job_id)
    assert history.state == "FAILED" and history.code == 9
    assert causes(history) == ["rejected"]
    assert words in history.message and "tried for 0.2 minutes" in history.message
    assert "connection refused" in history.message or "ImagePullBackOff" in history.message


def test_unschedulable_pod_runs_after_its_missing_volume_is_created(
    kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The Pod needs the volume of a missing PersistentVolumeClaim, which the setting `cache` specifies."""
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
        message = site.await_timeline_entry(job_id, "Kubernetes has not placed Pod")
        assert 'persistentvolumeclaim "environments" not found' in message
        assert 'persistentvolumeclaim "environments" not found' in description_of(site, job_id)
        try:
            site.lab.apply(volume, claim)
            history = history_of(service, job_id)
            again = history_of(service, submit(service, container_job("print('came')")))
        finally:
            for kind in ("persistentvolumeclaim", "persistentvolume"):
                kubernetes_lab.kubectl("delete", "--wait=false", kind, "environments")
    kubernetes_lab.clear()
    assert history.state == again.state == "SUCCEEDED", history.public
    assert not causes(history)
