"""A fake view of the cluster's capacity for the API's tests. The test sets its answers, and it
applies the drains and quotas in the store."""

from msgspec.structs import replace

from trainshed.core.capacity import Load, NodeCondition, NodeStatus, Preflight, QuotaKey, QuotaStatus, Waiting
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.core.usage import Use, uses
from trainshed.store.sqlite.reader import Reader

GIB = 2**30


def node(name: str, *replicas: str) -> NodeStatus:
    """Return a node of 8 CPUs and one T4. Each replica uses 2 CPUs and 4 GiB."""
    count = len(replicas)
    return NodeStatus(
        name,
        8,
        32 * GIB,
        (("NVIDIA_TESLA_T4", 1),),
        condition=NodeCondition.READY,
        cause=None,
        used_vcpus=2 * count,
        used_memory_bytes=4 * count * GIB,
        used_accelerators=(),
        replicas=replicas,
    )


class FakeCapacity:
    """Implements `api.calls.services.CapacityView`. `asked` contains the jobs of all preflight calls."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.reasons: dict[JobUid, Waiting] = {}
        self.positions: dict[JobUid, int] = {}
        self.answer = Preflight()
        self.asked: list[Job] = []
        self.known: tuple[NodeStatus, ...] = (node("node-1"), node("node-2"))
        self.used: dict[QuotaKey, float] = {}
        self.held: tuple[Job, ...] = ()
        self._limits: dict[QuotaKey, float] = {}
        self.readmitted: list[str] = []

    def explain_wait(self, uid: JobUid) -> Waiting | None:
        return self.reasons.get(uid)

    def position(self, uid: JobUid) -> int:
        return self.positions.get(uid, 0)

    async def preflight(self, job: Job) -> Preflight:
        self.asked.append(job)
        return self.answer

    def nodes(self) -> tuple[NodeStatus, ...]:
        return self.known

    def accelerators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for node in self.known for kind, _ in node.accelerators))

    def quotas(self, project_id: str) -> tuple[QuotaStatus, ...]:
        return tuple(
            QuotaStatus(key, self._limits.get(key), self.used.get(key, 0), 0)
            for key in {**self.used, **self._limits}
            if key.project_id == project_id
        )

    def placed_jobs(self) -> tuple[Job, ...]:
        return self.held

    def uses(self, job: Job, until: Nanos) -> tuple[Use, ...]:
        return uses(job, until, {node.name: node for node in self.known})

    def load(self) -> Load:
        return Load({}, 0, ())

    async def readmit(self, node: str) -> None:
        self.readmitted.append(node)

    async def capacity_changed(self) -> None:
        drains = {drain.node: drain.reason for drain in await self._reader.drained_nodes()}
        self.known = tuple(
            replace(
                node,
                condition=NodeCondition.DRAINED if node.name in drains else NodeCondition.READY,
                cause=drains.get(node.name, ""),
            )
            for node in self.known
        )
        self._limits = dict(await self._reader.quotas())
