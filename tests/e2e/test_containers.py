"""Jobs in container images, from the request to the program's view (spec/submit#vertex-jobs, spec/program,
spec/runtimes#images; facts/program#arguments).

The images contain this machine's files and are imported with podman into a separate store.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.contract.runtimes.podman import podman, storage
from tests.contract.runtimes.registry import Registry, insecure
from tests.contract.runtimes.rootfs import with_programs
from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.packages import wheel
from tests.e2e.running import CUSTOM_JOBS, ROOT, Service, custom_job, running, submit, worker_pool

OWN_PATHS = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PIP_CERT", "PIP_FIND_LINKS")
SHELL = 'ENTRYPOINT ["/bin/sh", "-c"]'


@dataclass
class AttackSetup:
    """A running service, and podman with a separate store and an allowed registry."""

    service: Service
    registry: Registry
    tars: dict[bool, Path]
    images: set[str] = field(default_factory=set[str])

    def image(self, name: str, *changes: str, python: bool = False) -> str:
        """Create an image with that name and configuration; return its reference."""
        reference = f"localhost/{name}:1"
        options = [f"--change={change}" for change in changes]
        if reference not in self.images:
            podman("import", *options, str(self.tars[python]), reference)
        self.images.add(reference)
        return reference

    def run(self, program: dict[str, Any]) -> tuple[str, list[str]]:
        """Run a job of one replica; return its final state and its lines."""
        uid = submit(self.service, custom_job(worker_pool(**program)))
        state = self.service.finish(uid, seconds=120)["state"]
        return state, self.service.lines(uid, "workerpool0-0")


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackSetup]:
    place = tmp_path_factory.mktemp("setup")
    tars = {False: place / "small.tar", True: place / "python.tar"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(storage(place)))
        for name in OWN_PATHS:
            patch.delenv(name, raising=False)
        registry = Registry()
        patch.setenv("CONTAINERS_REGISTRIES_CONF", str(insecure(registry, place / "registries")))
        (place / "auth.json").write_text("{}")
        patch.setenv("REGISTRY_AUTH_FILE", str(place / "auth.json"))
        podman("info")
        for python, tar in tars.items():
            with_programs(tar, python=python)
        with running(place / "data", settings=f'cache = "{place}/cache"\n') as service:
            yield AttackSetup(service, registry, tars)
        podman("rmi", "--all", "--force")
        registry.close()


def test_program_in_a_container_sees_the_files_of_its_image_and_the_buckets_of_its_job(
    setup: AttackSetup,
) -> None:
    """spec/program#hostnames: entry point and CMD of the image, its variables and directory; hostname and
    buckets of the job.
    """
    image = setup.image(
        "seen",
        SHELL,
        'CMD ["echo $GREETING; pwd; hostname; ls /gcs; echo $HOME; ls /; echo $CLUSTER_SPEC"]',
        "ENV GREETING=hello",
        "WORKDIR /srv/deep",
    )
    state, lines = setup.run({"containerSpec": {"imageUri": image}})
    assert state == "SUCCEEDED", lines
    greeting, place, host, bucket, home, *names, cluster = lines
    assert (greeting, place, home) == ("hello", "/srv/deep", "/root")
    assert host.startswith("cmle-training-workerpool0-")
    assert host in cluster
    assert bucket == "trainshed"
    # No files of the machine: only the image's directories and those of every program (opt contains gsutil).
    assert "boot" not in names
    assert {"bin", "gcs", "tmp", "proc"} <= set(names)


def test_program_runs_as_the_images_user_and_owns_its_files(setup: AttackSetup) -> None:
    """spec/program: the image's user, with the home directory of the image."""
    image = setup.image(
        "ada",
        SHELL,
        'CMD ["id -u; id -g; echo $HOME; touch mine /tmp/t && stat -c %u mine; touch /etc/x || echo no"]',
        "USER ada:crew",
        "WORKDIR /home/ada",
    )
    state, lines = setup.run({"containerSpec": {"imageUri": image}})
    assert state == "SUCCEEDED", lines
    user, group, home, owner, *rest = lines
    assert (home, owner) == ("/home/ada", user)
    if user == "0":
        # An unprivileged user's service has one user, which programs see as root.
        assert os.geteuid() != 0
    else:
        assert (user, group) == ("1000", "2000")
        assert "no" in rest  # its standard error may arrive later


