"""What Slurm, or somebody with its commands, takes from a job: each loss has its own row of the failure table
(spec/failures#losses-on-a-cluster). A node that fails and one that is drained: test_service_faults.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import commons, gate
from tests.e2e.running import Service, submit
from tests.e2e.stories import BEGUN, PRIMARY, Story, Verdict, at, pools, story_of, until
from tests.slurm.conftest import SPOT
from tests.slurm.lab import CPUS, SlurmLab
from tests.slurm.nodes import until as asked_until

__all__ = ["commons", "gate"]


def begun(
    service: Service, gate: Path, machine: str = "n1-standard-4"
) -> tuple[str, Iterator[str]]:
    """A job whose program waits at the gate; its id, and its log from there on."""
    job_id = submit(service, pools(at(gate), machine=machine))
    log = service.follow(job_id, PRIMARY)
    until(log, BEGUN)
    return job_id, log


def allocation(lab: SlurmLab, job_id: str) -> tuple[str, str]:
    """Its number, and its node."""
    lines = lab.slurm("squeue", "-h", "-t", "RUNNING", "-o", "%i %N %j").splitlines()
    [(number, node, _)] = [line.split() for line in lines if f"-{job_id}-" in line]
    return number, node


def went_on(lab: SlurmLab, service: Service, job_id: str, log: Iterator[str], gate: Path) -> Story:
    """It was begun once more, ended well, and has given back what it had."""
    until(log, BEGUN)
    gate.write_text("")
    story = story_of(service, job_id)
    assert story.state == "SUCCEEDED" and story.begun == {PRIMARY: 2}
    for _ in asked_until("the end of its allocation"):
        if f"-{job_id}-" not in lab.slurm("squeue", "-h", "-o", "%j"):
            break
    return story


def test_an_agent_that_is_killed_is_started_again(
    slurm_lab: SlurmLab, slurm_service: Service, gate: Path
) -> None:
    job_id, log = begun(slurm_service, gate)
    number, _ = allocation(slurm_lab, job_id)
    slurm_lab.slurm("scancel", "--signal=KILL", f"{number}.0")
    story = went_on(slurm_lab, slurm_service, job_id, log, gate)
    assert story.verdicts == [Verdict("agent_lost", "replica_restarts", budget="1/5")]
    [lost] = story.of_kind("replica_lost")
    assert "its agent on node" in lost["message"]


@pytest.mark.soak  # unit/test_reasons.py has how it is told; the row is one of spec/failures' table.
def test_what_slurm_gives_to_a_job_that_goes_before_it_is_waited_for(
    slurm_lab: SlurmLab, slurm_service: Service, gate: Path
) -> None:
    job_id, log = begun(slurm_service, gate, SPOT)
    _, node = allocation(slurm_lab, job_id)
    slurm_lab.slurm("salloc", "--no-shell", "-J", "others", "-w", node, f"-c{CPUS}", "--mem=100")
    try:
        story = went_on(slurm_lab, slurm_service, job_id, log, gate)
    finally:
        slurm_lab.slurm("scancel", "--name=others")
    assert story.verdicts == [Verdict("cluster_preempted", "job_retries", budget="1/6")]
    [lost] = story.of_kind("replica_lost")
    assert "Slurm gave its allocation to a job that goes before it (PREEMPTED)" in lost["message"]
