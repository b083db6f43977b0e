"""Programs that are started on nodes before agents have loaded: on nodes that have told of themselves."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.contract.engines.warm.runtimes import ToyRuntime
from tests.engines.process_cluster import NODES
from tests.engines.remote_lab import RemoteLab
from tests.ports import free_port
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.conformance.lab import Lab, Program
from trainshed.engines.conformance.stage import PRIMARY, SECOND_REPLICA, Stage, staged
from trainshed.engines.conformance.suite import FOREVER, Conformance
from trainshed.engines.local import spawner
from trainshed.engines.port import EngineUnavailable, SlotRequest
from trainshed.engines.remote import first_start, first_starter, opening
from trainshed.engines.remote.credentials import Credential
from trainshed.engines.remote.engine import KNOWN_NODES
from trainshed.engines.remote.first_start import FirstStart, choose_slots
from trainshed.engines.remote.first_starter import FirstStarter
from trainshed.engines.remote.messages import AgentDocument, NodeFacts
from trainshed.engines.remote.mirror import StreamCopies
from trainshed.replica import protocol

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: its nodes need root")

_OWN = (
    "gang",
    "moves_once",
    "across_a_restart",
    "nothing_is_left",
    "process_killed_at_any_step_of_a_start",
)
"""What is other where nodes are known. All else is in test_remote.py; here it is a soak."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What agents tell of this machine's nodes."""
    directory = tmp_path_factory.mktemp("known")

    async def learn() -> bytes:
        stage = Stage(RemoteLab(directory, free_port()))
        await stage.open()
        try:
            for node in await stage.nodes():
                uid = stage.job()
                await stage.allocate(uid, node=node)
                await stage.engine.launch([stage.plan(uid, Program())])
                await stage.end(uid)
                await stage.engine.release(uid, 1)
            path = directory / "engine" / KNOWN_NODES
            await stage.until(
                lambda: path.exists() and len(json.loads(path.read_text())) == 2, "what is known"
            )
            return path.read_bytes()
        finally:
            await stage.close()

    return asyncio.run(learn())


class TestAgentsApart(Conformance):
    """Each replica has an agent of its own, whose address is known once its process is there, as in Pods."""

    in_short = ("gang", "across_a_restart", "nothing_is_left")

    @pytest.fixture
    def lab(self, tmp_path: Path, known: bytes) -> Lab:
        return RemoteLab(tmp_path, free_port(), known=known, apart=True)

    @staged
    async def test_each_agent_begins_its_own_program(self, stage: Stage) -> None:
        uid, gang, nodes = stage.job(), (PRIMARY, SECOND_REPLICA), await stage.nodes()
        begun: list[list[str]] = []
        text = FirstStart.text

        def noted(first: FirstStart, *arguments: Any) -> bytes:
            made = text(first, *arguments)
            begun.append([program["replica"] for program in json.loads(made)["programs"]])
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FirstStart, "text", noted)
            # Both on one node: agents there know nothing of each other.
            slots = await stage.allocate(uid, *gang, node=nodes[0])
            plans = [stage.plan(uid, Program(prints=1, runs=None), each) for each in gang]
            await stage.launch(*plans)
        assert sorted(begun) == [[str(PRIMARY)], [str(SECOND_REPLICA)]]
        assert [slot.address for slot in slots] == ["127.0.0.1"] * 2
        for replica in gang:
            await stage.started(uid, replica)
            assert set(stage.starts(uid, replica)) == {1}
            assert not stage.ends(uid, replica)

    @staged
    async def test_a_process_that_others_do_not_wait_for_begins_as_ever(self, stage: Stage) -> None:
        """A place of the gang is not to be had: processes of the others would give up in the end."""
        lab = stage.lab
        assert isinstance(lab, RemoteLab)
        uid, gang, nodes = stage.job(), (PRIMARY, SECOND_REPLICA), await stage.nodes()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(first_starter, "_TOGETHER", 0.1)
            lab.withhold(nodes[1], withheld=True)
            allocating = asyncio.ensure_future(stage.allocate(uid, *gang, nodes=nodes))
            await stage.until(lambda: any(lab.held().values()), "the agent of the other node")
            lab.withhold(nodes[1], withheld=False)
            await allocating
        await stage.launch(*(stage.plan(uid, FOREVER, replica) for replica in gang))
        for replica in gang:
            await stage.started(uid, replica)
            assert set(stage.starts(uid, replica)) == {1}
            assert not stage.ends(uid, replica)