def test_packages_are_installed_in_a_custom_executor_image(setup: AttackSetup) -> None:
    """spec/program#arguments: packages installed first, then `python3 -m MODULE`, with the Python of the
    image.
    """
    image = setup.image("python", "ENV PATH=/usr/local/bin:/bin", python=True)
    content = wheel("shout", "import sys; print('shouted', sys.argv[1:])")
    setup.service.put("trainshed", "shout-0.1-py3-none-any.whl", content)
    state, lines = setup.run(
        {
            "pythonPackageSpec": {
                "executorImageUri": image,
                "packageUris": ["gs://trainshed/shout-0.1-py3-none-any.whl"],
                "pythonModule": "shout",
                "args": ["--loud", "1"],
            }
        }
    )
    assert state == "SUCCEEDED", lines
    assert lines[0] == "Installing the package: gs://trainshed/shout-0.1-py3-none-any.whl"
    assert lines[-1] == "shouted ['--loud', '1']"


@pytest.mark.gcloud
@needs_gcloud
def test_gcloud_packages_a_directory_and_its_image_runs(
    setup: AttackSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/submit, facts/packaging#autopackaging: `local-package-path`, with podman under the name docker, as
    in docs/containers.md.
    """
    base = setup.image("python", "ENV PATH=/usr/local/bin:/bin", python=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "task.py").write_text("import sys; print('packed', sys.argv[1:])")
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    guide = (ROOT / "docs" / "containers.md").read_text()
    docker.write_text("#!" + guide.partition("```sh\n#!")[2].partition("```")[0])
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}{os.pathsep}{os.environ['PATH']}")
    # Where podman cannot run containers, it can still build them.
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    pool = (
        f"machine-type=n1-standard-4,replica-count=1,executor-image-uri={base},"
        f"local-package-path={tmp_path}/code,script=task.py"
    )
    gcloud = Gcloud(setup.service, tmp_path / "gcloud")
    create = ("ai", "custom-jobs", "create", "--display-name=packed", "--format=value(name)")
    name = gcloud.run(*create, f"--worker-pool-spec={pool}", "--args=--x,1", timeout=180).stdout
    uid = name.strip().splitlines()[-1].rpartition("/")[2]
    assert setup.service.finish(uid, seconds=120)["state"] == "SUCCEEDED", setup.service.lines(uid)
    assert setup.service.lines(uid, "workerpool0-0")[-1] == "packed ['--x', '1']"


def test_job_fails_without_registry_credentials_and_is_retried_on_a_registry_outage(
    setup: AttackSetup,
) -> None:
    """spec/failures#service-failures: without permission the job fails immediately with instructions. An
    unreachable registry costs an attempt. The test's registry has no TLS, as docs/containers.md describes.
    """
    registry = setup.registry
    program = {"Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo let in"]}
    registry.put("team/trainer:v1", [setup.tars[False].read_bytes()], **program)
    body = custom_job(worker_pool(containerSpec={"imageUri": f"{registry.host}/team/trainer:v1"}))
    registry.login = "ada:lovelace"
    uid = submit(setup.service, body)
    setup.service.finish(uid, seconds=120)
    message = setup.service.call("GET", f"{CUSTOM_JOBS}/{uid}")["error"]["message"]
    assert "unauthorized" in message
    assert f"podman login {registry.host}" in message
    podman("login", "--username=ada", "--password=lovelace", registry.host)
    registry.close()
    uid = submit(setup.service, body)
    next(v for v in setup.service.watch(uid, seconds=120) if v["attempt"] > 1 or v["retries"])
    registry.open()
    assert setup.service.finish(uid, seconds=120)["state"] == "SUCCEEDED"
    assert setup.service.lines(uid, "workerpool0-0") == ["let in"]
    output = "\n".join(setup.service.lines(uid, "service"))
    assert "retrying in 1s" in output
    assert "connection refused" in output
