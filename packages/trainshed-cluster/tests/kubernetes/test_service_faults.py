"""What befalls a cluster while a whole service has jobs on it: nodes, networks, Kubernetes' own processes,
Pods, the service itself. In the end each job has succeeded, from its checkpoint, and nothing ran twice."""

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.processes import new_mark
from tests.e2e.running import container_job, submit
from tests.e2e.stories import PRIMARY, Story, story_of, telling, until
from tests.kubernetes.lab import KubernetesLab, manifest
from tests.kubernetes.whole import Site, await_condition, configure, service_on, settle

pytestmark = pytest.mark.kubernetes

TRAINS = """
import os, time
from google.cloud import storage
bucket = storage.Client().bucket('trainshed')
kept, gate = bucket.blob({key!r}), bucket.blob({key!r} + '-gate')
step = int(kept.download_as_bytes()) if kept.exists() else 0
print('at', step, os.environ['HOSTNAME'], flush=True)
while not gate.exists():
    step += 1
    kept.upload_from_string(str(step))
    if step == 3:
        print('trained', flush=True)
    if step % 10 == 0:
        print('step', step, flush=True)
    time.sleep(0.1)
"""
"""Counts its steps in the bucket until the gate is open, and goes on from there."""


class School(Site):
    """Its jobs train."""

    def training(self) -> str:
        """A job that has trained for a while; its id."""
        job_id = self.submit()
        until(self.service.follow(job_id, PRIMARY), "trained")
        return job_id

    def submit(self) -> str:
        key = new_mark()
        self.gate = f"{key}-gate"
        return submit(self.service, container_job(telling(TRAINS.format(key=key))))

    def moved_on(self, job_id: str, seconds: float = 90) -> Story:
        """The job went on from its checkpoint after its program had been lost once, with the same name."""
        for view in self.service.watch(job_id, seconds):
            if (
                view["replicas"][0]["incarnation"] == 2
                and view["replicas"][0]["state"] == "RUNNING"
            ):
                break
        story = self.finished(job_id)
        lines = [line.split() for line in self.service.lines(job_id, PRIMARY) if line[:3] == "at "]
        (_, first, host), (_, second, again) = lines
        assert int(first) == 0 < int(second) and host == again
        assert story.begun == {PRIMARY: 2}
        return story

    def undisturbed(self, job_id: str) -> None:
        story = self.finished(job_id)
        assert story.begun == {PRIMARY: 1}
        assert not story.verdicts

    def node_of(self, job_id: str) -> str:
        [replica] = self.service.call("GET", f"/trainshed/v1/jobs/{job_id}")["replicas"]
        return replica["node"]


@pytest.fixture(scope="module")
def opened(
    kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[School]:
    config = configure(kubernetes_lab, tmp_path_factory.mktemp("faults") / "service", "grace = 2")
    with service_on(kubernetes_lab, config) as service:
        yield School(kubernetes_lab, service)


@pytest.fixture
def site(opened: School) -> Iterator[School]:
    yield opened
    settle(opened.lab, opened.service)


def nodes(story: Story) -> list[str]:
    """On which it was started, one after the other."""
    return [entry["details"]["node"] for entry in story.of_kind("replica_started")]


def test_a_cordoned_node_is_maintenance(site: School) -> None:
    """SIGTERM and a grace, then on from the checkpoint on another node, with the same name."""
    job_id = site.training()
    node = site.node_of(job_id)
    site.lab.kubectl("cordon", node)
    story = site.moved_on(job_id)
    first, second = nodes(story)
    assert first == node != second
    [entry] = story.of_kind("replica_asked_to_leave")
    assert entry["message"] == f"{PRIMARY} must leave {node}: it is cordoned."
    [left, *_] = story.of_kind("replica_exited")
    assert left["details"]["signal"] == signal.SIGTERM
    assert story.of_kind("verdict")[0]["details"]["cause"] == "left"


def test_what_runs_does_not_notice_kubernetes_own_failures(site: School) -> None:
    """etcd hangs, the API server is killed: programs and their lines go on; what is submitted meanwhile
    begins when it is back."""
    job_id = site.training()
    site.lab.pause("etcd")
    site.lab.stop("kube-apiserver")
    lines = site.service.follow(job_id, PRIMARY)
    before = next(line for line in lines if line.startswith("step "))
    assert next(line for line in lines if line.startswith("step ")) != before
    waiting = submit(site.service, container_job("print('late')"))
    site.lab.resume("etcd")
    site.lab.start_api()
    site.undisturbed(job_id)
    assert story_of(site.service, waiting).state == "SUCCEEDED"


def test_a_kubelet_that_is_gone_costs_nothing(site: School) -> None:
    """Its node is not heard of, takes nothing new, and what runs there runs on: its agent is heard."""
    job_id = site.training()
    node = site.node_of(job_id)
    site.lab.stop(f"kubelet.{node}")
    try:
        await_condition(site.service, node, "GONE")
        site.undisturbed(job_id)
    finally:
        site.lab.start_kubelet(node)


def test_a_node_that_is_lost_costs_the_steps_since_the_checkpoint(site: School) -> None:
    """Without power its program is dead; one that is cut off: the conformance suite."""
    job_id = site.training()
    node = site.node_of(job_id)
    site.lab.kill_node(node)
    try:
        story = site.moved_on(job_id, 120)
    finally:
        site.lab.revive(node)
    first, second = nodes(story)
    assert first == node != second
    assert [verdict.effect for verdict in story.verdicts] == ["replica_restarts"]


def test_a_namespace_that_is_full_is_waited_for(site: School) -> None:
    site.lab.apply(manifest("ResourceQuota", "none-at-all", hard={"pods": "0"}))
    try:
        job_id = site.submit()
        site.told(job_id, "namespace default admits no more")
    finally:
        site.lab.kubectl("delete", "resourcequota", "none-at-all")
    until(site.service.follow(job_id, PRIMARY), "trained")
    site.undisturbed(job_id)
