"""Container images on this machine, through each tool that is here: found, unpacked once, described
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
class Shop:
    """A tool with a store of its own, and a shelf. `environ`: what the tool runs in."""

    name: str
    environ: dict[str, str]
    shelf: Path
    tar: Path
    opened: list[Images] = field(default_factory=list[Images])

    def tool(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return execute(self.name, *arguments, env=self.environ, timeout=120)

    def make(self, reference: str, *changes: str) -> str:
        """Import the root file system under that name; the image's id."""
        options = [f"--change={change}" for change in changes]
        if self.name == "podman" and os.geteuid():
            # A user without further users of his own, as on most test machines.
            options.insert(0, "--storage-opt=vfs.ignore_chown_errors=true")
            done = self.tool(options[0], "import", *options[1:], str(self.tar), reference)
        else:
            done = self.tool("import", *options, str(self.tar), reference)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().removeprefix("sha256:")

    def may_use(self, registry: Registry, place: Path) -> None:
        """Let the tool speak to it without TLS; docker does that on the loopback anyway."""
        self.environ["CONTAINERS_REGISTRIES_CONF"] = str(insecure(registry, place))

    def images(self, **environ: str) -> Images:
        """As a service that has just started."""
        opened = Images(
            self.shelf, self.name, now=time.monotonic_ns, environ=self.environ | environ
        )
        self.opened.append(opened)
        return opened


def prepare(images: Images, reference: str, hear: Callable[[str], None] = print) -> Image:
    return asyncio.run(images.prepare(reference, hear))


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rootfs") / "root.tar"
    with_programs(place)
    return place


@pytest.fixture(params=["podman", "docker"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, tar: Path) -> Iterator[Shop]:
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: images are NOT tested with it")
    environ = dict(os.environ) | {"HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    # Sockets of rootless podman lie in a directory whose name must be short.
    environ.pop("XDG_RUNTIME_DIR", None)
    if name == "podman":
        environ["CONTAINERS_STORAGE_CONF"] = str(storage(tmp_path))
    made = Shop(name, environ, tmp_path / "cache" / "images", tar)
    ready = made.tool("info" if name == "podman" else "version")
    if ready.returncode:
        pytest.skip(f"{name} does not work here, images are NOT tested with it: {ready.stderr}")
    yield made
    for opened in made.opened:
        opened.close()
    if name == "docker":
        return
    made.tool("rmi", "--all", "--force")
    # Rootless, the store holds files of users that only podman can become.
    if os.geteuid():
        made.tool("unshare", "rm", "-rf", str(tmp_path / "store"))


@pytest.fixture
def reference(shop: Shop) -> Iterator[str]:
    name = f"localhost/trainshed-test-{os.getpid()}:1"
    yield name
    shop.tool("rmi", "--force", name)


def test_an_image_is_unpacked_once_with_all_it_says_of_itself(shop: Shop, reference: str) -> None:
    """spec/program#arguments: its entry point, command, variables, directory and user are the program's.
    spec/runtimes#images: the same again starts with nothing to install, also where its tool or the tool's
    own copy is gone. spec/program: what was built last is what runs."""
    identity = shop.make(reference, *CHANGES)
    lines: list[str] = []
    images = shop.images()
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
    # As root files belong to whom the image says, else to the service's own user.
    expected = 1000 if os.geteuid() == 0 else os.geteuid()
    assert (root / "home/ada").stat().st_uid == expected
    assert any(line.startswith(f"Unpacking {reference}, ") for line in lines)
    assert lines[-1].startswith("The image is unpacked: ")
    # What becomes root in an image must not be within reach of other users of the machine.
    assert shop.shelf.stat().st_mode & 0o077 == 0

    assert images.ready(reference) is None  # The tool is asked what the name means now.
    lines.clear()
    assert prepare(images, reference, lines.append) == image
    assert lines == []
    assert shop.tool("ps", "--all", "--quiet").stdout == ""
    without = shop.images(PATH="/nonexistent")
    assert without.refusal(reference) is None
    assert prepare(without, reference, lines.append) == image
    assert "The unpacked copy of" in lines[-1]
    assert without.ready(reference) == image
    shop.tool("rmi", "--force", reference)
    assert prepare(images, reference) == image

    shop.make(reference, 'CMD ["pwd"]')
    assert images.ready(reference) is None
    changed = prepare(images, reference)
    assert (changed.entrypoint, changed.command) == ((), ("pwd",))


def test_an_image_of_a_registry_is_pulled_and_that_is_told(shop: Shop, tmp_path: Path) -> None:
    """spec/runtimes#builds: what is not here is fetched, once, and its progress is visible."""
    registry, lines = Registry(), list[str]()
    try:
        registry.put("team/trainer:1", [shop.tar.read_bytes()], Cmd=["id"])
        reference = f"{registry.host}/team/trainer:1"
        shop.may_use(registry, tmp_path / "registries.conf")
        images = shop.images()
        pulled = prepare(images, reference, lines.append)
        shop.tool("rmi", "--force", reference)
    finally:
        registry.close()
    assert pulled.command == ("id",)
    assert lines[0] == f"Pulling {reference} with {shop.name}."
    assert [line for line in lines if line.startswith(f"{reference} is pulled: ")]
