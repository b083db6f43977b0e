"""No allocation is left to run when nobody needs it any more (docs/slurm.md, "What happens on failures"): the
service ends while Slurm's controller is away, or for good; the controller comes back with what it had
forgotten."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import commons, gate
from tests.e2e.running import Service, submit, trainshed
from tests.e2e.stories import BEGUN, PRIMARY, WORKER, at, pools, until
from tests.slurm.lab import SlurmLab
from tests.slurm.whole import WHOLE_NODE, await_given_back, configure, held_by
from tests.slurm.whole import service_on as service_on_lab

__all__ = ["commons", "gate"]

LEASE = 5.0
STATED = LEASE + 40.0
"""Seconds after which nothing is held, from the last moment at which the service was heard and Slurm's
controller answered not: the end of the programs and the pauses between two tries are in it."""


@pytest.fixture
def service(slurm_lab: SlurmLab, request: pytest.FixtureRequest) -> Iterator[Service]:
    directory = configure(slurm_lab, request.node.name[:40], "grace = 2", lease=LEASE)
    with service_on_lab(slurm_lab, directory) as started:
        yield started


def begun(service: Service, gate: Path) -> str:
    """A job of two replicas on two nodes, which wait at the gate."""
    job_id = submit(service, pools(at(gate), at(gate), machine=WHOLE_NODE))
    for replica in (PRIMARY, WORKER):
        until(service.follow(job_id, replica), BEGUN)
    return job_id


def down(service: Service, *options: str) -> "subprocess.CompletedProcess[str]":
    """Of which the exit status and what it says are looked at."""
    done = trainshed("down", *options, data=service.data, status=None)
    service.process.wait(60)
    return done


def test_what_cannot_be_given_back_is_told_and_its_agents_do_it(
    slurm_lab: SlurmLab, service: Service, gate: Path
) -> None:
    """`down` while Slurm's controller is away."""
    job_id = begun(service, gate)
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
    assert held_by(slurm_lab, service.data)
    await_given_back(slurm_lab, service.data, STATED)


def test_a_controller_that_crashes_after_down_does_not_hold_again_what_was_given_back(
    slurm_lab: SlurmLab, service: Service, gate: Path
) -> None:
    begun(service, gate)
    slurm_lab.await_saved()
    done = down(service)
    slurm_lab.stop_controller(signal.SIGKILL)
    slurm_lab.start_controller()
    assert done.returncode == 0, done.stderr
    assert not held_by(slurm_lab, service.data)


def test_a_service_that_is_gone_for_good_leaves_nothing(
    slurm_lab: SlurmLab, service: Service, gate: Path
) -> None:
    begun(service, gate)
    service.kill()
    assert held_by(slurm_lab, service.data)
    await_given_back(slurm_lab, service.data, STATED)
