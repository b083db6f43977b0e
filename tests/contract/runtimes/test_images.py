"""Container images on this machine, with each available tool: found, unpacked once, described
(spec/program, spec/runtimes#images)."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.commands import execute
from tests.contract.runtimes.podman import storage
from tests.contract.runtimes.registry import Registry, insecure
from tests.contract.runtimes.rootfs import with_programs
from trainshed.core.runtime import Image
from trainshed.runtimes.images.service import Images

CHANGES = (
    'ENTRYPOINT ["/bin/sh", "-c"]',
    'CMD ["id"]',
    'ENV GREETING="hello there"',
    "WORKDIR /home/ada",
    "USER ada",
)


@dataclass
class ImageTool:
    """A container tool with a store of its own, and a shelf for images. `environ` is the tool's
    environment."""

    name: str
    environ: dict[str, str]
    shelf: Path
    tar: Path
    image_stores: list[Images] = field(default_factory=list[Images])

    def tool(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return execute(self.name, *arguments, env=self.environ, timeout=120)

    def make(self, reference: str, *changes: str) -> str:
        """Import the root file system as `reference`, and return the image's ID."""
        options = [f"--change={change}" for change in changes]
        if self.name == "podman" and os.geteuid():
            # The test user has no subordinate user IDs on most test machines.
            options.insert(0, "--storage-opt=vfs.ignore_chown_errors=true")
            done = self.tool(options[0], "import", *options[1:], str(self.tar), reference)
        else:
            done = self.tool("import", *options, str(self.tar), reference)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().removeprefix("sha256:")

    def may_use(self, registry: Registry, place: Path) -> None:
        """Let the tool use the registry without TLS. Docker does that on loopback anyway."""
        self.environ["CONTAINERS_REGISTRIES_CONF"] = str(insecure(registry, place))

    def images(self, **environ: str) -> Images:
        """Return the images of a service that has just started."""
        opened = Images(self.shelf, self.name, now=time.monotonic_ns, environ=self.environ | environ)
        self.image_stores.append(opened)
        return opened


def prepare(images: Images, reference: str, hear: Callable[[str], None] = print) -> Image:
    return asyncio.run(images.prepare(reference, hear))


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rootfs") / "root.tar"
    with_programs(place)
    return place


@pytest.fixture(params=["podman", "docker"])
def image_tool(request: pytest.FixtureRequest, tmp_path: Path, tar: Path) -> Iterator[ImageTool]:
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: images are NOT tested with it")
    environ = dict(os.environ) | {"HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    # Rootless podman creates sockets in a directory whose path must be short.
    environ.pop("XDG_RUNTIME_DIR", None)
    if name == "podman":
        environ["CONTAINERS_STORAGE_CONF"] = str(storage(tmp_path))
    made = ImageTool(name, environ, tmp_path / "cache" / "images", tar)
    ready = made.tool("info" if name == "podman" else "version")
    if ready.returncode:
        pytest.skip(f"{name} does not work here, images are NOT tested with it: {ready.stderr}")
    yield made
    for opened in made.image_stores:
        opened.close()
    if name == "docker":
        return
    made.tool("rmi", "--all", "--force")
    # A rootless store contains files of users that only podman can become.
    if os.geteuid():
        made.tool("unshare", "rm", "-rf", str(tmp_path / "store"))


@pytest.fixture
def reference(image_tool: ImageTool) -> Iterator[str]:
    name = f"localhost/trainshed-test-{os.getpid()}:1"
    yield name
    image_tool.tool("rmi", "--force", name)


def test_image_is_unpacked_once_with_its_configuration(image_tool: ImageTool, reference: str) -> None:
    """spec/program#arguments: the image's entry point, command, variables, directory and user apply
    to the program. spec/runtimes#images: a second start installs nothing, even if the tool or
    its copy is gone. spec/program: the latest build runs."""
    identity = image_tool.make(reference, *CHANGES)
    lines: list[str] = []
    images = image_tool.images()
    assert images.ready(reference) is None
    image = prepare(images, reference, lines.append)
    assert (image.digest, image.entrypoint) == (identity, ("/bin/sh", "-c"))
    assert image.command == ("id",)
    assert ("GREETING", "hello there") in image.environ
    assert (image.workdir, image.user) == ("/home/ada", "ada")
    assert image.root is not None
    root = Path(image.root)
    assert (root / "bin/sh").stat().st_mode & 0o111
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (root / "etc/passwd").read_text().startswith("root:")
    # Under root, files belong to the image's user, otherwise to the service's own user.
    expected = 1000 if os.geteuid() == 0 else os.geteuid()
    assert (root / "home/ada").stat().st_uid == expected
    assert any(line.startswith(f"Unpacking {reference}, ") for line in lines)
    assert lines[-1].startswith("The image is unpacked: ")
    # Files of the image's root must not be accessible to other users of the machine.
    assert image_tool.shelf.stat().st_mode & 0o077 == 0

    assert images.ready(reference) is None  # The tool resolves the name again.
    lines.clear()
    assert prepare(images, reference, lines.append) == image
    assert lines == []
    assert image_tool.tool("ps", "--all", "--quiet").stdout == ""
    without = image_tool.images(PATH="/nonexistent")
    assert without.refusal(reference) is None
    assert prepare(without, reference, lines.append) == image
    assert "The unpacked copy of" in lines[-1]
    assert without.ready(reference) == image
    image_tool.tool("rmi", "--force", reference)
    assert prepare(images, reference) == image

    image_tool.make(reference, 'CMD ["pwd"]')
    assert images.ready(reference) is None
    changed = prepare(images, reference)
    assert (changed.entrypoint, changed.command) == ((), ("pwd",))


def test_registry_image_is_pulled_with_visible_progress(image_tool: ImageTool, tmp_path: Path) -> None:
    """spec/runtimes#builds: a missing image is pulled once, with visible progress."""
    registry, lines = Registry(), list[str]()
    try:
        registry.put("team/trainer:1", [image_tool.tar.read_bytes()], Cmd=["id"])
        reference = f"{registry.host}/team/trainer:1"
        image_tool.may_use(registry, tmp_path / "registries.conf")
        images = image_tool.images()
        pulled = prepare(images, reference, lines.append)
        image_tool.tool("rmi", "--force", reference)
    finally:
        registry.close()
    assert pulled.command == ("id",)
    assert lines[0] == f"Pulling {reference} with {image_tool.name}."
    assert [line for line in lines if line.startswith(f"{reference} is pulled: ")]
