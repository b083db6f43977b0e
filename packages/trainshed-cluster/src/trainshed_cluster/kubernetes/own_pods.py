"""This service's Pods on a Kubernetes cluster, by allocation, and the causes of their ends."""

import logging

from trainshed_cluster.kubernetes import manifests, states
from trainshed_cluster.kubernetes.objects import Pod
from trainshed_cluster.remote.cluster import AllocationEnd, AllocationName

log = logging.getLogger(__name__)


class OwnPods:
    """The Pods of a service. Watches call `update` for each change of a Pod. Requests that delete Pods record
    the deletions. `service`: the part of allocation names that identifies this service."""

    def __init__(self, service: str) -> None:
        self._service = service
        #: The existing Pods, by allocation.
        self.pods: dict[AllocationName, Pod] = {}
        #: UIDs of Pods whose process still waits for the startup data of its agent.
        self.waiting_uids: set[str] = set()
        #: How deleted Pods ended, by allocation.
        self.ends: dict[AllocationName, AllocationEnd] = {}
        #: The last state of each Pod that no longer exists and whose end was not observed, by allocation. Its
        #: programs may still run.
        self.vanished: dict[AllocationName, Pod] = {}
        #: Released allocations whose Pods may still exist.
        self.released: set[AllocationName] = set()
        #: UIDs of Pods that this service has deleted and that may still exist.
        self.deleted_uids: set[str] = set()

    def update(self, pod: Pod, *, gone: bool) -> None:
        """Record a change of any Pod in the cluster. `gone`: the Pod no longer exists, and `pod` is its last
        state."""
        name = manifests.allocation_of(pod, self._service)
        if name is None:
            return
        known = self.pods.get(name) or self.vanished.get(name)
        if gone:
            if known is not None and known.metadata.uid == pod.metadata.uid:
                self.pods.pop(name, None)
                self._record_end(name, pod if pod.is_over else known)
                self.released.discard(name)
            for uids in (self.waiting_uids, self.deleted_uids):
                uids.discard(pod.metadata.uid)
            return
        if known is not None and manifests.predecessor_count(known) > manifests.predecessor_count(pod):
            return  # Ignore an older Pod of the allocation. It has ended or will end.
        if not pod.is_over and not pod.is_running:
            self.waiting_uids.add(pod.metadata.uid)
        self.vanished.pop(name, None)
        self.pods[name] = pod

    def _record_end(self, name: AllocationName, pod: Pod) -> None:
        """Record the end of a Pod that no longer exists. If the end was not observed, add the Pod to
        `vanished`."""
        if name in self.released:
            return
        if pod.is_over or not pod.spec.node_name or pod.metadata.uid in self.waiting_uids:
            self.vanished.pop(name, None)
            self.ends[name] = self.end_of(pod)
        elif name not in self.vanished:
            log.warning(
                "kubernetes: Pod %s was deleted by force on node %s; its programs may run until its lease "
                "ends",
                pod.metadata.name,
                pod.spec.node_name,
            )
            self.vanished[name] = pod

    def forget_end(self, name: AllocationName) -> None:
        self.ends.pop(name, None)
        self.vanished.pop(name, None)

    def end_of(self, pod: Pod) -> AllocationEnd:
        """Return how a Pod without running containers ended."""
        by_other_client = pod.is_leaving and pod.metadata.uid not in self.deleted_uids
        return states.end(pod, deleted=by_other_client)

    def has_ended(self, name: AllocationName) -> bool:
        pod = self.pods.get(name)
        return pod is None or pod.is_over
