"""Persistent resources from the perspective of the scheduler.

The jobs of each resource are in a separate snapshot, whose nodes are the machines of the resource. All rules
of the queue therefore apply among these jobs, and no other job uses these machines.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from trainshed.core.capacity import Waiting, WaitReason
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.reservations import (
    PersistentResource,
    PersistentResourceName,
    ReservationState,
    Used,
    fault_of_job,
    resource_of,
)
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.scheduler import explaining
from trainshed.scheduler.model import Policy, slot_nodes
from trainshed.scheduler.snapshot import Snapshot


class ReservedPools:
    """The persistent resources and their snapshots. One per `CapacityTracker`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = replace(policy, strict=True)
        self.resources: dict[PersistentResourceName, PersistentResource] = {}
        #: The uids of holds (machines that are placed together) about which a decision is being stored.
        self.pending: set[JobUid] = set()
        #: Resources whose jobs or machines have changed since the last check.
        self.unchecked: set[PersistentResourceName] = set()
        self._unplanned: set[PersistentResourceName] = set()
        self._snapshots: dict[PersistentResourceName, Snapshot] = {}
        self._homes: dict[JobUid, PersistentResourceName] = {}
        self._holds: dict[JobUid, PersistentResourceName] = {}

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self._snapshots.values())

    def adopt(self, job: Job) -> Snapshot | None:
        """Return the snapshot of a job on a persistent resource, or None for other jobs."""
        name = resource_of(job.name, job.spec)
        if name is None:
            return None
        self._homes[job.uid] = name
        self._unplanned.add(name)
        self.unchecked.add(name)
        if name not in self._snapshots:  # The resource was deleted, so the job waits.
            self._snapshots[name] = Snapshot(self._policy)
            self._snapshots[name].set_nodes(slot_nodes(None, lambda _: False))
        return self._snapshots[name]

    def snapshot_of(self, uid: JobUid) -> Snapshot | None:
        name = self._homes.get(uid)
        return None if name is None else self._snapshots.get(name)

    def forget(self, uid: JobUid) -> None:
        """Remove a finished job."""
        name = self._homes.pop(uid, None)
        if name is not None:
            self._unplanned.add(name)
            self.unchecked.add(name)
            snapshot = self._snapshots[name]
            snapshot.remove(uid)
            if not snapshot.entries and name not in self.resources:
                del self._snapshots[name]

    def hold_of(self, uid: JobUid) -> PersistentResourceName | None:
        """Return the resource of a hold, or None if the uid is not that of a hold."""
        return self._holds.get(uid)

    def set(
        self, name: PersistentResourceName, resource: PersistentResource | None, is_fit: Callable[[str], bool]
    ) -> None:
        """Set a resource, or remove it (None)."""
        before = self.resources.pop(name, None)
        for hold in before.holds if before is not None else ():
            self._holds.pop(hold.uid, None)
        if resource is not None:
            self.resources[name] = resource
            self._holds.update((hold.uid, name) for hold in resource.holds)
        self.show(name, resource, is_fit)

    def show(
        self, name: PersistentResourceName, resource: PersistentResource | None, is_fit: Callable[[str], bool]
    ) -> None:
        """Make the machines of a persistent resource available to the jobs that specify its name. If
        `resource` is None (it was deleted), none are available, and these jobs wait."""
        if resource is not None:
            self._snapshots.setdefault(name, Snapshot(self._policy))
        if name in self._snapshots:
            self._snapshots[name].set_nodes(slot_nodes(resource, is_fit))
            self._unplanned.add(name)
            if resource is None and not self._snapshots[name].entries:
                del self._snapshots[name]

    def uses_node(self, name: PersistentResourceName, node: str) -> bool:
        """Return whether a job of the resource uses a node."""
        snapshot = self._snapshots.get(name)
        there = snapshot.nodes.get(node) if snapshot is not None else None
        return there is not None and bool(there.holders)

    def plan_all(self) -> None:
        """Include all resources in the next decision."""
        self._unplanned.update(self._snapshots)

    def take_unplanned(self) -> Iterator[tuple[PersistentResourceName, Snapshot]]:
        """Yield the changed snapshots with waiting jobs, and mark them as planned."""
        names, self._unplanned = self._unplanned, set()
        for name in sorted(names):
            snapshot = self._snapshots.get(name)
            if snapshot is not None and (snapshot.queue or snapshot.unplaced):
                yield name, snapshot

    def usage(self, name: PersistentResourceName) -> Used:
        used: Counter[tuple[str, str]] = Counter()
        snapshot = self._snapshots.get(name)
        for entry in snapshot.entries.values() if snapshot is not None else ():
            for node, kinds in entry.kinds_by_node.items():
                used.update((kind.accelerator or "", node) for kind in kinds)
        return used

    def jobs(self, name: PersistentResourceName) -> tuple[JobUid, ...]:
        snapshot = self._snapshots.get(name)
        return tuple(snapshot.entries) if snapshot is not None else ()

    def count_waiting(self, project_id: str, person: str) -> int:
        """Return the number of jobs of a project and a user ("" = all users) that wait for machines of a
        resource."""
        return sum(
            entry.waits and entry.gang.project_id == project_id and person in ("", entry.gang.person)
            for snapshot in self
            for entry in snapshot.entries.values()
        )

    def explain_wait(
        self, uid: JobUid, now: Nanos, hold: Callable[[JobUid], Waiting | None]
    ) -> Waiting | None:
        """Return the reason why a job of a resource waits, or None if it does not wait. `hold`: returns the
        reason why a hold waits."""
        name, snapshot = self._homes.get(uid), self.snapshot_of(uid)
        if name is None or snapshot is None:
            return None
        waiting = explaining.explain_wait(snapshot, uid, now)
        if waiting is None:
            return None
        what = f"persistent resource {name.resource_id}"
        resource = self.resources.get(name)
        if resource is None:
            return replace(waiting, message=f"{what} does not exist", hint=None)
        if waiting.reason is not WaitReason.NO_NODE:
            return replace(waiting, message=f"on {what}: {waiting.message}")
        causes = (hold(waits.uid) for waits in resource.holds if not waits.places)
        cause = next((f": {why.message}" for why in causes if why is not None), "")
        state = resource.state
        if state is ReservationState.RUNNING:
            return replace(waiting, message=f"machines of {what} are out of service", hint=None)
        return replace(waiting, message=f"{what} is {state}{cause}", hint=None)

    def fault(self, work: Work) -> str | None:
        """Return an error if a new job or tuning job cannot run on its persistent resource, else None."""
        if isinstance(work, Pipeline | PipelineJob):
            return None
        spec = work.spec.trial if isinstance(work, TuningJob) else work.spec
        name = resource_of(work.name, spec)
        if name is None:
            return None
        return fault_of_job(self.resources.get(name), str(name), spec)
