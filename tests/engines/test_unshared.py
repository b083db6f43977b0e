"""A remote engine over nodes that share neither the service's cache nor its code (docs/adr/0063)."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import trainshed
from tests.caches import remove_cache
from tests.engines.conformance.lab import Lab, Program
from tests.engines.conformance.stage import Stage, run_with_stage
from tests.engines.process_cluster import ProcessCluster
from tests.isolation import needs_mounts
from trainshed.core.capacity import WaitReason
from trainshed.core.launch import LaunchPlan, Software
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.port import Engine, EngineUnavailable, StartWaits
from trainshed.engines.streams import FileStreams
from trainshed.runtimes.interpreters import running_interpreter
from trainshed.runtimes.prefix import Prefix, make_prefix, write_template
from trainshed.runtimes.shelf import Shelf
from trainshed_cluster.remote import slots
from trainshed_cluster.remote.cluster import Allocation
from trainshed_cluster.remote.content.bootstrap import AgentCode, Bootstrap
from trainshed_cluster.remote.content.library import Library
from trainshed_cluster.remote.engine import RemoteEngine
from trainshed_cluster.remote.messages import AgentDocument
from trainshed_cluster.remote.options import AgentCommand, Listening, RemoteOptions

_INTERPRETER = running_interpreter()
_MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
_HIDE = (
    'size=$1; shift; while [ "$1" != -- ]; do mount -t tmpfs -o mode=755,size=$size none "$1"; shift; done; \
shift; exec "$@"'
)


class UnsharedCluster(ProcessCluster):
    """`hidden`: directories that are empty on its nodes, with a `size` in the format of mount(8)."""

    def __init__(self, directory: Path, hidden: Sequence[Path], size: str) -> None:
        super().__init__(directory)
        self._hide = ("sh", "-c", _HIDE, "-", size, *map(str, hidden), "--")

    async def start_agent(self, allocation: Allocation, node: str, argv: Sequence[str], stdin: bytes) -> None:
        await super().start_agent(allocation, node, (*self._hide, *argv), stdin)


class UnsharedLab(Lab):
    """`size`: of the nodes' disk for the cache."""

    def __init__(self, directory: Path, size: str = "1g") -> None:
        self.cache = directory / "cache"
        self.cache.mkdir()
        self.environment = self._environment()
        self._directory, self._size = directory, size
        self._library = Library([self.cache])
        python = str(Path(sys.executable).resolve())
        self._bootstrap = Bootstrap(AgentCode.collect(), python, str(directory / "nodes"))

    def engine(self) -> Engine:
        directory = self._directory
        options = RemoteOptions(
            identity="labs",
            directory=directory / "engine",
            listening=Listening("127.0.0.1"),
            lease=40.0,
            agent=partial(AgentDocument, directory=str(directory / "nodes"), cache=str(self.cache)),
            command=lambda _: AgentCommand(self._bootstrap.argv, self._bootstrap.parcel),
            library=self._library,
        )
        ours = Path(trainshed.__file__).parents[1]
        hidden = (self.cache, ours, Path(msgspec.__file__).parents[1])
        cluster = UnsharedCluster(directory / "cluster", hidden, self._size)
        streams, here = FileStreams(directory / "logs"), LocalEngine(directory / "here")
        return RemoteEngine(cluster, streams, options, here)

    def with_program(self, plan: LaunchPlan, program: Program) -> LaunchPlan:
        own = self.environment
        places = (str(own.root), *_INTERPRETER.places)
        software = Software(str(own.template), (str(own.scripts),), read_only=places)
        code = "import of_cache, sys; print(of_cache.WORD, sys.base_prefix)"
        return replace(plan, argv=("python", "-u", "-c", code), software=software)

    def _environment(self) -> Prefix:
        root = self.cache / "environments"

        def fill(draft: Path) -> None:
            prefix = make_prefix(draft, _INTERPRETER)
            prefix.scripts.mkdir()
            (prefix.site / "of_cache.py").write_text("WORD = 'it came'\n")
            write_template(prefix, Prefix(root / "base", _MINOR))

        return Prefix(Shelf(root).put("base", fill, writable="template"), _MINOR)


@needs_mounts
class TestUnshared:
    @pytest.fixture
    def size(self) -> str:
        return "1g"

    @pytest.fixture
    def lab(self, tmp_path: Path, size: str) -> Iterator[Lab]:
        lab = UnsharedLab(tmp_path, size)
        yield lab
        remove_cache(lab.cache)

    def test_program_runs_from_copied_files(self, lab: UnsharedLab, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slots, "_CONTENT_REPORT_DELAY", 0.0)

        async def body(_: object, stage: Stage) -> None:
            uid = await stage.run(Program())
            assert (await stage.wait_for_exit(uid)).exit.exit_code == 0
            [line] = stage.lines(uid)
            assert line["m"] == f"it came {lab.environment.root}"
            delays = [event.delay for event in stage.events if isinstance(event, StartWaits)]
            assert delays[0] and delays[0].cause is WaitReason.CONTENT
            assert "being sent to alder" in delays[0].message and delays[-1] is None

        run_with_stage(body)(self, lab)

    @pytest.mark.parametrize("size", ["1m"])
    def test_node_with_a_full_disk_is_reported(self, lab: UnsharedLab) -> None:
        async def body(_: object, stage: Stage) -> None:
            uid = stage.job()
            await stage.allocate(uid)
            with pytest.raises(EngineUnavailable, match="are free on the disk of"):
                await stage.engine.launch([stage.plan(uid, Program())])

        run_with_stage(body)(self, lab)
