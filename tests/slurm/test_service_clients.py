"""What clients do, on a Slurm cluster: the very tests of the local engine (e2e/test_sdk.py), over a
service whose replicas run on the lab's nodes."""

from collections.abc import Iterator

import pytest

from tests.e2e import test_sdk as of_sdk
from tests.e2e.running import Service
from tests.slurm.adopting import adopt
from tests.slurm.lab import SlurmLab
from tests.slurm.whole import configure, service_on

IN_SHORT = {
    "test_run_returns_when_the_job_has_succeeded",
    "test_a_local_script_runs_on_three_replicas",
    "test_submit_then_cancel_then_delete",
}
"""The others ask for less of where replicas run."""


@pytest.fixture(scope="module")
def service(slurm_lab: SlurmLab) -> Iterator[Service]:
    with service_on(slurm_lab, configure(slurm_lab, "sdk")) as started:
        yield started


adopt(globals(), of_sdk, at_length={name for name in vars(of_sdk) if name not in IN_SHORT})
