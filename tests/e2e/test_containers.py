"""Jobs in container images, from the request to the program's own view (spec/submit#vertex-jobs,
spec/program, spec/runtimes#images; facts/program#arguments).

The images are made of this machine's own files and imported with podman, in a store of their own.
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
class Yard:
    """A running service, and podman with a store of its own and a registry that it may use."""

    service: Service
    registry: Registry
    tars: dict[bool, Path]
    made: set[str] = field(default_factory=set[str])

    def image(self, name: str, *changes: str, python: bool = False) -> str:
        """An image of that name with what it says of itself; its reference."""
        reference = f"localhost/{name}:1"
        options = [f"--change={change}" for change in changes]
        if reference not in self.made:
            podman("import", *options, str(self.tars[python]), reference)
        self.made.add(reference)
        return reference

    def run(self, program: dict[str, Any]) -> tuple[str, list[str]]:
        """Run a job of one replica; its final state and its lines."""
        uid = submit(self.service, custom_job(worker_pool(**program)))
        state = self.service.finish(uid, seconds=120)["state"]
        return state, self.service.lines(uid, "workerpool0-0")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    place = tmp_path_factory.mktemp("yard")
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
            yield Yard(service, registry, tars)
        podman("rmi", "--all", "--force")
        registry.close()


def test_the_program_sees_its_image_and_its_job(yard: Yard) -> None:
    """spec/program#hostnames: entry point and CMD of the image, its variables and directory; hostname and
    buckets of the job."""
    image = yard.image(
        "seen",
        SHELL,
        'CMD ["echo $GREETING; pwd; hostname; ls /gcs; echo $HOME; ls /; echo $CLUSTER_SPEC"]',
        "ENV GREETING=hello",
        "WORKDIR /srv/deep",
    )
    state, lines = yard.run({"containerSpec": {"imageUri": image}})
    assert state == "SUCCEEDED", lines
    greeting, place, host, bucket, home, *names, cluster = lines
    assert (greeting, place, home) == ("hello", "/srv/deep", "/root")
    assert host.startswith("cmle-training-workerpool0-")
    assert host in cluster
    assert bucket == "trainshed"
    # Nothing of the machine's own: only the image's directories and the ones that every program has (opt
    # holds gsutil).
    assert "boot" not in names
    assert {"bin", "gcs", "tmp", "proc"} <= set(names)


def test_the_images_user_runs_the_program_and_owns_what_it_writes(yard: Yard) -> None:
    """spec/program: the image's user, at home where the image says."""
    image = yard.image(
        "ada",
        SHELL,
        'CMD ["id -u; id -g; echo $HOME; touch mine /tmp/t && stat -c %u mine; touch /etc/x || echo no"]',
        "USER ada:crew",
        "WORKDIR /home/ada",
    )
    state, lines = yard.run({"containerSpec": {"imageUri": image}})
    assert state == "SUCCEEDED", lines
    user, group, home, owner, *rest = lines
    assert (home, owner) == ("/home/ada", user)
    if user == "0":
        # An ordinary user's service has one user only, whom programs find to be root.
        assert os.geteuid() != 0
    else:
        assert (user, group) == ("1000", "2000")
        assert "no" in rest  # what it says on its other output may come later


def test_packages_are_installed_inside_an_executor_image_of_ones_own(yard: Yard) -> None:
    """spec/program#arguments: packages installed first, then `python3 -m MODULE`, by the Python of the
    image."""
    image = yard.image("python", "ENV PATH=/usr/local/bin:/bin", python=True)
    content = wheel("shout", "import sys; print('shouted', sys.argv[1:])")
    yard.service.put("trainshed", "shout-0.1-py3-none-any.whl", content)
    state, lines = yard.run(
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
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/submit, facts/packaging#autopackaging: `local-package-path`, by podman under docker's name;
    docs/containers.md says how."""
    base = yard.image("python", "ENV PATH=/usr/local/bin:/bin", python=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "task.py").write_text("import sys; print('packed', sys.argv[1:])")
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    guide = (ROOT / "docs" / "containers.md").read_text()
    docker.write_text("#!" + guide.partition("```sh\n#!")[2].partition("```")[0])
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}{os.pathsep}{os.environ['PATH']}")
    # Where containers cannot be run by podman itself, it can still build them.
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    pool = (
        f"machine-type=n1-standard-4,replica-count=1,executor-image-uri={base},"
        f"local-package-path={tmp_path}/code,script=task.py"
    )
    gcloud = Gcloud(yard.service, tmp_path / "gcloud")
    create = ("ai", "custom-jobs", "create", "--display-name=packed", "--format=value(name)")
    name = gcloud.run(*create, f"--worker-pool-spec={pool}", "--args=--x,1", timeout=180).stdout
    uid = name.strip().splitlines()[-1].rpartition("/")[2]
    assert yard.service.finish(uid, seconds=120)["state"] == "SUCCEEDED", yard.service.lines(uid)
    assert yard.service.lines(uid, "workerpool0-0")[-1] == "packed ['--x', '1']"


def test_a_registry_that_asks_for_a_login_and_is_down_for_a_while(yard: Yard) -> None:
    """spec/failures#service-failures: without rights the job fails at once and says how to have them;
    one that is away costs an attempt. Ours is without TLS, as docs/containers.md says how to use one."""
    registry = yard.registry
    program = {"Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo let in"]}
    registry.put("team/trainer:v1", [yard.tars[False].read_bytes()], **program)
    body = custom_job(worker_pool(containerSpec={"imageUri": f"{registry.host}/team/trainer:v1"}))
    registry.login = "ada:lovelace"
    uid = submit(yard.service, body)
    yard.service.finish(uid, seconds=120)
    message = yard.service.call("GET", f"{CUSTOM_JOBS}/{uid}")["error"]["message"]
    assert "unauthorized" in message
    assert f"podman login {registry.host}" in message
    podman("login", "--username=ada", "--password=lovelace", registry.host)
    registry.close()
    uid = submit(yard.service, body)
    next(v for v in yard.service.watch(uid, seconds=120) if v["attempt"] > 1 or v["retries"])
    registry.open()
    assert yard.service.finish(uid, seconds=120)["state"] == "SUCCEEDED"
    assert yard.service.lines(uid, "workerpool0-0") == ["let in"]
    output = "\n".join(yard.service.lines(uid, "service"))
    assert "retrying in 1s" in output
    assert "connection refused" in output
