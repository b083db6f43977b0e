"""Container images of jobs as images of their Pods. They contain no Python, and their default commands are
read from a registry."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.runtimes import rootfs
from tests.contract.runtimes.registry import Registry
from tests.e2e.job_history import PRIMARY, history_of
from tests.e2e.running import Service, custom_job, submit, worker_pool
from tests.kubernetes.lab import KubernetesLab
from tests.kubernetes.services import configure, service_on

pytestmark = pytest.mark.kubernetes

SCRIPT = 'echo "$GREETING from $PWD" "$@"; echo "as $(id -u)"; test ! -e /usr/bin/python3 && echo bare'
"""A shell script in the image."""
IMAGE_CONFIG = {
    "Entrypoint": ["/bin/sh", "-c", SCRIPT, "says"],
    "Cmd": ["by itself"],
    "Env": ["GREETING=hello", "PATH=/bin", "LD_LIBRARY_PATH=/opt/theirs"],
    "WorkingDir": "/home/ada",
}


class Site:
    """The service with two images with the same files. `known`: its registry responds. `unknown`: its
    registry does not."""

    def __init__(self, service: Service, registry: Registry) -> None:
        self.service = service
        self.known = f"{registry.host}/team/bare:1"
        self.unknown = "registry.invalid/team/bare:1"


@pytest.fixture(scope="module")
def site(kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("images")
    registry = Registry()
    registry.put("team/bare:1", [], **IMAGE_CONFIG)
    rootfs.with_programs(directory / "bare.tar")
    for name in (f"{registry.host}/team/bare:1", "registry.invalid/team/bare:1"):
        kubernetes_lab.load(name, directory / "bare.tar", IMAGE_CONFIG)
    config = configure(
        kubernetes_lab, directory / "service", insecure_registries=[registry.host], run_as=1000, cache=""
    )
    with service_on(kubernetes_lab, config) as service:
        yield Site(service, registry)
    registry.close()
    kubernetes_lab.clear()


def job(image: str, **container: Any) -> dict[str, Any]:
    return custom_job(worker_pool(containerSpec={"imageUri": image, **container}))


def test_image_without_python_runs_its_default_command(site: Site) -> None:
    """The program has the image's directory and variables, and the operator's user. Arguments replace CMD and
    are not interpreted."""
    first = submit(site.service, job(site.known))
    second = submit(site.service, job(site.known, args=["$$(HOME)", "$UNSET", "$$"]))
    assert history_of(site.service, first).state == "SUCCEEDED", history_of(site.service, first).public
    lines = site.service.lines(first, PRIMARY)
    assert "hello from /home/ada by itself" in lines and {"as 1000", "bare"} <= set(lines)
    assert history_of(site.service, second).state == "SUCCEEDED"
    assert "hello from /home/ada $(HOME) $UNSET $$" in site.service.lines(second, PRIMARY)


def test_job_without_a_command_fails_when_the_image_registry_is_unreadable(site: Site) -> None:
    own = ["/bin/sh", "-c", 'echo "$GREETING, $LD_LIBRARY_PATH, $(pwd)"']
    history = history_of(site.service, job_id := submit(site.service, job(site.unknown, command=own)))
    assert history.state == "SUCCEEDED", history.public
    assert "hello, /opt/theirs, /home/ada" in site.service.lines(job_id, PRIMARY)
    refused = history_of(site.service, submit(site.service, job(site.unknown)))
    assert refused.state == "FAILED"
    assert "(ENTRYPOINT and CMD) is unknown" in refused.public["error"]["message"]