class TestKnownNodesThatAreKept:
    runtime: ToyRuntime

    @pytest.fixture
    def lab(self, tmp_path: Path, known: bytes) -> Lab:
        self.runtime = ToyRuntime(
            tmp_path / "runtime", (sys.version_info.major, sys.version_info.minor)
        )
        return RemoteLab(tmp_path, free_port(), known=known, keep=60.0, ready_idle=60.0)

    @staged
    async def test_have_an_interpreter_up_after_their_first_program(self, stage: Stage) -> None:
        """It has begun without the agent, whose next one is to find what it needs."""
        lab = stage.lab
        assert isinstance(lab, RemoteLab)
        [node, *_] = await stage.nodes()
        uid = stage.job()
        await stage.allocate(uid, node=node)
        plan = msgspec.structs.replace(
            stage.plan(uid, FOREVER), warm=self.runtime.warm_without_imports()
        )
        await stage.launch(plan)
        await stage.started(uid)
        await stage.until(lambda: lab.has_interpreter_up(node), "an interpreter that is up")


class TestKnownNodes(Conformance):
    in_short = _OWN

    @pytest.fixture
    def lab(self, tmp_path: Path, known: bytes) -> Lab:
        return RemoteLab(tmp_path, free_port(), known=known)

    @staged
    async def test_slots_are_known_before_nodes_are_given(self, stage: Stage) -> None:
        lab = stage.lab
        assert isinstance(lab, RemoteLab)
        [node, *_] = await stage.nodes()
        uid = stage.job()
        lab.withhold(node, withheld=True)
        slots = await stage.allocate(uid, node=node)
        with pytest.raises(EngineUnavailable):
            await stage.engine.launch([stage.plan(uid, Program(prints=1, runs=None))])
        assert not stage.starts(uid) and lab.held() == {}
        assert await stage.allocate(uid, node=node) == slots
        lab.withhold(node, withheld=False)
        await stage.engine.launch([stage.plan(uid, Program(prints=1, runs=None))])
        await stage.printed(uid, 1)
        assert await stage.allocate(uid, node=node) == slots

    @staged
    async def test_a_port_that_somebody_has_is_replaced_before_anything_looks_for_it(
        self, stage: Stage
    ) -> None:
        lab = stage.lab
        assert isinstance(lab, RemoteLab)
        [node, *_] = await stage.nodes()
        uid = stage.job()
        lab.withhold(node, withheld=True)
        [chosen] = await stage.allocate(uid, node=node)
        with socket.socket() as somebody:
            somebody.bind((chosen.address, chosen.port))
            lab.withhold(node, withheld=False)
            with pytest.raises(EngineUnavailable, match="got another place"):
                await stage.engine.launch([stage.plan(uid, FOREVER)])
            [given] = await stage.allocate(uid, node=node)
            assert given.port != chosen.port
            await stage.engine.launch([stage.plan(uid, FOREVER)])
            await stage.started(uid)

    @staged
    async def test_what_waits_for_a_node_that_does_not_come_has_begun_nothing(
        self, stage: Stage
    ) -> None:
        """ADR 93: so no replica of it is lost, and it starts under the same number."""
        lab = stage.lab
        assert isinstance(lab, RemoteLab)
        uid, gang, nodes = stage.job(), (PRIMARY, SECOND_REPLICA), await stage.nodes()
        lab.refuse_steps(nodes[1], refused=True)
        await stage.allocate(uid, *gang, nodes=nodes)
        with pytest.raises(EngineUnavailable):
            await stage.engine.launch([stage.plan(uid, FOREVER, replica) for replica in gang])
        lab.refuse_steps(nodes[1], refused=False)
        await stage.allocate(uid, *gang, nodes=nodes)
        await stage.launch(*(stage.plan(uid, FOREVER, replica) for replica in gang))
        for replica in gang:
            await stage.started(uid, replica)
            assert stage.starts(uid, replica) == [1]
            assert not stage.ends(uid, replica)

    @staged
    async def test_a_launch_that_comes_after_a_failed_start_has_lost_nothing(
        self, stage: Stage
    ) -> None:
        """ADR 100: a step is refused while the launch still looks for what it begins with."""
        lab = stage.lab
        assert isinstance(lab, RemoteLab)
        failed, goes_on = asyncio.Event(), threading.Event()
        start, next_line = FirstStarter.start, StreamCopies.next_line

        async def started(starter: FirstStarter, *arguments: Any) -> None:
            try:
                await start(starter, *arguments)
            finally:
                failed.set()

        def late(copies: StreamCopies, replica: ReplicaId) -> int:
            assert goes_on.wait(lab.patience)
            return next_line(copies, replica)

        uid, gang, nodes = stage.job(), (PRIMARY, SECOND_REPLICA), await stage.nodes()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FirstStarter, "start", started)
            patch.setattr(StreamCopies, "next_line", late)
            lab.refuse_steps(nodes[1], refused=True)
            await stage.allocate(uid, *gang, nodes=nodes)
            plans = [stage.plan(uid, FOREVER, replica) for replica in gang]
            launching = asyncio.ensure_future(stage.engine.launch(plans))
            await failed.wait()
            goes_on.set()
            with pytest.raises(EngineUnavailable):
                await launching
        lab.refuse_steps(nodes[1], refused=False)
        await stage.allocate(uid, *gang, nodes=nodes)
        await stage.launch(*plans)
        for replica in gang:
            await stage.started(uid, replica)
            assert stage.starts(uid, replica) == [1]
            assert not stage.ends(uid, replica)

    @staged
    async def test_an_agent_that_dies_as_it_loads_takes_its_programs_with_it(
        self, stage: Stage
    ) -> None:
        lab = stage.lab
        assert isinstance(lab, RemoteLab)
        uid = stage.job()
        with pytest.MonkeyPatch.context() as patch:
            # Plans that came later than that would not be begun, nor lost.
            patch.setattr(first_start, "_PATIENCE", lab.patience)
            [slot] = await stage.allocate(uid)
            launching = asyncio.ensure_future(stage.engine.launch([stage.plan(uid, FOREVER)]))
            await stage.until(lambda: any(lab.held().values()), "the agent's process")
            lab.end_agents(slot.node)
            await asyncio.gather(launching, return_exceptions=True)
        async with asyncio.timeout(lab.patience):
            while not stage.ends(uid):
                with contextlib.suppress(EngineUnavailable):
                    await stage.engine.launch([stage.plan(uid, FOREVER)])
                await lab.pass_time()
        assert isinstance(stage.ends(uid)[0], ReplicaLost)


