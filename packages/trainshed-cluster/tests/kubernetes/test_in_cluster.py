"""The service in the cluster by the chart of deploy/chart, with the rights that it gives and no
others: jobs run, and outlast the service's next Pod."""

from collections.abc import Iterator

import pytest

from tests.e2e.running import CACHE, Service, container_job, running, submit
from tests.e2e.stories import PRIMARY, WORKER, pools, story_of, until
from tests.kubernetes import in_cluster
from tests.kubernetes.in_cluster import NAMESPACE
from tests.kubernetes.lab import KubernetesLab

pytestmark = pytest.mark.kubernetes

COUNTS = """
import time
for number in range(300):
    print(number, flush=True)
    if number == 5:
        print('counts', flush=True)
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The environment of the programs, which a cluster without a network cannot build."""
    if not any(CACHE.glob("environments/scikit-learn*slim*")):
        with running(tmp_path_factory.mktemp("building") / "data") as service:
            service.finish(submit(service, container_job("pass")), 300)


@pytest.fixture
def service(
    kubernetes_lab: KubernetesLab, built: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    in_cluster.install(kubernetes_lab)
    try:
        in_cluster.await_ready(kubernetes_lab)
        monkeypatch.setenv("SSL_CERT_FILE", str(in_cluster.authority(kubernetes_lab)))
        yield in_cluster.reached(kubernetes_lab)
    except BaseException:
        print(in_cluster.told(kubernetes_lab), kubernetes_lab.logs(), sep="\n")
        raise
    finally:
        in_cluster.remove(kubernetes_lab)
        kubernetes_lab.clear()


def test_a_job_outlasts_an_upgrade_of_the_service_with_all_its_lines(
    kubernetes_lab: KubernetesLab, service: Service
) -> None:
    """By its account's rights, as an ordinary user, on a root file system that it cannot write to."""
    job_id = submit(service, pools(COUNTS, COUNTS))
    until(service.follow(job_id, PRIMARY), "counts")
    [before] = in_cluster.pods(kubernetes_lab)
    kubernetes_lab.kubectl("rollout", "restart", "-n", NAMESPACE, "statefulset/trainshed")
    in_cluster.await_ready(kubernetes_lab, other_than=before["metadata"]["uid"])
    story = story_of(service, job_id)
    assert story.state == "SUCCEEDED", story.public
    assert story.begun == {PRIMARY: 1, WORKER: 1}
    for replica in (PRIMARY, WORKER):
        counted = [line for line in service.lines(job_id, replica) if line.isdigit()]
        assert counted == [str(number) for number in range(300)]
    assert story.of_kind("service_away")
