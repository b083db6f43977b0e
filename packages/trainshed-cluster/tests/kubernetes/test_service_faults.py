"""Faults of a cluster while a service runs jobs on it: nodes, networks, Kubernetes' components, Pods, and the
service. All jobs succeed from their checkpoints, and no program runs twice."""

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.job_history import PRIMARY, JobHistory, history_of, reporting_start, until
from tests.e2e.processes import new_mark
from tests.e2e.running import container_job, submit
from tests.kubernetes.lab import KubernetesLab, manifest
from tests.kubernetes.services import Site, await_condition, clean_up, configure, service_on

pytestmark = pytest.mark.kubernetes

TRAINING_PROGRAM = """
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
"""Counts its steps in the bucket until the gate is open, and continues from the stored step."""


class TrainingSite(Site):
    """A site whose jobs train."""

    def start_training(self) -> str:
        """Start a job, wait until it has trained for a while, and return its id."""
        job_id = self.submit()
        until(self.service.follow(job_id, PRIMARY), "trained")
        return job_id

    def submit(self) -> str:
        key = new_mark()
        self.gate = f"{key}-gate"
        return submit(self.service, container_job(reporting_start(TRAINING_PROGRAM.format(key=key))))

    def check_resumed(self, job_id: str, seconds: float = 90) -> JobHistory:
        """Check that the job resumed from its checkpoint after one loss, with the same hostname."""
        for view in self.service.watch(job_id, seconds):
            if view["replicas"][0]["incarnation"] == 2 and view["replicas"][0]["state"] == "RUNNING":
                break
        history = self.finish_job(job_id)
        lines = [line.split() for line in self.service.lines(job_id, PRIMARY) if line[:3] == "at "]
        (_, first, host), (_, second, again) = lines
        assert int(first) == 0 < int(second) and host == again
        assert history.starts == {PRIMARY: 2}
        return history

    def check_undisturbed(self, job_id: str) -> None:
        history = self.finish_job(job_id)
        assert history.starts == {PRIMARY: 1}
        assert not history.verdicts

    def node_of(self, job_id: str) -> str:
        [replica] = self.service.call("GET", f"/trainshed/v1/jobs/{job_id}")["replicas"]
        return replica["node"]


@pytest.fixture(scope="module")
def shared_site(
    kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrainingSite]:
    config = configure(kubernetes_lab, tmp_path_factory.mktemp("faults") / "service", "grace = 2")
    with service_on(kubernetes_lab, config) as service:
        yield TrainingSite(kubernetes_lab, service)


@pytest.fixture
def site(shared_site: TrainingSite) -> Iterator[TrainingSite]:
    yield shared_site
    clean_up(shared_site.lab, shared_site.service)


def nodes(history: JobHistory) -> list[str]:
    """Return the nodes on which it was started, in order."""
    return [entry["details"]["node"] for entry in history.of_kind("replica_started")]


def test_job_moves_from_a_cordoned_node(site: TrainingSite) -> None:
    """The program gets SIGTERM and its grace period. It resumes from the checkpoint on another node with the
    same hostname."""
    job_id = site.start_training()
    node = site.node_of(job_id)
    site.lab.kubectl("cordon", node)
    history = site.check_resumed(job_id)
    first, second = nodes(history)
    assert first == node != second
    [entry] = history.of_kind("replica_asked_to_leave")
    assert entry["message"] == f"{PRIMARY} must leave {node}: it is cordoned."
    [left, *_] = history.of_kind("replica_exited")
    assert left["details"]["signal"] == signal.SIGTERM
    assert history.of_kind("verdict")[0]["details"]["cause"] == "left"


def test_programs_continue_during_control_plane_failures(site: TrainingSite) -> None:
    """etcd hangs and the API server is killed. Programs and their logs continue. Jobs that are submitted in
    the meantime start afterwards."""
    job_id = site.start_training()
    site.lab.pause("etcd")
    site.lab.stop("kube-apiserver")
    lines = site.service.follow(job_id, PRIMARY)
    before = next(line for line in lines if line.startswith("step "))
    assert next(line for line in lines if line.startswith("step ")) != before
    waiting = submit(site.service, container_job("print('late')"))
    site.lab.resume("etcd")
    site.lab.start_api()
    site.check_undisturbed(job_id)
    assert history_of(site.service, waiting).state == "SUCCEEDED"


def test_program_continues_when_its_kubelet_stops(site: TrainingSite) -> None:
    """The node becomes unreachable and gets no new jobs. Its programs continue, because their agent
    responds."""
    job_id = site.start_training()
    node = site.node_of(job_id)
    site.lab.stop(f"kubelet.{node}")
    try:
        await_condition(site.service, node, "GONE")
        site.check_undisturbed(job_id)
    finally:
        site.lab.start_kubelet(node)


def test_job_resumes_from_checkpoint_after_node_loss(site: TrainingSite) -> None:
    """The node has no power, so the program is dead. The conformance suite tests disconnected nodes."""
    job_id = site.start_training()
    node = site.node_of(job_id)
    site.lab.kill_node(node)
    try:
        history = site.check_resumed(job_id, 120)
    finally:
        site.lab.boot(node)
    first, second = nodes(history)
    assert first == node != second
    assert [verdict.effect for verdict in history.verdicts] == ["replica_restarts"]


def test_job_waits_for_namespace_quota(site: TrainingSite) -> None:
    site.lab.apply(manifest("ResourceQuota", "none-at-all", hard={"pods": "0"}))
    try:
        job_id = site.submit()
        site.await_timeline_entry(job_id, "namespace default admits no more")
    finally:
        site.lab.kubectl("delete", "resourcequota", "none-at-all")
    until(site.service.follow(job_id, PRIMARY), "trained")
    site.check_undisturbed(job_id)
