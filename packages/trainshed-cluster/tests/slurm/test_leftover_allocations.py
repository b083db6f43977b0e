"""No allocation remains without an attempt (docs/slurm.md, "What happens on failures"). The service ends
while Slurm's controller is down, or is killed, or the controller loses its recent state."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import commons, gate
from tests.e2e.job_history import PRIMARY, STARTED, WORKER, pools, until, waiting_at
from tests.e2e.running import Service, submit, trainshed
from tests.slurm.lab import SlurmLab
from tests.slurm.services import WHOLE_NODE, allocations_of, await_released, configure
from tests.slurm.services import service_on as service_on_lab

__all__ = ["commons", "gate"]

LEASE = 5.0
RELEASE_TIMEOUT = LEASE + 40.0
"""Seconds after which no allocation exists, from the last contact with the service and the last failure of
Slurm's controller. This includes the end of the programs and the pauses between two attempts."""


@pytest.fixture
def service(slurm_lab: SlurmLab, request: pytest.FixtureRequest) -> Iterator[Service]:
    directory = configure(slurm_lab, request.node.name[:40], "grace = 2", lease=LEASE)
    with service_on_lab(slurm_lab, directory) as started:
        yield started


def start_job(service: Service, gate: Path) -> str:
    """Start a job of two replicas on two nodes, which wait for the gate."""
    job_id = submit(service, pools(waiting_at(gate), waiting_at(gate), machine=WHOLE_NODE))
    for replica in (PRIMARY, WORKER):
        until(service.follow(job_id, replica), STARTED)
    return job_id


def down(service: Service, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run `trainshed down`, and return its exit status and output."""
    done = trainshed("down", *options, data=service.data, status=None)
    service.process.wait(60)
    return done


def test_agents_release_allocations_that_the_service_could_not_release(
    slurm_lab: SlurmLab, service: Service, gate: Path
) -> None:
    """`down` while Slurm's controller is down."""
    job_id = start_job(service, gate)
    slurm_lab.await_saved()
    slurm_lab.stop_controller()
    try:
        done = down(service)
        again = trainshed("down", "--release", data=service.data, status=None)
    finally:
        slurm_lab.start_controller()
    for ending in (done, again):
        assert ending.returncode == 1
        assert "1 allocation may still exist" in ending.stderr
        assert f"-{job_id}-1-0: squeue: " in ending.stderr and "scancel" in ending.stderr
    assert allocations_of(slurm_lab, service.data)
    await_released(slurm_lab, service.data, RELEASE_TIMEOUT)


def test_controller_crash_does_not_restore_released_allocations(
    slurm_lab: SlurmLab, service: Service, gate: Path
) -> None:
    start_job(service, gate)
    slurm_lab.await_saved()
    done = down(service)
    slurm_lab.stop_controller(signal.SIGKILL)
    slurm_lab.start_controller()
    assert done.returncode == 0, done.stderr
    assert not allocations_of(slurm_lab, service.data)


def test_killed_service_leaves_no_allocations(slurm_lab: SlurmLab, service: Service, gate: Path) -> None:
    start_job(service, gate)
    service.kill()
    assert allocations_of(slurm_lab, service.data)
    await_released(slurm_lab, service.data, RELEASE_TIMEOUT)
