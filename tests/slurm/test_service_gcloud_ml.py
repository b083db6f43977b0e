"""What people do with `gcloud ai-platform`, on a Slurm cluster: the very tests of the local engine
(e2e/test_gcloud_ml.py), over a service whose replicas run on the lab's nodes. Soaks: of the engine they
learn nothing that test_service_gcloud.py and test_same_job.py do not show."""

from collections.abc import Iterator

import pytest

from tests.e2e import test_gcloud_ml as of_gcloud
from tests.e2e.conftest import MAPPED
from tests.e2e.running import Service, common_place
from tests.slurm.adopting import adopt
from tests.slurm.lab import SlurmLab, why_not
from tests.slurm.whole import configure, service_on


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """On nodes that are declared large enough for thirteen machines of 16 CPUs and the GPU of `basic-gpu`."""
    if reason := why_not():
        pytest.skip(f"NOT TESTED: the Slurm engine: {reason}")
    devices = "[engines.slurm.accelerators]\nNVIDIA_TESLA_K80 = 't4'\n"
    place = tmp_path_factory.mktemp("large")
    with SlurmLab.open(place, shown=[common_place()], size=(256, 60_000)) as lab:
        directory = configure(lab, "ml", f"memory_per_replica = 300\n{MAPPED}", devices)
        with service_on(lab, directory) as started:
            yield started


adopt(globals(), of_gcloud)
