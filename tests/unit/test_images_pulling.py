"""Tests of when an image is pulled, and of failed pulls (spec/runtimes#images)."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from trainshed.runtimes.images.commands import ImageConfig, ImageTool, ToolFailed
from trainshed.runtimes.images.service import PullPolicy
from trainshed.runtimes.port import BuildFailed, PackageFailed
from trainshed.runtimes.stop import Stop

MINUTE = 60 * 10**9
LATEST = "registry.example.org/team/trainer:latest"
VERSION = "registry.example.org/team/trainer:1"
HERE = ImageConfig("a" * 64)
NEWER = replace(HERE, id="b" * 64)


@dataclass
class FakeTool(ImageTool):
    """A simulated tool with one local image and one image in the registry; None = no image."""

    here: ImageConfig | None = None
    there: ImageConfig | None = None
    failure: ToolFailed = field(default_factory=lambda: ToolFailed("the registry is silent"))
    pulls: int = 0
    name: str = "podman"

    def inspect(self, reference: str) -> ImageConfig | None:
        return self.here

    def pull(self, reference: str, tell: Callable[[str], None], stop: Stop) -> None:
        self.pulls += 1
        if self.there is None:
            raise self.failure
        self.here = self.there


class Counter:
    """A simulated clock and image service, whose time only moves on request."""

    def __init__(self) -> None:
        self.now = 0
        self.said: list[str] = []
        self.pulling = PullPolicy(lambda: self.now)

    def get(self, shop: FakeTool, reference: str, *, can_do_without: bool = False) -> ImageConfig | None:
        return self.pulling.get(shop, reference, self.said.append, Stop(), can_do_without=can_do_without)


@pytest.mark.parametrize(
    ("reference", "pulls"),
    [
        (VERSION, 0),
        (LATEST, 1),
        ("trainer", 0),
        ("localhost/trainer:latest", 0),
        (f"{VERSION}@sha256:{'a' * 64}", 0),
    ],
)
def test_local_image_is_checked_in_the_registry_only_if_the_tag_is_not_fixed(
    reference: str, pulls: int
) -> None:
    """spec/runtimes#images: A local image starts at once. The tag `latest` is looked up in the registry."""
    shop = FakeTool(here=HERE, there=NEWER)
    assert Counter().get(shop, reference) == (NEWER if pulls else HERE)
    assert shop.pulls == pulls


def test_local_image_is_used_if_the_registry_is_unreachable() -> None:
    """spec/runtimes#images: A machine without a network runs its images, with a notice."""
    counter, shop = Counter(), FakeTool(here=HERE)
    assert counter.get(shop, LATEST) == HERE
    assert counter.said[-2:] == [
        f"{LATEST} could not be pulled: the registry is silent.",
        f"The local copy of {LATEST} is used.",
    ]


def test_image_registry_is_not_queried_again_for_every_replica() -> None:
    """spec/runtimes#builds: a restart takes milliseconds, so the result of the first query is kept."""
    counter, shop = Counter(), FakeTool(here=HERE, there=NEWER)
    counter.get(shop, LATEST)
    assert not counter.pulling.is_due(LATEST)
    counter.now += 2 * MINUTE
    assert counter.pulling.is_due(LATEST)


@pytest.mark.parametrize(("final", "kind"), [(True, PackageFailed), (False, BuildFailed)])
def test_failed_image_pull_is_attributed_to_the_user_or_the_service(
    final: bool, kind: type[Exception]
) -> None:
    """spec/failures#service-failures: A wrong name is a user's error. An unreachable registry is a service
    failure, which is retried."""
    shop = FakeTool(failure=ToolFailed("manifest unknown", final=final))
    with pytest.raises(kind) as failed:
        Counter().get(shop, VERSION)
    assert f"The image {VERSION} could not be pulled with podman: manifest unknown." in str(failed.value)
    assert "podman load" in str(failed.value)
    assert "setting images" in str(failed.value)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("unauthorized: authentication required", "podman login registry.example.org."),
        ("denied: requested access to the resource is denied", "podman login"),
        ("tls: first record does not look like a TLS handshake", "is a registry without TLS"),
        ("x509: certificate signed by unknown authority", "does not trust the certificate of"),
        ('short-name "trainer" did not resolve to an alias', "docker.io/library/NAME:TAG"),
        ("write /x: no space left on device", "podman image prune"),
        ("lookup registry.example.org: no such host", "Check the name. If it is right"),
        ("lookup registry.example.org: server misbehaving", "Check the name. If it is right"),
    ],
)
def test_error_of_a_failed_image_pull_contains_a_remedy(error: str, advice: str) -> None:
    """spec/failures#messages: Message, cause and remedy."""
    with pytest.raises(BuildFailed) as failed:
        Counter().get(FakeTool(failure=ToolFailed(error)), VERSION)
    assert error in str(failed.value)
    assert advice in str(failed.value)


def test_image_without_a_registry_must_be_local() -> None:
    """spec/runtimes#images."""
    shop, reference = FakeTool(there=NEWER), "localhost/trainer:1"
    with pytest.raises(PackageFailed, match=r"no registry.*no image of that name here.*podman load"):
        Counter().get(shop, reference)
    assert shop.pulls == 0
    assert Counter().get(shop, reference, can_do_without=True) is None