def test_programs_are_started_by_a_node_alone(tmp_path: Path, known: bytes) -> None:
    """No agent is there, and no service."""
    zygote = spawner.start()
    try:
        opened = opening.begin(_text(tmp_path, known), _blocking(zygote))
        assert opened is not None
        [(replica, document, shim)] = opened.programs
        assert (replica, document["incarnation"]) == (str(PRIMARY), 1)
        # ADR 100: nobody reads its journal after the node's power is lost.
        assert not document["outlasts_power"]
        shim.settimeout(30)
        said = b""
        while b"exited" not in said:
            part = shim.recv(65536)
            assert part, said
            said += part
        [log] = (tmp_path / "nodes").rglob("000000000000.jsonl")
        assert "hello from a replica" in log.read_text()
    finally:
        zygote.close()


@pytest.mark.parametrize("wrong", ["boot", "port", "software", "broken"])
def test_a_node_that_is_another_one_by_now_begins_nothing(
    tmp_path: Path, known: bytes, wrong: str, capfd: pytest.CaptureFixture[str]
) -> None:
    message = json.loads(_text(tmp_path, known))
    somebody = socket.socket()
    somebody.bind(("127.0.0.1", 0))
    match wrong:
        case "boot":
            message["boot"] = "another"
        case "port":
            message["ports"] = [somebody.getsockname()]
        case "software":
            message["needs"] = [str(tmp_path / "nowhere")]
        case _:
            del message["programs"]
    zygote = spawner.start()
    try:
        assert opening.begin(json.dumps(message).encode(), _blocking(zygote)) is None
    finally:
        zygote.close()
        somebody.close()
    assert "not started before the agent" in capfd.readouterr().err
    assert not list(tmp_path.glob("nodes/*"))
    assert opening.begin(b"", socket.socket()) is None


