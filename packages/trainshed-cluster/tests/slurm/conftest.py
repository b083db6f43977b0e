"""One Slurm cluster for each worker of a test run."""

from collections.abc import Iterator

import pytest

from tests.e2e.running import common_place
from tests.slurm.lab import SlurmLab, unavailable_reason


@pytest.fixture(scope="session")
def slurm_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """A cluster whose nodes are up and idle before and after each test."""
    reason = unavailable_reason()
    if reason:
        pytest.skip(f"NOT TESTED: the Slurm engine: {reason}")
    with SlurmLab(tmp_path_factory.mktemp("slurm"), [common_place()]) as lab:
        yield lab
