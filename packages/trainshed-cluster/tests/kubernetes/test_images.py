"""Container images of jobs as the images of their Pods: without a Python, with what they start by themselves
read from a registry."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.runtimes import rootfs
from tests.contract.runtimes.registry import Registry
from tests.e2e.running import Service, custom_job, submit, worker_pool
from tests.e2e.stories import PRIMARY, story_of
from tests.kubernetes.lab import KubernetesLab
from tests.kubernetes.whole import configure, service_on

pytestmark = pytest.mark.kubernetes

SAYS = (
    'echo "$GREETING from $PWD" "$@"; echo "as $(id -u)"; test ! -e /usr/bin/python3 && echo bare'
)
"""A shell script of the image."""
STARTS = {
    "Entrypoint": ["/bin/sh", "-c", SAYS, "says"],
    "Cmd": ["by itself"],
    "Env": ["GREETING=hello", "PATH=/bin", "LD_LIBRARY_PATH=/opt/theirs"],
    "WorkingDir": "/home/ada",
}


class Site:
    """`known`: of an image whose registry answers; `unknown`: of one whose does not, with the same files."""

    def __init__(self, service: Service, registry: Registry) -> None:
        self.service = service
        self.known = f"{registry.host}/team/bare:1"
        self.unknown = "registry.invalid/team/bare:1"


@pytest.fixture(scope="module")
def site(kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("images")
    registry = Registry()
    registry.put("team/bare:1", [], **STARTS)
    rootfs.with_programs(directory / "bare.tar")
    for name in (f"{registry.host}/team/bare:1", "registry.invalid/team/bare:1"):
        kubernetes_lab.load(name, directory / "bare.tar", STARTS)
    config = configure(
        kubernetes_lab,
        directory / "service",
        insecure_registries=[registry.host],
        run_as=1000,
        cache="",
    )
    with service_on(kubernetes_lab, config) as service:
        yield Site(service, registry)
    registry.close()
    kubernetes_lab.clear()


def job(image: str, **container: Any) -> dict[str, Any]:
    return custom_job(worker_pool(containerSpec={"imageUri": image, **container}))


def test_an_image_without_a_python_runs_what_it_starts_by_itself(site: Site) -> None:
    """With its directory and variables, as the operator's user; arguments in place of CMD are text."""
    first = submit(site.service, job(site.known))
    second = submit(site.service, job(site.known, args=["$$(HOME)", "$UNSET", "$$"]))
    assert story_of(site.service, first).state == "SUCCEEDED", story_of(site.service, first).public
    lines = site.service.lines(first, PRIMARY)
    assert "hello from /home/ada by itself" in lines and {"as 1000", "bare"} <= set(lines)
    assert story_of(site.service, second).state == "SUCCEEDED"
    assert "hello from /home/ada $(HOME) $UNSET $$" in site.service.lines(second, PRIMARY)


def test_what_a_registry_does_not_tell_the_job_has_to(site: Site) -> None:
    own = ["/bin/sh", "-c", 'echo "$GREETING, $LD_LIBRARY_PATH, $(pwd)"']
    story = story_of(site.service, job_id := submit(site.service, job(site.unknown, command=own)))
    assert story.state == "SUCCEEDED", story.public
    assert "hello, /opt/theirs, /home/ada" in site.service.lines(job_id, PRIMARY)
    refused = story_of(site.service, submit(site.service, job(site.unknown)))
    assert refused.state == "FAILED"
    assert "(ENTRYPOINT and CMD) is unknown" in refused.public["error"]["message"]
