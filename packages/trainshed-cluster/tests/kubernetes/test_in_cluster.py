"""The service in a cluster, installed by deploy/chart with only the chart's rights. Jobs run, and survive an
upgrade of the service."""

from collections.abc import Iterator

import pytest

from tests.e2e.job_history import PRIMARY, WORKER, history_of, pools, until
from tests.e2e.running import CACHE, Service, container_job, running, submit
from tests.kubernetes import in_cluster
from tests.kubernetes.in_cluster import NAMESPACE
from tests.kubernetes.lab import KubernetesLab

pytestmark = pytest.mark.kubernetes

COUNTING_PROGRAM = """
import time
for number in range(300):
    print(number, flush=True)
    if number == 5:
        print('counts', flush=True)
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def built_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The environment of the programs. The cluster cannot build it, because it has no network."""
    if not any(CACHE.glob("environments/scikit-learn*slim*")):
        with running(tmp_path_factory.mktemp("building") / "data") as service:
            service.finish(submit(service, container_job("pass")), 300)


@pytest.fixture
def service(
    kubernetes_lab: KubernetesLab, built_environment: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    in_cluster.install(kubernetes_lab)
    try:
        in_cluster.await_ready(kubernetes_lab)
        monkeypatch.setenv("SSL_CERT_FILE", str(in_cluster.authority(kubernetes_lab)))
        yield in_cluster.external_service(kubernetes_lab)
    except BaseException:
        print(in_cluster.describe_service(kubernetes_lab), kubernetes_lab.logs(), sep="\n")
        raise
    finally:
        in_cluster.remove(kubernetes_lab)
        kubernetes_lab.clear()


def test_job_keeps_all_log_lines_across_a_service_upgrade(
    kubernetes_lab: KubernetesLab, service: Service
) -> None:
    """The service runs with its account's rights, as an unprivileged user, on a read-only root file
    system."""
    job_id = submit(service, pools(COUNTING_PROGRAM, COUNTING_PROGRAM))
    until(service.follow(job_id, PRIMARY), "counts")
    [before] = in_cluster.pods(kubernetes_lab)
    kubernetes_lab.kubectl("rollout", "restart", "-n", NAMESPACE, "statefulset/trainshed")
    in_cluster.await_ready(kubernetes_lab, other_than=before["metadata"]["uid"])
    history = history_of(service, job_id)
    assert history.state == "SUCCEEDED", history.public
    assert history.starts == {PRIMARY: 1, WORKER: 1}
    for replica in (PRIMARY, WORKER):
        counted = [line for line in service.lines(job_id, replica) if line.isdigit()]
        assert counted == [str(number) for number in range(300)]
    assert history.of_kind("service_away")
