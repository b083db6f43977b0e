"""One Slurm cluster for the tests of a run (of each worker of it)."""

from collections.abc import Iterator

import pytest

from tests.e2e.running import common_place
from tests.slurm.lab import SlurmLab, why_not


@pytest.fixture(scope="session")
def slurm_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """Its nodes are up and idle; a test leaves them so."""
    reason = why_not()
    if reason:
        pytest.skip(f"NOT TESTED: the Slurm engine: {reason}")
    with SlurmLab(tmp_path_factory.mktemp("slurm"), [common_place()]) as lab:
        yield lab
