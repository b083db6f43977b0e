"""The simulated world: nodes, slots and programs that run with or without a service.

All events run on its `Clock`. It executes calls like a real engine, and records forbidden ones in
`violations`: two live incarnations of a replica, or a node over its capacity. Tests cause faults by its
methods (`die`, `cut_off`, `kill_shim`, …).
"""

import random
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from tests.sim.engine.clock import Clock, FaultyEventBus
from tests.sim.engine.programs import (
    SIGKILL,
    SIGSEGV,
    Fate,
    Gang,
    Gangs,
    Incarnation,
    Life,
    Processes,
    Reports,
    Scripts,
    SimSlot,
    forever,
)
from tests.sim.engine.streams import Journals, Notebooks
from trainshed.core.capacity import Node
from trainshed.core.launch import LaunchPlan
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Nanos
from trainshed.engines.port import (
    EngineEvent,
    EngineUnavailable,
    Fault,
    LaunchRejected,
    LinesWritten,
    MetricsWritten,
    NodeChanged,
    NodeState,
    Slot,
    SlotRequest,
)


class World:
    """A simulated world. `strict`: exceeding a node's capacity is a violation. `seed` only
    determines delays.
    """

    def __init__(
        self,
        clock: Clock,
        nodes: Sequence[Node],
        scripts: Scripts = forever,
        *,
        times: "Times | None" = None,
        bus: FaultyEventBus | None = None,
        strict: bool = False,
        seed: int = 0,
    ) -> None:
        self.clock = clock
        self.scripts = scripts
        self.times = times or Times()
        self.bus = bus or FaultyEventBus(clock)
        self._nodes = Nodes(clock, nodes, self.times, self.bus, self._fence)
        self.places = self._nodes.places
        self.strict = strict
        self.violations: list[str] = []
        self.refuse_launches = 0
        self.unavailable_until = 0
        self.starts = 0
        self.journals = Journals()
        self.notebooks = Notebooks()
        self._processes = Processes(
            clock,
            self.times.start,
            random.Random(seed),
            self._tell,
            printed=self._print,
            reported=self._report,
        )
        self._gangs = Gangs()
        #: All incarnations ever launched, in order, including those of released slots.
        self.lived: list[tuple[SimSlot, Incarnation]] = []

    # --- calls of a service ---

    def attach(self, listener: Callable[[EngineEvent], None]) -> None:
        """Set the listening service. It receives the events of every replica again."""
        self.bus.attach(listener)
        self._nodes.tell_all()
        for sim_slot in self.sim_slots():
            if (latest := sim_slot.latest) is not None:
                self._tell(sim_slot, latest)

    def allocate(self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]) -> tuple[Slot, ...]:
        self._answer()
        for request in requests:
            if request.node not in self.places:
                raise LaunchRejected(f"there is no node {request.node}; name one of capacity()")
        for request in requests:
            sim_slot = self.sim_slot(job_uid, attempt, request.replica)
            if sim_slot is None or sim_slot.slot.node != request.node:
                self._nodes.require(request.node)
                if sim_slot is not None and sim_slot.latest is not None and sim_slot.latest.lives:
                    raise EngineUnavailable(f"{request.replica} still lives on {sim_slot.slot.node}")
        return self._gangs.take(job_uid, attempt, requests)

    def launch(self, plans: Sequence[LaunchPlan]) -> None:
        self._answer()
        if self.refuse_launches:
            self.refuse_launches -= 1
            raise LaunchRejected("the simulated engine was told to refuse this launch")
        sim_slots = [self._require_slot(plan.job_uid, plan.attempt, plan.replica) for plan in plans]
        for plan, sim_slot in zip(plans, sim_slots, strict=True):
            if plan.incarnation not in sim_slot.incarnations and plan.incarnation > sim_slot.last_rejected:
                self._nodes.require(sim_slot.slot.node)
        for plan, sim_slot in zip(plans, sim_slots, strict=True):
            if (known := sim_slot.incarnations.get(plan.incarnation)) is not None:
                self._tell(sim_slot, known)
            elif plan.incarnation <= sim_slot.last_rejected:
                self.bus.tell(sim_slot.never_started(plan.incarnation))
            else:
                self._hand_over(sim_slot, plan)

    def stop(self, job_uid: JobUid, attempt: int, grace: int) -> None:
        self._answer()
        for sim_slot in self._gangs.of(job_uid, attempt).values():
            latest = sim_slot.latest
            sim_slot.last_rejected = 10**9
            if latest is None:
                self.bus.tell(sim_slot.never_started(1))
            else:
                self._stop(sim_slot, latest, grace)

    def stop_replica(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, grace: int
    ) -> None:
        self._answer()
        sim_slot = self._require_slot(job_uid, attempt, replica)
        if (known := sim_slot.incarnations.get(incarnation)) is not None:
            self._stop(sim_slot, known, grace)
        else:
            sim_slot.last_rejected = max(sim_slot.last_rejected, incarnation)
            self.bus.tell(sim_slot.never_started(incarnation))

    def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        self._answer()
        sim_slot = self.sim_slot(job_uid, attempt, replica)
        run = sim_slot.incarnations.get(incarnation) if sim_slot is not None else None
        if sim_slot is not None and run is not None and run.fate is Fate.RUNNING:
            signal = SIGSEGV if fault is Fault.SEGV else SIGKILL
            self._processes.end(sim_slot, run, None, signal, oom=fault is Fault.OOM)

    def allocations(self) -> tuple[Gang, ...]:
        self._answer()
        return self._gangs.names()

    def release(self, job_uid: JobUid, attempt: int) -> None:
        self._answer()
        for sim_slot in self._gangs.of(job_uid, attempt).values():
            if sim_slot.latest is not None and sim_slot.latest.lives:
                raise EngineUnavailable(f"{_name(sim_slot)} still lives; stop it first")
        self._gangs.release(job_uid, attempt)

    # --- faults ---

    def die(self, node: str) -> None:
        """Cut a node's power: all its processes die at once, and no event reports it before the fence."""
        place = self.places[node]
        if place.alive:
            place.alive = False
            for sim_slot, run in self._on(node):
                if run.lives:
                    self._processes.lose(sim_slot, run, f"node {node} died", tell=False)
            self._nodes.silence(node)

    def cut_off(self, node: str) -> None:
        """Make a node unreachable. Its programs continue at most until the fence."""
        place = self.places[node]
        if place.reachable:
            self._nodes.silence(node)

    def come_back(self, node: str) -> None:
        """Let a dead or disconnected node answer again. It receives the decisions about its replicas."""
        self._nodes.come_back(node)
        for sim_slot, run in self._on(node):
            self._tell(sim_slot, run)
            if run.lives and run.to_stop is not None:
                self._stop(sim_slot, run, run.to_stop)

    def drain(self, node: str, *, draining: bool = True) -> None:
        """Drain a node in the engine, or end the drain."""
        self._nodes.drain(node, draining=draining)

    def kill_shim(self, sim_slot: SimSlot) -> bool:
        """Kill a replica's shim, and its program with it. Returns False if neither runs."""
        run = sim_slot.latest
        if run is None or not run.lives:
            return False
        self._processes.lose(sim_slot, run, "its shim is gone")
        return True

    def end(self, sim_slot: SimSlot, code: int) -> None:
        """End a running program before the end of its script."""
        run = sim_slot.latest
        assert run is not None and run.fate is Fate.RUNNING
        self._processes.end(sim_slot, run, code, None)

    def kill_zygote(self, back_after: int) -> None:
        """Prevent starts for `back_after` ns, until another zygote exists. Running programs continue."""
        self._processes.no_starts_before(self.clock.now + back_after)

    def fail(self, until: Nanos) -> None:
        """Make the engine unavailable until then."""
        self.unavailable_until = max(self.unavailable_until, until)

    # --- observations ---

    def sim_slots(self) -> Iterator[SimSlot]:
        return self._gangs.sim_slots()

    def sim_slot(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> SimSlot | None:
        return self._gangs.of(job_uid, attempt).get(replica)

    def running(self) -> list[SimSlot]:
        """Return the slots with a running program."""
        return [s for s in self.sim_slots() if s.latest is not None and s.latest.fate is Fate.RUNNING]

    # --- internals ---

    def _answer(self) -> None:
        if self.clock.now < self.unavailable_until:
            raise EngineUnavailable("the simulated engine was told not to answer now")

    def _require_slot(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> SimSlot:
        sim_slot = self.sim_slot(job_uid, attempt, replica)
        if sim_slot is None:
            raise LaunchRejected(f"{replica} of job {job_uid} has no slot; allocate one")
        return sim_slot

    def _hand_over(self, sim_slot: SimSlot, plan: LaunchPlan) -> None:
        script = self.scripts(Life(plan.job_uid, plan.attempt, plan.replica, plan.incarnation))
        for other in self._gangs.of_replica(sim_slot.job_uid, sim_slot.replica):
            if (latest := other.latest) is not None and latest.lives:
                self._add_violation(
                    f"{_name(sim_slot)}.{plan.incarnation} is to start while {other.attempt}.{latest.number} "
                    "lives"
                )
        self.starts += 1
        run = sim_slot.begin(plan, script)
        run.launch_time = self.clock.now
        self.lived.append((sim_slot, run))
        self._processes.start(sim_slot, run)

    def _stop(self, sim_slot: SimSlot, run: Incarnation, grace: int) -> None:
        if run.lives and not self.places[run.node].reachable:
            run.to_stop = grace  # as soon as it is reachable, if its fence does not come first
        else:
            self._processes.stop(sim_slot, run, grace)

    def _fence(self, node: str) -> None:
        for sim_slot, run in self._on(node):
            if run.lives:
                self._processes.lose(sim_slot, run, "its node does not answer", tell=False)
            self._tell(sim_slot, run, fenced=True)

    def _on(self, node: str) -> list[tuple[SimSlot, Incarnation]]:
        """Return all launched incarnations of the node in unreleased slots."""
        placed = ((sim_slot, run) for sim_slot in self.sim_slots() for run in sim_slot.incarnations.values())
        return [(sim_slot, run) for sim_slot, run in placed if run.node == node]

    def _check_room(self, node: str) -> None:
        takes = [run.takes for _, run in self._on(node) if run.fate is Fate.RUNNING]
        if not self.strict or not takes:
            return
        has, used = self.places[node].has, tuple(map(sum, zip(*takes, strict=True)))
        if any(wants > there for wants, there in zip(used, has, strict=True)):
            self._add_violation(f"node {node} has {has} and is given {used}")

    def _tell(self, sim_slot: SimSlot, run: Incarnation, *, fenced: bool = False, news: bool = False) -> None:
        """Send all events of an incarnation, or only the `news`. A silent node sends none until its fence."""
        if run.fate is Fate.RUNNING and news:
            self._check_room(run.node)
        if self.places[run.node].reachable or fenced or run.cause == "never started":
            for event in sim_slot.events_of(run)[-1:] if news else sim_slot.events_of(run):
                self.bus.tell(event)

    def _print(self, sim_slot: SimSlot, run: Incarnation, text: str) -> None:
        which = (sim_slot.job_uid, sim_slot.attempt, sim_slot.replica)
        line = self.journals.write(*which, run.number, at=self.clock.wall, text=text)
        self.bus.tell(LinesWritten(*which, line.n + 1))

    def _report(self, sim_slot: SimSlot, run: Incarnation, report: Reports) -> None:
        self.notebooks.write(sim_slot.job_uid, run.start_time, self.clock.wall, report)
        self.bus.tell(MetricsWritten(sim_slot.job_uid, sim_slot.attempt, sim_slot.replica))

    def _add_violation(self, what: str) -> None:
        self.violations.append(f"at {self.clock.now / SECOND:.3f} s: {what}")


def _name(sim_slot: SimSlot) -> str:
    return f"{sim_slot.job_uid}/{sim_slot.attempt}/{sim_slot.replica}"


SECOND = 10**9


class Times(Struct, frozen=True):
    """Durations in a simulated world, in nanoseconds."""

    #: Time after which a silent node counts as lost.
    lease: int = 30 * SECOND
    #: Time after which a disconnected shim has killed its program, and its replica may be reported lost.
    #: Longer than `lease`.
    fence: int = 120 * SECOND
    #: Maximum time from a launch to its process.
    start: int = SECOND // 2


class Place(Struct):
    """A simulated node. `reachable`: the service can reach the node. `since`: time of the last change."""

    node: Node
    reachable: bool = True
    alive: bool = True
    is_gone: bool = False
    draining: bool = False
    since: Nanos = 0

    @property
    def state(self) -> NodeState:
        if self.is_gone:
            return NodeState.GONE
        return NodeState.DRAINING if self.draining else NodeState.UP

    @property
    def has(self) -> tuple[float, int, int]:
        """vCPUs, bytes of memory, accelerators."""
        accelerators = sum(count for _, count in self.node.accelerators)
        return self.node.vcpus, self.node.memory_bytes, accelerators


class Nodes:
    """All nodes of a world. `fenced`: called with a node that was silent until its fence."""

    def __init__(
        self,
        clock: Clock,
        nodes: Sequence[Node],
        times: Times,
        bus: FaultyEventBus,
        fenced: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._times = times
        self._bus = bus
        self._fence = fenced
        self.places = {node.name: Place(node) for node in nodes}

    def tell_all(self) -> None:
        """Send the lost and draining nodes to a new listener."""
        for place in self.places.values():
            if place.is_gone or place.draining:
                self._tell(place, "as found")

    def require(self, node: str) -> None:
        """Raise EngineUnavailable if no program can be started there now."""
        place = self.places[node]
        if place.is_gone or not place.reachable:
            raise EngineUnavailable(f"node {node} does not answer; name another one, or wait")

    def drain(self, node: str, *, draining: bool) -> None:
        place = self.places[node]
        if place.draining != draining:
            place.draining = draining
            self._tell(place, "the engine's own maintenance")

    def silence(self, node: str) -> None:
        """Silence a node: it is lost after its lease and fenced later, unless it returns first."""
        place = self.places[node]
        place.reachable, place.since = False, self._clock.now
        since = place.since

        def still() -> bool:
            return not place.reachable and place.since == since

        def mark_gone() -> None:
            if still():
                place.is_gone = True
                self._tell(place, "it does not answer")

        def fence() -> None:
            if still():
                self._fence(node)

        self._clock.after(self._times.lease, mark_gone)
        self._clock.after(self._times.fence, fence)

    def come_back(self, node: str) -> None:
        place = self.places[node]
        place.reachable, place.alive, place.since = True, True, self._clock.now
        if place.is_gone:
            place.is_gone = False
            self._tell(place, "it answers again")

    def _tell(self, place: Place, cause: str) -> None:
        self._bus.tell(NodeChanged(place.node.name, place.state, cause))
