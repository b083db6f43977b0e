"""The simulated engine keeps the port's promises (`engines.port`), and its faults do what they are called."""

from collections.abc import Callable

import pytest

from tests.sim.engine.clock import Clock, Delays, FaultyEventBus
from tests.sim.engine.programs import Life, Script, forever
from tests.sim.engine.world import Times, World
from trainshed.core.capacity import Node
from trainshed.core.launch import LaunchPlan, Limits
from trainshed.core.lifecycle.replica_events import (
    ReplicaEvent,
    ReplicaExited,
    ReplicaLost,
    ReplicaStarted,
)
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import (
    CapacityChanged,
    EngineEvent,
    EngineUnavailable,
    LinesWritten,
    MetricsWritten,
    NodeChanged,
    NodesChosen,
    NodeState,
    ReplicaReport,
    SlotRequest,
    StartWaits,
)

SECOND = 10**9
JOB = JobUid(5)
PRIMARY, WORKER = ReplicaId(0, 0), ReplicaId(1, 0)
NODES = (Node("node-0", 8, 2**34), Node("node-1", 8, 2**34))
TIMES = Times(lease=30 * SECOND, fence=120 * SECOND, start=SECOND // 2)


class Stage:
    """A world with one listener."""

    def __init__(
        self, scripts: Callable[[Life], Script] = forever, delays: Delays | None = None
    ) -> None:
        self.clock = Clock(1000 * SECOND)
        bus = FaultyEventBus(self.clock, delays, seed=3)
        self.world = World(self.clock, NODES, scripts, times=TIMES, bus=bus, strict=True, seed=1)
        self.heard: list[ReplicaEvent | LinesWritten | MetricsWritten | NodeChanged] = []
        self.listen()

    def listen(self) -> None:
        self.heard.clear()
        self.world.attach(self._hear)

    def _hear(self, event: EngineEvent) -> None:
        assert not isinstance(event, CapacityChanged | StartWaits | NodesChosen)
        self.heard.append(event.event if isinstance(event, ReplicaReport) else event)

    def up(self, *replicas: ReplicaId, node: str = "node-0") -> None:
        gang = replicas or (PRIMARY,)
        self.world.allocate(JOB, 1, [SlotRequest(r, f"host-{r}", node) for r in gang])
        self.world.launch([plan(r) for r in gang])
        self.wait(1)

    def wait(self, seconds: float) -> None:
        self.clock.advance(self.clock.now + round(seconds * SECOND))

    def ends(self) -> list[ReplicaExited | ReplicaLost]:
        return [e for e in self.heard if isinstance(e, ReplicaExited | ReplicaLost)]

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.heard]


def plan(replica: ReplicaId = PRIMARY, incarnation: int = 1, attempt: int = 1) -> LaunchPlan:
    return LaunchPlan(
        JOB,
        attempt,
        replica,
        incarnation,
        ("true",),
        (),
        f"host-{replica}",
        "",
        (),
        limits=Limits(cpu_weight=400),
    )


def test_a_killed_shim_takes_its_program_with_it_and_leaves_no_record() -> None:
    stage = Stage()
    stage.up()
    (sim_slot,) = stage.world.sim_slots()
    assert stage.world.kill_shim(sim_slot)
    stage.wait(1)
    assert isinstance(stage.ends()[0], ReplicaLost)
    assert not stage.world.kill_shim(sim_slot)


def test_replicas_of_a_dead_node_are_lost_when_the_fence_has_passed_and_not_before() -> None:
    """Engine port, NodeChanged: each is reported lost as soon as it is certain that it is dead."""
    stage = Stage()
    stage.up()
    stage.world.die("node-0")
    stage.wait(119)
    assert [e.state for e in stage.heard if isinstance(e, NodeChanged)] == [NodeState.GONE]
    assert stage.ends() == []
    stage.wait(2)
    assert isinstance(stage.ends()[0], ReplicaLost)
    with pytest.raises(EngineUnavailable, match="does not answer"):
        stage.world.allocate(JobUid(6), 1, [SlotRequest(PRIMARY, "host", "node-0")])


def test_a_cut_off_node_that_is_back_in_time_goes_on_and_one_that_is_late_has_killed_its_own() -> (
    None
):
    """spec/invariants#one-incarnation: never two live incarnations."""
    stage = Stage()
    stage.up()
    stage.world.cut_off("node-0")
    stage.wait(60)
    assert len(stage.world.running()) == 1
    stage.world.come_back("node-0")
    stage.wait(200)
    assert stage.ends() == []
    stage.world.cut_off("node-0")
    stage.wait(121)
    assert stage.world.running() == []
    assert len(stage.ends()) == 1
    stage.world.allocate(JOB, 1, [SlotRequest(PRIMARY, "host", "node-1")])
    stage.world.launch([plan(incarnation=2)])
    stage.world.come_back("node-0")
    stage.wait(5)
    assert [s.latest.number for s in stage.world.running() if s.latest] == [2]
    assert stage.world.violations == []


def test_an_end_behind_a_cut_cable_is_told_when_the_node_is_back() -> None:
    stage = Stage(lambda _: Script(10 * SECOND, code=4))
    stage.up()
    stage.world.cut_off("node-0")
    stage.wait(50)
    assert stage.ends() == []
    stage.world.come_back("node-0")
    stage.wait(1)
    assert isinstance(stage.ends()[0], ReplicaExited)


def test_a_stop_behind_a_cut_cable_is_obeyed_when_the_node_is_back() -> None:
    stage = Stage()
    stage.up()
    stage.world.cut_off("node-0")
    stage.world.stop(JOB, 1, SECOND)
    stage.wait(10)
    assert stage.ends() == []
    stage.world.come_back("node-0")
    stage.wait(2)
    assert isinstance(stage.ends()[-1], ReplicaExited)


def test_nothing_starts_while_there_is_no_zygote_and_what_runs_goes_on() -> None:
    stage = Stage()
    stage.up()
    stage.world.kill_zygote(20 * SECOND)
    stage.world.allocate(JobUid(6), 1, [SlotRequest(PRIMARY, "host", "node-0")])
    other = LaunchPlan(JobUid(6), 1, PRIMARY, 1, ("true",), (), "host", "", ())
    stage.world.launch([other])
    stage.wait(19)
    assert len(stage.world.running()) == 1
    stage.wait(2)
    assert len(stage.world.running()) == 2


def test_late_and_repeated_news_keeps_its_order_per_replica() -> None:
    """Engine port, watch: per replica started, then its end; of several replicas in any order."""
    stage = Stage(lambda _: Script(2 * SECOND), Delays(60 * SECOND, 0.5))
    replicas = [ReplicaId(1, index) for index in range(40)]
    stage.world.strict = False
    stage.up(*replicas)
    stage.wait(300)
    assert len(stage.heard) > 80
    heard = stage.heard
    for replica in replicas:
        mine = [e for e in heard if not isinstance(e, NodeChanged) and e.replica == replica]
        ends = [isinstance(e, ReplicaExited) for e in mine]
        assert ends == sorted(ends)
        assert ends[-1]
    firsts = [e.replica for e in heard if isinstance(e, ReplicaStarted)]
    assert firsts != sorted(firsts, key=replicas.index)
