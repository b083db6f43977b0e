"""The duration of one scheduling decision on an existing snapshot, with 10,000 nodes and 100,000 queued jobs.

`python -m bench.scheduler_scale` prints seconds of wall time. The building of the snapshot is measured
separately.
"""

import gc
import random
import time

from trainshed.core.capacity import MachineWanted, QuotaKey
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
)
from trainshed.scheduler.planning import is_still_valid, plan
from trainshed.scheduler.snapshot import Snapshot

NODES = 10_000
JOBS = 100_000
SHAPES = 300
PROJECTS = 50
REGION = "us-central1"
CPUS = "cpus_n1_e2"
GIB = 2**30
SECOND = 10**9
HOUR = 3600 * SECOND
NOW = 1_000_000 * HOUR
DEVICES = ("NVIDIA_TESLA_T4", "NVIDIA_TESLA_V100", "NVIDIA_TESLA_A100")


def nodes(count: int = NODES) -> list[NodeCapacity]:
    """Create nodes. One in four has devices. The others have three sizes."""
    capacities: list[NodeCapacity] = []
    for at in range(count):
        cpus = (16, 32, 64, 96)[at % 4]
        devices = ((DEVICES[at // 4 % 3], 8),) if at % 4 == 3 else ()
        capacities.append(NodeCapacity(f"node-{at:05}", cpus, cpus * 4 * GIB, devices))
    return capacities


def shapes(draw: random.Random, count: int = SHAPES) -> list[tuple[tuple[ReplicaId, Demand], ...]]:
    """Create gangs. Most are small, some have many replicas, some have two pools."""
    drawn: list[tuple[tuple[ReplicaId, Demand], ...]] = []
    for _ in range(count):
        cpus = draw.choice((2, 4, 8, 8, 16, 16, 32, 64))
        devices = draw.choice((0, 0, 0, 1, 2, 4, 8))
        memory = cpus * draw.choice((2, 4)) * GIB
        kind = MachineWanted(None, draw.choice(DEVICES) if devices else None)
        demand = Demand(cpus, memory, devices, kind)
        workers = draw.choice((0, 0, 1, 3, 7, 15, 63))
        replicas = [(ReplicaId(0, 0), demand), *((ReplicaId(1, i), demand) for i in range(workers))]
        if draw.random() < 0.2:
            replicas += [(ReplicaId(2, i), Demand(4, 15 * GIB)) for i in range(3)]
        drawn.append(tuple(replicas))
    return drawn


def gang(draw: random.Random, uid: int, forms: list[tuple[tuple[ReplicaId, Demand], ...]]) -> GangRequest:
    replicas = draw.choice(forms)
    project = f"project-{draw.randrange(PROJECTS):02}"
    return GangRequest(
        uid=JobUid(uid),
        name=f"projects/{project}/locations/{REGION}/customJobs/{uid}",
        project_id=project,
        region=REGION,
        priority=draw.choice((0, 0, 0, 0, 10)),
        created=NOW - HOUR + uid,
        replicas=replicas,
        quota=((CPUS, sum(demand.vcpus for _, demand in replicas)),),
        spot=draw.random() < 0.1,
    )


def apply(snapshot: Snapshot, made: Plan, now: int) -> None:
    """Apply a plan to the snapshot, as a controller does."""
    for decision in made.decisions:
        if isinstance(decision, Admit):
            whole = snapshot.entries[decision.uid].gang
            snapshot.put(GangState(whole, places=decision.nodes, until=now + 24 * HOUR))
        elif isinstance(decision, Preempt):
            snapshot.remove(decision.uid)


def measure(
    nodes_count: int = NODES, jobs: int = JOBS, shapes_count: int = SHAPES, cpus_of_each: float = 0
) -> dict[str, float]:
    """Measure decisions with a quota of `cpus_of_each` CPUs for each project; 0 = no quotas. The figures are:

    - `build`: seconds to build the snapshot
    - `first`: the first decision
    - `admitted`: number of jobs that it starts
    - `settling`: the last decision that fills the nodes
    - `full`: a decision without free capacity
    - `impatient`: the same, after all jobs have waited too long
    - `freed`: a decision after one job in a hundred has ended
    - `change`: one change, in microseconds
    - `held`: the longest time for which the event loop is blocked, to copy the snapshot for the planning
      thread or to apply the decisions
    """
    draw = random.Random(7)
    forms = shapes(draw, shapes_count)
    snapshot = Snapshot(Policy(strict=True))
    gangs = [gang(draw, uid, forms) for uid in range(1, jobs + 1)]
    capacities = nodes(nodes_count)
    figures: dict[str, float] = {}

    begun = time.perf_counter()
    # As a service does when it starts.
    gc.disable()
    if cpus_of_each:
        projects = {item.project_id for item in gangs}
        snapshot.set_quotas({QuotaKey(p, REGION, CPUS): cpus_of_each for p in projects})
    snapshot.set_nodes(capacities)
    for item in gangs:
        snapshot.put(GangState(item, waiting_since=NOW))
    gc.enable()
    figures["build"] = time.perf_counter() - begun
    gc.freeze()
    try:
        return figures | _decisions(snapshot)
    finally:
        gc.unfreeze()


def _decisions(snapshot: Snapshot) -> dict[str, float]:
    figures: dict[str, float] = {"held": 0.0}
    made, figures["first"] = timed_plan(snapshot, NOW, figures)
    figures["admitted"] = len(made.decisions)
    # A decision starts a limited number of jobs. The next one follows immediately.
    while len(made.decisions):
        made, figures["settling"] = timed_plan(snapshot, NOW + SECOND, figures)
    _, figures["full"] = timed_plan(snapshot, NOW + 2 * SECOND, figures)
    _, figures["impatient"] = timed_plan(snapshot, NOW + HOUR, figures)
    running = [uid for uid, entry in snapshot.entries.items() if entry.is_placed]
    for uid in running[::100]:
        snapshot.remove(uid)
    made, figures["freed"] = timed_plan(snapshot, NOW + 3 * SECOND, figures)
    figures["freed_admitted"] = len(made.decisions)
    return figures


def timed_plan(snapshot: Snapshot, now: int, figures: dict[str, float]) -> tuple[Plan, float]:
    """Apply a plan to the snapshot. Return the plan and its duration in seconds. Add the longest time for
    which it would block the event loop to `figures`."""
    begun = time.perf_counter()
    planned = snapshot.copy()
    copied = time.perf_counter()
    made = plan(planned, now)
    took = time.perf_counter() - begun
    checked = time.perf_counter()
    for decision in made.decisions:
        assert is_still_valid(snapshot, planned, decision)
    applied = time.perf_counter()
    apply(snapshot, made, NOW)
    ended = time.perf_counter()
    figures.setdefault("change", (ended - applied) / max(1, len(made.decisions)) * 1e6)
    figures["held"] = max(figures["held"], copied - begun, ended - checked)
    return made, took


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:16} {value:10.3f}")
