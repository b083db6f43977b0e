"""What ends a Pod with the whole service on it: its own cause on the timeline, and what the failure table
makes of it."""

from collections.abc import Iterator

import pytest

from tests.e2e.running import Service, container_job, submit
from tests.e2e.stories import Verdict, story
from tests.kubernetes.lab import KubernetesLab
from tests.kubernetes.whole import configure, service_on

pytestmark = pytest.mark.kubernetes

FILLS_SHM = """
with open('/dev/shm/filling', 'wb') as file:
    for _ in range(2000):
        file.write(bytes(1 << 20))
"""
"""Files in memory count as the Pod's, and as no program's."""


@pytest.fixture(scope="module")
def service(
    kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    config = configure(kubernetes_lab, tmp_path_factory.mktemp("rows") / "service")
    with service_on(kubernetes_lab, config) as service:
        yield service
    kubernetes_lab.clear()


def test_a_pod_that_the_kernel_ends_for_its_memory_is_out_of_memory(service: Service) -> None:
    told = story(service, submit(service, container_job(FILLS_SHM)))
    assert told.state == "FAILED"
    assert told.verdicts == [Verdict("out_of_memory", "job_fails")]
    assert told.of_kind("verdict")[-1]["details"]["cause"] == "out_of_memory"
