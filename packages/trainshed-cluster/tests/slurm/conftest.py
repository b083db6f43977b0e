"""One Slurm cluster for the tests of a run (of each worker of it), and one service on it for those that do it
no harm."""

from collections.abc import Iterator

import pytest

from tests.e2e.running import Service, common_place
from tests.slurm.lab import SlurmLab, why_not
from tests.slurm.whole import configure, service_on


@pytest.fixture(scope="session")
def slurm_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """Its nodes are up and idle; a test leaves them so."""
    reason = why_not()
    if reason:
        pytest.skip(f"NOT TESTED: the Slurm engine: {reason}")
    with SlurmLab(tmp_path_factory.mktemp("slurm"), [common_place()]) as lab:
        yield lab


@pytest.fixture(scope="session")
def slurm_service(slurm_lab: SlurmLab) -> Iterator[Service]:
    directory = configure(slurm_lab, "shared", "grace = 1\nmemory_per_replica = 256\n")
    with service_on(slurm_lab, directory) as started:
        yield started
