"""Jobs of a service that is root are kept apart on nodes (docs/slurm.md, "Who gets what of whom"). Those of
ordinary users, and of users that projects are mapped to: test_ordinary_user.py, test_identity.py."""

import pytest

from tests.e2e.running import Service
from tests.slurm.lab import SlurmLab
from tests.slurm.spies import spied


@pytest.mark.soak  # The levels themselves: e2e/test_hostile.py.
def test_a_job_gets_nothing_of_another_one_of_roots_service(
    slurm_lab: SlurmLab, slurm_service: Service
) -> None:
    assert spied(slurm_lab, slurm_service) == []
