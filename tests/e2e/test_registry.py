"""Jobs whose images come from a registry: pulled, pulled again, refused, silent, and killed in the middle
(spec/failures#service-failures, spec/program, spec/runtimes#images).

The registry is ours, on the loopback and without TLS, as docs/containers.md says how to use one; podman pulls
from it.
"""

import io
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.runtimes.podman import podman, storage
from tests.contract.runtimes.registry import Registry, insecure
from tests.contract.runtimes.rootfs import with_programs
from tests.e2e.running import CUSTOM_JOBS, Service, running, submit

TEAM = "team/trainer"


@dataclass
class House:
    """A running service, the registry that its podman may use, and the layer below all images."""

    service: Service
    registry: Registry
    base: bytes
    place: Path

    def image(self, tag: str, says: str = "hello", *layers: bytes) -> str:
        """An image at the registry whose program says that; its reference."""
        program = {"Entrypoint": ["/bin/sh", "-c"], "Cmd": [f"echo {says}"]}
        self.registry.put(f"{TEAM}:{tag}", [self.base, *layers], **program)
        return f"{self.registry.host}/{TEAM}:{tag}"

    def submit(self, image: str, replicas: int = 1) -> str:
        return submit(self.service, job(image, replicas))

    def run(self, image: str) -> list[str]:
        """Run a job that succeeds; what its program said."""
        uid = self.submit(image)
        self.succeed(uid)
        return self.service.lines(uid, "workerpool0-0")

    def succeed(self, uid: str) -> None:
        assert self.service.finish(uid, seconds=120)["state"] == "SUCCEEDED", "\n".join(
            self.told(uid)
        )

    def built(self, uid: str) -> list[str]:
        """What the job's log says of its pull."""
        return self.service.lines(uid, "service")

    def told(self, uid: str) -> list[str]:
        """The job's timeline."""
        found = self.service.call("GET", f"/trainshed/v1/jobs/{uid}/timeline")
        return [entry["message"] for entry in found["entries"]]

    def failure(self, uid: str) -> str:
        self.service.finish(uid, seconds=120)
        return self.service.call("GET", f"{CUSTOM_JOBS}/{uid}")["error"]["message"]


def job(image: str, replicas: int = 1) -> dict[str, Any]:
    pools = [
        {
            "machineSpec": {"machineType": "n1-standard-4"},
            "replicaCount": str(count),
            "containerSpec": {"imageUri": image},
        }
        for count in (1, replicas - 1)
        if count
    ]
    return {"displayName": "pulled", "jobSpec": {"workerPoolSpecs": pools}}


def layer(seed: int, size: int = 400_000) -> bytes:
    """A layer with one file that cannot be made smaller."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        member = tarfile.TarInfo(f"ballast-{seed}")
        member.size = size
        archive.addfile(member, io.BytesIO(random.Random(seed).randbytes(size)))
    return made.getvalue()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    place = tmp_path_factory.mktemp("house")
    registry = Registry()
    (place / "service.toml").write_text(f'cache = "{place}/cache"\n')
    with_programs(place / "root.tar")
    base = (place / "root.tar").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(storage(place)))
        patch.setenv("CONTAINERS_REGISTRIES_CONF", str(insecure(registry, place / "registries")))
        (place / "auth.json").write_text("{}")
        patch.setenv("REGISTRY_AUTH_FILE", str(place / "auth.json"))
        podman("info")
        with running(place / "first", "--config", str(place / "service.toml")) as service:
            yield House(service, registry, base, place)
        podman("rmi", "--all", "--force")
    registry.close()


@pytest.fixture(autouse=True)
def as_it_should(house: House) -> Iterator[None]:
    """Whatever a test did to the registry is over with it."""
    yield
    house.registry.close()
    house.registry.open()
    house.registry.login, house.registry.refusing = "", None


@pytest.mark.parametrize("plain", [False, True])
def test_an_image_that_the_registry_does_not_have_fails_the_job_at_once(
    house: House, plain: bool
) -> None:
    """spec/failures#service-failures: the user's mistake, told with the tool's words. `plain`: some
    registries, and what stands before them, have no words of the distribution API."""
    if plain:
        house.registry.refusing = ("/manifests/", 404, "nothing here")
    before = house.registry.manifests()
    uid = house.submit(f"{house.registry.host}/{TEAM}:missing")
    message = house.failure(uid)
    assert ("StatusCode: 404" if plain else "manifest unknown") in message
    assert "podman load" in message
    assert house.registry.manifests() == before + 1


def test_a_registry_that_asks_who_it_is_is_told_by_podmans_own_login(house: House) -> None:
    """spec/failures#service-failures: without rights the job fails at once and says how to have them."""
    image = house.image("secret", "let in")
    house.registry.login = "ada:lovelace"
    message = house.failure(house.submit(image))
    assert "unauthorized" in message
    assert f"podman login {house.registry.host}" in message
    podman("login", "--username=ada", "--password=lovelace", house.registry.host)
    assert house.run(image) == ["let in"]


def test_a_registry_that_is_down_for_a_while_costs_an_attempt(house: House) -> None:
    """spec/failures#service-failures: the service's trouble; the job goes on by itself when the registry is
    there again."""
    image = house.image("later", "at last")
    house.registry.close()
    uid = house.submit(image)
    for view in house.service.watch(uid, seconds=120):
        if view["attempt"] > 1 or view["retries"]:
            break
    house.registry.open()
    house.succeed(uid)
    said = "\n".join(house.built(uid))
    assert "retrying in 1s" in said
    assert "connection refused" in said


def test_a_registry_without_tls_that_was_not_allowed_says_how_to_allow_it(
    house: House,
) -> None:
    """spec/failures#service-failures: the cause and what to do; docs/containers.md says how."""
    other = Registry()
    try:
        other.put(f"{TEAM}:v1", [house.base])
        message = house.failure(house.submit(f"{other.host}/{TEAM}:v1"))
    finally:
        other.close()
    assert f"{other.host} is a registry without TLS" in message
