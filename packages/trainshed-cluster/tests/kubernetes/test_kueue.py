"""Jobs in Kueue's queue, with the whole service on a real API server, by the rights of deploy/kubernetes and
no others. Kueue's part is `kueue`'s."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.running import CUSTOM_JOBS, Service, submit
from tests.e2e.stories import PRIMARY, WORKER, pools, story, timeline, until
from tests.kubernetes.kueue import GROUP, SCHEDULER, Kueue
from tests.kubernetes.lab import KubernetesLab
from tests.kubernetes.test_cluster import DEPLOY
from tests.kubernetes.whole import STAYS, configure, service_on, start_again
from tests.slurm.nodes import until as asked_until

pytestmark = pytest.mark.kubernetes


class Site:
    """The service and the queue that its jobs wait in."""

    def __init__(self, kueue: Kueue, service: Service, config: Path) -> None:
        self.kueue = kueue
        self.service = service
        self._config = config

    def submit(self, gate: str, replicas: int = 1) -> str:
        """A job that ends when the gate is open."""
        return submit(self.service, pools(*[STAYS.format(gate=gate)] * replicas))

    def open(self, gate: str) -> None:
        self.service.put("trainshed", gate, b"open")

    def await_running(self, job_id: str, replica: str = PRIMARY) -> None:
        until(self.service.follow(job_id, replica), "runs")

    def await_workloads(self, count: int) -> list[dict[str, Any]]:
        for _ in asked_until(f"{count} workloads", 60):
            if len(found := self.kueue.workloads()) == count:
                return sorted(found, key=lambda one: one["metadata"]["creationTimestamp"])
        raise AssertionError

    def await_nothing(self) -> None:
        """Neither a workload nor a Pod is left."""
        self.await_workloads(0)
        for _ in asked_until("the end of its Pods", 60):
            if not self.kueue.pods():
                return

    def await_told(self, job_id: str, words: str) -> str:
        for _ in asked_until(f"{words!r} on the timeline", 60):
            for entry in timeline(self.service, job_id):
                if words in entry["message"]:
                    return entry["message"]
        raise AssertionError

    def start_again(self) -> None:
        self.service.terminate()
        self.service = start_again(self.service, self._config)


@pytest.fixture(scope="module")
def rights(kubernetes_lab: KubernetesLab) -> Iterator[None]:
    """Of deploy/kubernetes, given to a user who may do nothing else."""
    files = (DEPLOY / "rbac.yaml", DEPLOY / "kueue" / "rbac.yaml")
    documents = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    user = {"kind": "User", "name": "trainshed", "apiGroup": "rbac.authorization.k8s.io"}
    for one in documents:
        if "subjects" in one:
            one["subjects"] = [user]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    kubernetes_lab.kubectl("apply", "-n", "default", "-f", "-", given=given)
    yield
    kubernetes_lab.kubectl("delete", "--wait=false", "-n", "default", "-f", "-", given=given)


@pytest.fixture(scope="module")
def site(
    kubernetes_lab: KubernetesLab, rights: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("kueue")
    config = configure(
        kubernetes_lab,
        place / "service",
        "grace = 2",
        queue="kueue",
        local_queue="training",
        scheduler=SCHEDULER,
        kubeconfig=str(kubernetes_lab.service_kubeconfig),
    )
    with (
        Kueue(kubernetes_lab, quota=2).running() as kueue,
        service_on(kubernetes_lab, config) as service,
    ):
        site = Site(kueue, service, config)
        yield site
        if site.service is not service and site.service.process.poll() is None:
            site.service.terminate()
    kubernetes_lab.clear()


def test_a_job_is_one_workload_and_the_next_one_waits_for_its_quota(site: Site) -> None:
    first = site.submit("first", 2)
    for replica in (PRIMARY, WORKER):
        site.await_running(first, replica)
    [workload] = site.await_workloads(1)
    assert workload["spec"]["queueName"] == "training"
    assert workload["spec"]["podSets"] == [
        {"name": "workerpool0", "count": 1},
        {"name": "workerpool1", "count": 1},
    ]
    second = site.submit("second")
    said = site.await_told(second, "Kueue has not admitted the job to queue training yet")
    assert "insufficient unused quota for pods (Pending); number 1 in its queue" in said
    [waiting] = site.kueue.pods(site.await_workloads(2)[1]["metadata"]["name"])
    site.start_again()
    site.open("first")
    assert story(site.service, first).state == "SUCCEEDED"
    # Its quota is free as soon as it is over, and the Pod that waited before the restart runs.
    site.await_running(second)
    [running] = site.await_workloads(1)
    [pod] = site.kueue.pods(running["metadata"]["name"])
    assert pod["metadata"]["uid"] == waiting["metadata"]["uid"]
    site.open("second")
    told = story(site.service, second)
    assert told.state == "SUCCEEDED" and told.begun == {PRIMARY: 1}
    site.await_nothing()


def test_a_pod_that_is_lost_is_followed_by_one_of_its_group(
    site: Site, kubernetes_lab: KubernetesLab
) -> None:
    job_id = site.submit("third", 2)
    for replica in (PRIMARY, WORKER):
        site.await_running(job_id, replica)
    [workload] = site.await_workloads(1)
    first, _ = site.kueue.pods()
    kubernetes_lab.kubectl("delete", "pod", first["metadata"]["name"], "--wait=false")
    pods: list[dict[str, Any]] = []
    # It is made when the last one is seen to have ended, which this old kubelet looks at once a minute.
    for _ in asked_until("another Pod in its place", 150):
        pods = site.kueue.pods()
        if len(pods) == 2 and first["metadata"]["uid"] not in [p["metadata"]["uid"] for p in pods]:
            break
    assert {pod["metadata"]["labels"][GROUP] for pod in pods} == {workload["metadata"]["name"]}
    assert site.await_workloads(1)[0]["metadata"]["uid"] == workload["metadata"]["uid"]
    site.open("third")
    assert story(site.service, job_id).state == "SUCCEEDED"
    assert site.kueue.excess == 0
    site.await_workloads(0)


def test_what_kueue_preempts_waits_for_the_next_admission(site: Site) -> None:
    job_id = site.submit("fourth")
    site.await_running(job_id)
    [workload] = site.await_workloads(1)
    site.kueue.give(0)
    site.kueue.preempt(workload["metadata"]["name"])
    site.await_told(job_id, "insufficient unused quota for pods (Pending)")
    site.kueue.give(2)
    site.open("fourth")
    told = story(site.service, job_id)
    assert told.state == "SUCCEEDED" and told.begun[PRIMARY] >= 1
    assert {verdict.rule for verdict in told.verdicts} == {"cluster_preempted"}
    site.await_workloads(0)


def test_a_job_that_is_cancelled_leaves_the_queue(site: Site) -> None:
    site.kueue.give(0)
    job_id = site.submit("never")
    site.await_told(job_id, "Kueue has not admitted the job")
    site.service.call("POST", f"{CUSTOM_JOBS}/{job_id}:cancel", {})
    assert story(site.service, job_id).state == "CANCELLED"
    site.await_nothing()
    site.kueue.give(2)
