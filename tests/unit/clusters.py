"""Small clusters and gangs, and a simulation that applies the scheduler's plans, for scheduler tests."""

from collections import defaultdict
from collections.abc import Iterable

from trainshed.core.capacity import Acceptance, MachineWanted, NodeCondition, OthersUse
from trainshed.core.names import JobUid, ReplicaId
from trainshed.scheduler.model import (
    Admit,
    Demand,
    GangRequest,
    GangState,
    NodeCapacity,
    Plan,
    Policy,
    Preempt,
    Quotas,
    StockOut,
)
from trainshed.scheduler.planning import plan, state_after
from trainshed.scheduler.snapshot import Snapshot

GIB = 2**30
SECOND = 10**9
T4 = "NVIDIA_TESLA_T4"
V100 = "NVIDIA_TESLA_V100"
NOW = 1_000_000 * SECOND
STRICT = Policy(strict=True, patience=600 * SECOND)
REGION = "us-central1"


def gang(
    uid: int,
    cpus: float = 1,
    replicas: int = 1,
    *,
    memory: int = 0,
    gpus: int = 0,
    kind: str = T4,
    project: str = "p",
    priority: int = 0,
    quota: tuple[tuple[str, float], ...] = (),
    spot: bool = False,
    created: int = 0,
    machine: str = "",
    region: str = REGION,
    person: str = "",
) -> GangRequest:
    """Return a gang of `replicas` equal replicas: a primary, and the others in pool 1.

    Gangs with smaller uids were created earlier, unless `created` specifies the time.
    """
    demand = Demand(cpus, memory * GIB, gpus, MachineWanted(machine, kind if gpus else None))
    ids = (ReplicaId(0, 0), *(ReplicaId(1, i) for i in range(replicas - 1)))
    return GangRequest(
        uid=JobUid(uid),
        name=f"projects/{project}/locations/{REGION}/customJobs/{uid}",
        project_id=project,
        region=region,
        priority=priority,
        created=created or uid,
        replicas=tuple((replica, demand) for replica in ids),
        person=person,
        quota=quota,
        spot=spot,
    )


def node(
    name: str,
    cpus: float = 8,
    memory: int = 64,
    gpus: int = 0,
    kind: str = T4,
    condition: NodeCondition = NodeCondition.READY,
    others: OthersUse = OthersUse(),
    accepts: Acceptance = Acceptance(),
) -> NodeCapacity:
    devices = ((kind, gpus),) if gpus else ()
    return NodeCapacity(name, cpus, memory * GIB, devices, others, accepts, condition=condition)


class SimulatedCluster:
    """The states of gangs, and a scheduler snapshot that receives each change.

    `check` recounts all resources from the states only.
    """

    def __init__(
        self, nodes: Iterable[NodeCapacity], policy: Policy = STRICT, quotas: Quotas | None = None
    ) -> None:
        self.snapshot = Snapshot(policy)
        self.policy = policy
        self.quotas = quotas or {}
        self.states: dict[JobUid, GangState] = {}
        self.snapshot.set_quotas(self.quotas)
        self.set_nodes(nodes)

    def set_nodes(self, nodes: Iterable[NodeCapacity]) -> None:
        self.nodes = {room.name: room for room in nodes}
        self.snapshot.set_nodes(list(self.nodes.values()))

    def put(self, state: GangState) -> None:
        self.states[state.gang.uid] = state
        self.snapshot.put(state)

    def wait(self, *gangs: GangRequest, since: int = NOW, not_before: int = 0) -> None:
        for item in gangs:
            self.put(GangState(item, waiting_since=since, not_before=not_before))

    def run(self, item: GangRequest, *nodes: str, until: int = 0, leaving: bool = False) -> None:
        """Place one replica of the gang on each node, and the remaining replicas on the last node."""
        names = [*nodes, *[nodes[-1]] * (len(item.replicas) - len(nodes))]
        places = tuple((replica, name) for (replica, _), name in zip(item.replicas, names, strict=True))
        self.put(GangState(item, places=places, until=until, leaving=leaving))

    def end(self, uid: int) -> None:
        del self.states[JobUid(uid)]
        self.snapshot.remove(JobUid(uid))

    def plan(self, now: int = NOW) -> Plan:
        made = plan(self.snapshot.copy(), now)
        self.snapshot.reservations = made.reservations
        return made

    def admitted_jobs(self, now: int = NOW) -> list[int]:
        return [d.uid for d in self.plan(now).decisions if isinstance(d, Admit)]

    def preempted_jobs(self, now: int = NOW) -> list[int]:
        return [d.uid for d in self.plan(now).decisions if isinstance(d, Preempt)]

    def apply_plan(self, made: Plan) -> None:
        """Apply a plan as the controller does. A gang that can never fit leaves the queue."""
        for decision in made.decisions:
            if isinstance(decision, StockOut):
                self.end(decision.uid)
            else:
                self.put(state_after(self.states[decision.uid], decision))

    def step(self, now: int) -> Plan:
        made = self.plan(now)
        self.apply_plan(made)
        self.check()
        return made

    def check(self) -> None:
        """Check that no node and no quota is exceeded, and that no gang is placed partially.

        No replica may be placed twice.
        """
        used: defaultdict[tuple[str, str], float] = defaultdict(float)
        quota: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        running = gangs = 0
        for state in self.states.values():
            item = state.gang
            if not state.places and not state.unplaced:
                continue
            placed = [replica for replica, _ in state.places]
            replicas = sorted([*placed, *(replica for replica, _ in state.unplaced)])
            assert replicas == [replica for replica, _ in item.replicas]
            running += len(item.replicas)
            gangs += 1
            for metric, amount in item.quota:
                quota[item.project_id, item.region, metric] += amount
            demands = dict(item.replicas)
            for replica, name in state.places:
                demand = demands[replica]
                used[name, "cpus"] += demand.vcpus
                used[name, "memory"] += demand.memory_bytes
                used[name, demand.machine.accelerator or ""] += demand.accelerators
        for key, limit in self.quotas.items():
            spent = quota[key.project_id, key.region, key.metric]
            assert spent <= limit, key
        if not self.policy.strict:
            assert running <= self.policy.max_replicas or gangs == 1
            return
        for (name, resource), amount in used.items():
            room = self.nodes[name]
            has = {"cpus": room.vcpus, "memory": room.memory_bytes, **dict(room.accelerators)}
            others = dict(room.others.accelerators)
            others |= {"cpus": room.others.vcpus, "memory": room.others.memory_bytes}
            if amount:
                assert amount <= has.get(resource, 0) - others.get(resource, 0), (name, resource)
