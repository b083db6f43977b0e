"""`trainshed down` gives back what the service holds, also what a job that has just ended held."""

import pytest

from tests.e2e.running import container_job, down, start, submit
from tests.slurm.lab import SlurmLab
from tests.slurm.whole import configure

ROUNDS = 10


@pytest.mark.soak  # A race that was seen once; conformance has the rule.
def test_down_right_after_a_jobs_end_leaves_no_allocation(slurm_lab: SlurmLab) -> None:
    directory = configure(slurm_lab, "leaving")
    for turn in range(ROUNDS):
        service = start(directory / "data", "--config", str(directory / "config.toml"))
        job_id = submit(service, container_job("print('done')", pools=(1, turn % 3)))
        assert service.finish(job_id, 120)["state"] == "SUCCEEDED"
        down(service.data)
        service.process.wait()
        left = slurm_lab.slurm("squeue", "-h", "-t", "RUNNING,PENDING,CONFIGURING", "-o", "%j %T")
        assert not left, (turn, left, (service.data / "service.log").read_text()[-3000:])
