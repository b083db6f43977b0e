"""Faults of a cluster while a service runs jobs on it: nodes, networks and Slurm's daemons. All jobs succeed
from their checkpoints, and no program runs twice."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import commons, gate
from tests.e2e.job_history import PRIMARY, WORKER, JobHistory, history_of, pools, until
from tests.e2e.processes import new_mark
from tests.e2e.running import Service, submit
from tests.slurm.lab import SlurmLab
from tests.slurm.services import WHOLE_NODE, configure, service_on

__all__ = ["commons", "gate"]


class Site:
    """A lab and its service."""

    def __init__(self, lab: SlurmLab, service: Service) -> None:
        self.lab = lab
        self.service = service

    def node_of(self, job_id: str) -> str:
        """Return the current node of the job's worker."""
        view = self.service.call("GET", f"/trainshed/v1/jobs/{job_id}")
        return next(shown["node"] for shown in view["replicas"] if shown["id"] == WORKER)


@pytest.fixture(scope="module")
def shared_site(slurm_lab: SlurmLab) -> Iterator[Site]:
    directory = configure(slurm_lab, "faults", "grace = 2")
    with service_on(slurm_lab, directory) as service:
        yield Site(slurm_lab, service)


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    yield shared_site
    states = dict.fromkeys(shared_site.lab.nodes, ("idle", "mixed", "allocated"))
    shared_site.lab.await_states(states, 40)


TRAINING_PROGRAM = """
import json, os, pathlib, time
kept = pathlib.Path('/gcs/trainshed', {key!r}, os.environ['HOSTNAME'])
kept.parent.mkdir(exist_ok=True)
fresh = kept.with_suffix('.fresh')
step = int(kept.read_text()) if kept.exists() else 0
task = json.loads(os.environ['CLUSTER_SPEC'])
port = task['cluster']['workerpool1'][0].split(':')[1]
print('at', step, os.environ['HOSTNAME'], port, flush=True)
if step:
    open({gate!r}, 'w').close()
    print('resumed', flush=True)
while True:
    step += 1
    fresh.write_text(str(step))
    fresh.replace(kept)
    if step == 3:
        print('trained', flush=True)
    time.sleep(0.05)
"""
"""A worker that counts its steps in the bucket, and opens the gate when it continues from a stored step."""


RESOLVING_PROGRAM = """
import json, os, socket
open({gate!r}).read()
(worker,) = json.loads(os.environ['CLUSTER_SPEC'])['cluster']['workerpool1']
host, port = worker.split(':')
print('finds', socket.gethostbyname(host), port, flush=True)
"""
"""A primary that finally prints the address to which the worker's initial hostname resolves."""


def start_training(site: Site, gate: Path) -> str:
    """Start a job, wait until its worker has trained for a while, and return its id."""
    mark = new_mark()
    worker = TRAINING_PROGRAM.format(key=mark, gate=str(gate))
    primary = RESOLVING_PROGRAM.format(gate=str(gate))
    job_id = submit(site.service, pools(primary, worker, mark=mark, machine=WHOLE_NODE))
    until(site.service.follow(job_id, WORKER), "trained")
    return job_id


def check_resumed(site: Site, job_id: str) -> JobHistory:
    """Check that the job resumed from its checkpoint after one loss of its worker, with the same hostname."""
    history = history_of(site.service, job_id)
    assert history.state == "SUCCEEDED", history.public
    lines = [line.split() for line in site.service.lines(job_id, WORKER) if line.startswith("at ")]
    (_, first, host, port), (_, second, *again) = lines
    assert int(first) == 0 < int(second) and [host, port] == again
    assert history.starts == {PRIMARY: 1, WORKER: 2}
    address = site.lab.address(nodes(history)[-1])
    assert site.service.lines(job_id, PRIMARY)[-1] == f"finds {address} {port}"
    return history


def nodes(history: JobHistory) -> list[str]:
    """Return the nodes on which the worker was started, in order."""
    places = [entry["details"] for entry in history.of_kind("replica_started")]
    return [place["node"] for place in places if place["replica"] == WORKER]


def test_job_resumes_from_checkpoint_after_node_power_loss(site: Site, gate: Path) -> None:
    job_id = start_training(site, gate)
    node = site.node_of(job_id)
    site.lab.kill_node(node)
    try:
        history = check_resumed(site, job_id)
    finally:
        site.lab.boot(node)
    first, second = nodes(history)
    assert first == node != second
    (verdict,) = history.verdicts
    assert (verdict.rule, verdict.effect) == ("node_failed", "replica_restarts")
    assert any(f"node {node} is gone" in entry["message"] for entry in history.of_kind("replica_lost"))


def test_job_moves_from_a_drained_node(site: Site, gate: Path) -> None:
    """The program gets SIGTERM and its grace period. It resumes from the checkpoint on another node with the
    same hostname, without using a retry of the job."""
    job_id = start_training(site, gate)
    node = site.node_of(job_id)
    site.lab.drain(node, "a fan is loud")
    try:
        history = check_resumed(site, job_id)
    finally:
        site.lab.resume(node)
    first, second = nodes(history)
    assert first == node != second
    (entry,) = history.of_kind("replica_asked_to_leave")
    assert entry["message"] == f"{WORKER} must leave {node}: a fan is loud."
    (left, *_) = [e for e in history.of_kind("replica_exited") if e["details"]["replica"] == WORKER]
    assert left["details"]["signal"] == signal.SIGTERM
    assert [verdict.effect for verdict in history.verdicts] == ["replica_restarts"]
    assert history.of_kind("verdict")[0]["details"]["cause"] == "left"
