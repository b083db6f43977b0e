"""Image configurations, read directly from a registry for clusters that pull images themselves."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.runtimes.registry import Registry
from trainshed.core.runtime import Image
from trainshed.runtimes.images.cluster import ClusterImages
from trainshed_cluster.kubernetes.registries import Registries

STARTED = {"Entrypoint": ["/train"], "Cmd": ["--epochs", "3"], "Env": ["A=1", "B=x=y"]}


@pytest.fixture
def registry() -> Iterator[Registry]:
    opened = Registry()
    opened.put("team/trainer:v1", [], **STARTED, WorkingDir="/srv", User="1000")
    yield opened
    opened.close()


def logins(directory: Path, host: str, text: str) -> Path:
    path = directory / "auth.json"
    auth = base64.b64encode(text.encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    return path


def read_error(registries: Registries, name: str) -> str:
    return registries.read(name).unread or ""


def test_image_command_is_read_by_tag_and_by_digest(registry: Registry) -> None:
    registries = Registries(insecure=(registry.host,))
    config = registries.read(f"{registry.host}/team/trainer:v1")
    assert (config.entrypoint, config.command) == (("/train",), ("--epochs", "3"))
    assert config.environ == (("A", "1"), ("B", "x=y"))
    assert (config.workdir, config.user) == ("/srv", "1000")
    pinned = f"{registry.host}/team/trainer@{registry.digest('team/trainer:v1')}"
    assert registries.read(pinned) == config


def test_registry_that_requires_a_login_is_read_with_the_configured_credentials(
    registry: Registry, tmp_path: Path
) -> None:
    registry.login = "ada:secret"
    name, insecure = f"{registry.host}/team/trainer:v1", (registry.host,)
    assert "requires credentials, and none are configured" in read_error(Registries(insecure=insecure), name)
    wrong = logins(tmp_path, registry.host, "ada:wrong")
    assert "denies access (401)" in read_error(Registries(wrong, insecure), name)
    right = logins(tmp_path, registry.host, "ada:secret")
    assert Registries(right, insecure).read(name).entrypoint == ("/train",)


def test_only_insecure_registries_are_called_without_tls(registry: Registry) -> None:
    assert "does not respond" in read_error(Registries(), f"{registry.host}/team/trainer:v1")
    assert not registry.requests
    assert "Invalid IPv6 URL" in read_error(Registries(), "[:1/team/trainer:v1")


async def test_registry_is_queried_once_a_minute_and_its_outage_is_reported(registry: Registry) -> None:
    now, lines = [0], list[str]()
    images = ClusterImages(Registries(insecure=(registry.host,)).read, now=lambda: now[0])
    name = f"{registry.host}/team/trainer:v1"
    assert images.ready(name) is None and not images.refusal(name)
    image = await images.prepare(name, lines.append)
    assert image.root is None and image.entrypoint == ("/train",) and not image.unread
    assert images.ready(name) == image
    manifests = registry.manifests()
    await images.prepare(name, lines.append)
    assert registry.manifests() == manifests and not lines
    now[0] = 61 * 10**9
    registry.close()
    away = await images.prepare(name, lines.append)
    assert away.unread and away == Image(None, "", unread=away.unread)
    assert "does not respond" in away.unread
    assert lines == [f"The default command of the image {name} is unknown here: {away.unread}."]
