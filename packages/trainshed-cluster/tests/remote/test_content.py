"""Content on nodes that share no files with the service: real environments, real mounts (docs/adr/0063)."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Self

import pytest

from tests.caches import remove_cache
from tests.isolation import needs_mounts
from trainshed.runtimes.interpreters import running_interpreter
from trainshed.runtimes.prefix import Prefix, derive_prefix, make_prefix, write_template
from trainshed.runtimes.shelf import Shelf
from trainshed_cluster.remote.content import library
from trainshed_cluster.remote.content.library import ContentRefused, Library
from trainshed_cluster.remote.content.manifest import Manifest

_AGENT = """
import asyncio, json, sys
from pathlib import Path
from trainshed_cluster.remote.content.cache import NodeCache
from trainshed_cluster.remote.content.manifest import Manifest, Unit

async def main():
    root, limit, socket, manifest = sys.argv[1:]
    content = json.loads(manifest)
    units = tuple(Unit(**{**u, "parents": tuple(map(tuple, u["parents"]))}) for u in content["units"])
    cache = NodeCache(Path(root), limit=int(limit) or None, node="node3")
    async def fetch(path):
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(path.encode() + b"\\n")
        return reader, writer
    try:
        await cache.fetch_all(Manifest(units, tuple(content["outside"])), fetch)
    except Exception as failure:
        print(type(failure).__name__, failure, flush=True)
    else:
        print("have", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class Sender:
    """The service from which nodes fetch. `cut`: break each stream off after this number of bytes; None =
    never."""

    def __init__(self, library: Library, path: Path) -> None:
        self.path = path
        self.fetched: list[str] = []
        self.cut: int | None = None
        self.is_cut = asyncio.Event()
        self.is_sent = asyncio.Event()
        self._library = library

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator[Self]:
        server = await asyncio.start_unix_server(self._serve, self.path)
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).decode().strip()
        self.fetched.append(path)
        if self.cut is None:
            await self._library.send(path, writer)
            self.is_sent.set()
            return
        inner = self.path.with_name(f"cut{len(self.fetched)}")
        server = await asyncio.start_unix_server(lambda _, pipe: self._library.send(path, pipe), inner)
        whole, _ = await asyncio.open_unix_connection(inner)
        with contextlib.suppress(asyncio.IncompleteReadError):
            writer.write(await whole.readexactly(self.cut))
            await writer.drain()
            self.is_cut.set()
        server.close()
        if self.cut:
            writer.close()