@pytest.mark.parametrize(("busy", "waits"), [(7, True), (6, False)])
def test_programs_go_first_where_others_take_the_other_processors(
    monkeypatch: pytest.MonkeyPatch, busy: int, waits: bool
) -> None:
    """ADR 93."""
    with _one_that_says(b"") as opened:
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        monkeypatch.setattr(opening, "busy", lambda: busy)
        monkeypatch.setattr(opening, "_LONGEST_START", 0.05)
        assert (_waited(opened) >= 0.05) is waits


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        ([{"e": "started", "at": 1}], True),
        ([{"e": "started", "at": 1}, {"e": "lines", "n": 1}], False),
        ([{"e": "lost", "cause": "no disk"}], False),
    ],
)
def test_an_agent_loads_when_its_programs_have_come_to_a_line(
    monkeypatch: pytest.MonkeyPatch, said: list[protocol.Message], waits: bool
) -> None:
    """ADR 120: but for a tenth of a second at most, since whoever reads lines waits for the agent."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(opening, "_LONGEST_START", 60.0)
    monkeypatch.setattr(opening, "_FIRST_LINES", 0.1)
    words = b"".join(map(protocol.encode, said))
    with _one_that_says(words) as opened:
        assert (_waited(opened) >= 0.1) is waits
        [(_, _, shim)] = opened.programs
        assert shim.recv(1000) == words, "the agent reads it again"


@contextlib.contextmanager
def _one_that_says(words: bytes) -> Generator[opening.Opening]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(words)
        opened = opening.Opening("", [])
        opened.programs.append(("replica", {}, ours))
        yield opened


def _waited(opened: opening.Opening) -> float:
    begun = time.monotonic()
    opening.give_precedence(opened)
    return time.monotonic() - begun


def _blocking(zygote: spawner.ZygoteHandle) -> socket.socket:
    zygote.connection.setblocking(True)
    return zygote.connection


def _text(directory: Path, known: bytes) -> bytes:
    """Of one replica that prints a line."""
    facts = msgspec.json.decode(known, type=dict[str, NodeFacts])[NODES[0]]
    uid, request = JobUid(7), SlotRequest(PRIMARY, "replica", NODES[0])
    slots = choose_slots(
        uid,
        [request],
        facts,
        identity=NODES[0],
    )
    document = AgentDocument(
        credential=Credential("hold/alder/1", "", 0, "", "", "", ""),
        job_uid=uid,
        attempt=1,
        node=NODES[0],
        address="",
        directory=str(directory / "nodes"),
        lease=10.0,
        read_only=(sys.prefix, sys.base_prefix),
    )
    program = "print('hello from a replica')"
    first = FirstStart()
    first.choose(slots, {PRIMARY: facts})
    slot = slots[PRIMARY]
    plan = LaunchPlan(
        *(uid, 1, PRIMARY, 1),
        argv=(sys.executable, "-c", program),
        environ=(("PATH", os.environ["PATH"]),),
        hostname=slot.hostname,
        address=slot.address,
        hosts=first.hosts(),
    )
    first.offer([(plan, ())], {PRIMARY: 0})
    return first.text(document, [PRIMARY])