class Node:
    """A node with its own cache disk. `size`: of the disk, in the format of mount(8)."""

    def __init__(self, root: Path, socket: Path, size: str = "1g") -> None:
        self.root = root
        self._socket = socket
        script = f"mount -t tmpfs -o mode=755,size={size} tmpfs {root} && echo up && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None and self._holder.stdout.readline() == b"up\n"

    def close(self) -> None:
        self._holder.communicate()

    def run(self, *command: str) -> str:
        """Run a command on the node and return its output. Fails if the command fails."""
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def names(self) -> set[str]:
        """Return the names of the directories in the node's cache that programs use (units), without the
        cache's own files."""
        names = self.run("find", str(self.root), "-mindepth", "1", "-printf", "%P\n").split("\n")
        return {name for name in names if name and not name.startswith(".node")}

    async def agent(self, manifest: Manifest, limit: int = 0) -> "Agent":
        """Start an agent that fetches the manifest."""
        process = await asyncio.create_subprocess_exec(
            *(*self._enter, sys.executable, "-c", _AGENT),
            *(str(self.root), str(limit), str(self._socket), json.dumps(asdict(manifest))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return Agent(process)

    async def fetch(self, manifest: Manifest, limit: int = 0) -> str:
        """Return the result of an agent that fetches the manifest and exits."""
        agent = await self.agent(manifest, limit)
        answer = await agent.answer()
        await agent.leave()
        return answer

    @property
    def _enter(self) -> Sequence[str]:
        return ["nsenter", "-m", "-t", str(self._holder.pid)]


class Agent:
    """A process on a node that has fetched content, and keeps it until it exits."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def answer(self) -> str:
        """Return "have", or the reason of the failure."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode().strip()

    async def leave(self) -> None:
        await self.process.communicate(b"")

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


pytestmark = [pytest.mark.anyio, needs_mounts]

_INTERPRETER = running_interpreter()
_MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    cache = tmp_path / "cache"
    cache.mkdir()
    yield cache
    remove_cache(cache)


class Site:
    """A service's cache, its sender, and nodes."""

    def __init__(self, root: Path, stack: AsyncExitStack, sender: Sender, content: Library) -> None:
        self.root = root
        self.sender = sender
        self.library = content
        self._stack = stack
        self._agents: list[Agent] = []

    def node(self, size: str = "1g") -> Node:
        node = Node(self.root, self.sender.path, size)
        self._stack.callback(node.close)
        return node

    def put(self, key: str, fill: Callable[[Path], None], *, shelf: str = "layers") -> Path:
        return Shelf(self.root / shelf).put(key, fill)

    def put_bytes(self, key: str, megabytes: int) -> Path:
        def fill(draft: Path) -> None:
            draft.mkdir()
            (draft / "content").write_bytes(os.urandom(megabytes << 20))

        return self.put(key, fill)


@pytest.fixture
async def site(root: Path, tmp_path: Path) -> AsyncIterator[Site]:
    content = Library([root])
    async with AsyncExitStack() as stack:
        sender = await stack.enter_async_context(Sender(content, tmp_path / "socket").open())
        yield Site(root, stack, sender, content)


async def test_environment_and_layer_sent_to_a_node_can_run_programs(site: Site) -> None:
    """A layer (a job's packages on top of an environment) includes its environment. Both run at their own
    paths."""

    def fill_base(draft: Path) -> None:
        prefix = make_prefix(draft, _INTERPRETER)
        (prefix.site / "of_base.py").write_text("WORD = 'base'\n")
        write_template(prefix, Prefix(site.root / "environments" / "base", _MINOR))

    base = Prefix(site.put("base", fill_base, shelf="environments"), _MINOR)

    def fill_layer(draft: Path) -> None:
        prefix = derive_prefix(draft, base, _INTERPRETER)
        (prefix.site / "of_layer.py").write_text("WORD = 'layer'\n")
        write_template(prefix, Prefix(site.root / "layers" / "top", _MINOR))

    layer = Prefix(site.put("top", fill_layer), _MINOR)
    manifest = await site.library.manifest([str(layer.template)])
    assert {unit.path for unit in manifest.units} == {str(layer.root), str(base.root)}
    node = site.node()
    assert await node.fetch(manifest) == "have"
    code = "import of_base, of_layer, ssl, sys; print(of_base.WORD, of_layer.WORD, sys.executable)"
    python = str(layer.template / "bin" / "python")
    assert node.run(python, "-I", "-c", code).split() == ["base", "layer", python]
    assert await node.fetch(manifest) == "have"
    assert len(site.sender.fetched) == 2, "the existing unit was fetched again"


async def test_environment_created_by_uv_and_sent_to_a_node_can_run_programs(site: Site) -> None:
    uv = Path(sys.executable).parent / "uv"

    def fill(draft: Path) -> None:
        command = [uv, "venv", "--relocatable", "--offline", "--no-project"]
        subprocess.run(
            [*command, "--python", _INTERPRETER.executable, draft], check=True, capture_output=True
        )
        packages = draft / "lib" / f"python{_MINOR}" / "site-packages"
        (packages / "ours.py").write_text("WORD = 'ours'\n")

    place = site.put("venv", fill, shelf="environments")
    node = site.node()
    assert await node.fetch(await site.library.manifest([str(place / "bin")])) == "have"
    code = "import ours; print(ours.WORD)"
    assert node.run(str(place / "bin" / "python"), "-I", "-c", code) == "ours\n"


async def test_concurrent_agents_on_a_node_fetch_the_same_directory_only_once(site: Site) -> None:
    manifest = await site.library.manifest([str(site.put_bytes("one", 8))])
    node = site.node()
    agents = [await node.agent(manifest) for _ in range(4)]
    assert [await agent.answer() for agent in agents] == ["have"] * 4
    assert len(site.sender.fetched) == 1
    for agent in agents:
        await agent.leave()


@pytest.mark.parametrize("is_killed", [True, False])
async def test_interrupted_transfer_leaves_no_partial_directory_on_the_node(
    site: Site, is_killed: bool
) -> None:
    """Either the agent or the service is killed."""
    place = site.put_bytes("one", 8)
    manifest = await site.library.manifest([str(place)])
    node = site.node()
    site.sender.cut = 4 << 20
    agent = await node.agent(manifest)
    await site.sender.is_cut.wait()
    if is_killed:
        await agent.kill()
    else:
        answer = await agent.answer()
        assert answer.startswith("EngineUnavailable node3 did not receive")
        assert "ended early" in answer
        await agent.leave()
    site.sender.cut = None
    assert await node.fetch(manifest) == "have"
    assert node.names() == {"layers", "layers/one", "layers/one/.built", "layers/one/content"}
    assert node.run("cmp", str(place / "content"), str(place / "content")) == ""


async def test_transfer_to_a_full_disk_fails_and_leaves_no_files(site: Site) -> None:
    manifest = await site.library.manifest([str(site.put_bytes("one", 8))])
    answer = await (node := site.node("66m")).fetch(manifest)
    assert answer.startswith("EngineUnavailable node3 did not receive")
    assert "the directory needs 8 MiB, but only 6" in answer
    assert not any("one" in name for name in node.names())


async def test_least_recently_used_directory_is_removed_first_from_the_node_cache(site: Site) -> None:
    node = site.node()
    places = [str(site.put_bytes(key, 4)) for key in ("used", "old", "newer", "new")]
    manifests = [await site.library.manifest([place]) for place in places]
    keeper = await node.agent(manifests[0])
    assert await keeper.answer() == "have"
    for manifest in manifests[1:]:
        assert await node.fetch(manifest, limit=13 << 20) == "have"
    there = {name.removeprefix("layers/") for name in node.names() if name.count("/") == 1}
    assert there == {"used", "newer", "new"}
    await keeper.leave()


async def test_changed_directory_is_replaced_when_no_program_uses_its_old_version(site: Site) -> None:
    place = site.put_bytes("one", 1)
    node = site.node()
    user = await node.agent(await site.library.manifest([str(place)]))
    assert await user.answer() == "have"
    await site.sender.is_sent.wait()  # A directory is not removed while it is sent.
    shelf = Shelf(site.root / "layers")
    assert shelf.remove(next(shelf.content()))
    site.put_bytes("one", 2)
    manifest = await site.library.manifest([str(place)])
    early = await node.fetch(manifest)
    assert "programs on this node use the previous version" in early
    await user.leave()
    assert await node.fetch(manifest) == "have"
    assert node.run("stat", "-c", "%s", str(place / "content")) == f"{2 << 20}\n"


async def test_directory_that_another_service_put_on_the_node_is_used_and_never_removed(site: Site) -> None:
    """A service on the node has created the directory, for example, or it is on a file system that the node
    shares with this service."""
    place = site.put_bytes("one", 1)
    manifest = await site.library.manifest([str(place)])
    node = site.node()
    node.run("mkdir", "-p", str(place), str(place.parent / ".marks"))
    node.run("sh", "-c", f"echo another boot >{place}/.built; echo theirs >{place}/content")
    assert "not fetched and are incomplete" in await node.fetch(manifest)
    node.run("touch", str(place.parent / ".marks" / "one"))
    assert await node.fetch(manifest, limit=1) == "have"
    assert node.run("cat", str(place / "content")) == "theirs\n"
    assert site.sender.fetched == []


async def test_node_that_stops_receiving_files_does_not_block_transfers_to_other_nodes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_STALL_TIMEOUT", 1.0)
    monkeypatch.setattr(site.library, "_sending", asyncio.Semaphore(1))
    place = site.put_bytes("one", 32)
    _, hanging = await asyncio.open_unix_connection(site.sender.path, limit=1 << 10)
    hanging.write(f"{place}\n".encode())
    manifest = await site.library.manifest([str(place)])
    fetching = asyncio.create_task(site.node().fetch(manifest))
    await site.sender.is_sent.wait()  # It has sent as much as the buffers can hold.
    monkeypatch.setattr(library, "_STALL_TIMEOUT", 60.0)
    assert await fetching == "have"
    hanging.close()


async def test_launch_is_rejected_if_the_node_lacks_a_required_system_directory(site: Site) -> None:
    answer = await site.node().fetch(Manifest((), ("/opt/python9/lib/python9.1",)))
    assert answer.startswith("LaunchRejected node3 has no /opt/python9/lib/python9.1")


async def test_only_finished_directories_of_the_cache_are_sent_to_nodes(site: Site, tmp_path: Path) -> None:
    place = site.put_bytes("one", 1)
    (site.root / "uv").mkdir()
    (site.root / "uv" / "credentials").write_text("secret")
    (site.root / "layers" / "link").symlink_to("/etc")
    (tmp_path / "alias").symlink_to(place)
    for path in (site.root / "uv", site.root, site.root / "layers" / "link", tmp_path / "alias"):
        with pytest.raises(ContentRefused):
            await site.library.manifest([str(path)])
    for path in ("/etc", f"{place}/../../uv", f"{place}/content", str(site.root), "relative"):
        reader, writer = await asyncio.open_unix_connection(site.sender.path)
        writer.write(path.encode() + b"\n")
        content = await reader.read()
        assert content.startswith(b".built\0"), "the answer contains only the reason"
        assert b"secret" not in content
        writer.close()


async def test_python_interpreter_outside_the_cache_is_sent_with_its_environment(
    root: Path, tmp_path: Path
) -> None:
    """The environment refers to a Python of pyenv or uv outside the cache. It is sent without its
    packages."""
    prefix = tmp_path / "pythons" / "3.11.7"
    standard = prefix / "lib" / "python3.11"
    (standard / "site-packages" / "secret").mkdir(parents=True)
    (standard / "os.py").write_text("")
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python3.11").write_text("#!/bin/sh\necho it runs\n")
    (prefix / "bin" / "python3.11").chmod(0o755)

    def fill(draft: Path) -> None:
        (draft / "bin").mkdir(parents=True)
        (draft / "bin" / "python").symlink_to(prefix / "bin" / "python3.11")
        (draft / "pyvenv.cfg").write_text(f"home = {prefix}/bin\n")

    place = Shelf(root / "environments").put("venv", fill)
    content = Library([root], lambda: [prefix, Path("/usr")])
    manifest = await content.manifest([str(place), str(standard)])
    assert [unit.path for unit in manifest.units] == [str(place), str(prefix)]
    alone = await Library([root]).manifest([str(place), str(standard)])
    assert alone.outside == (str(standard),)
    async with Sender(content, tmp_path / "socket").open() as sender:
        node = Node(root, sender.path)
        try:
            node.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(tmp_path / "pythons"))
            assert await node.fetch(manifest) == "have"
            assert node.run(str(place / "bin" / "python")) == "it runs\n"
            assert node.run("find", str(prefix), "-name", "*s*", "-printf", "%f\n").split() == [
                "site-packages",
                "os.py",
            ]
        finally:
            node.close()
