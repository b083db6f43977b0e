"""Watches Kueue's workloads, which are its queue entries: one for each attempt. Deletes the workloads of
finished attempts."""

import asyncio
import logging
from collections.abc import Callable, Collection

from trainshed.core.capacity import Delay
from trainshed.eventloop.background import Crew
from trainshed_cluster.kubernetes import kueue
from trainshed_cluster.kubernetes.client import ApiClient, ApiFailure, start_error
from trainshed_cluster.kubernetes.objects import ApiGroup, Pod, Workload
from trainshed_cluster.kubernetes.watches import WatchedCollection
from trainshed_cluster.remote.cluster import AllocationName, ClusterUnavailable

log = logging.getLogger(__name__)

_QUOTA_KEEP_SECONDS = 5.0
"""Seconds for which an attempt without Pods keeps its quota in Kueue. A replica that moves to another node
requests its next Pod within this time."""
_RETRY_INTERVAL = 5.0
"""Seconds between two attempts to delete a workload."""
_STRAY_TIMEOUT = 120.0
"""Seconds from the service's start until the service deletes the workloads of an earlier service process. The
workloads of attempts that continue are kept."""


class Admission:
    """Watches and deletes Kueue's workloads of this service's attempts.

    Args:
        changed: Called when a workload has changed.
        is_wanted: Returns whether the attempt of a workload has allocations, or requests for allocations.
    """

    def __init__(
        self, client: ApiClient, service: str, changed: Callable[[], None], is_wanted: Callable[[str], bool]
    ) -> None:
        self._client = client
        self._service = service
        self._changed = changed
        self._is_wanted = is_wanted
        #: The watched workloads, by namespace.
        self._collections: dict[str, WatchedCollection[Workload]] = {}
        self._tasks = Crew()

    async def start(self, namespaces: Collection[str]) -> None:
        """Start watching the workloads. Raises ClusterRefused if Kueue is missing or its workloads are not
        readable, and ClusterUnavailable if the API does not respond."""
        version = await self._version()
        for where in namespaces:
            path = f"{kueue.API}/{version}/namespaces/{where}/workloads"
            collection = self._collections[where] = WatchedCollection(
                self._client, path, Workload, self._workload_changed
            )
            try:
                await collection.list()
            except ApiFailure as failure:
                raise start_error(
                    failure, "Kueue's workloads (to grant this right, set kueue=true in the Helm chart)"
                ) from failure
            self._tasks.keep(collection.follow, f"kubernetes: watching {path}")
        self._tasks.begin(self._delete_strays(), "kubernetes: deleting old workloads")

    async def close(self) -> None:
        await self._tasks.close()

    def delay(self, allocation: AllocationName, pod: Pod) -> Delay | None:
        """Return Kueue's reason for delaying a Pod, or None if Kueue does not delay the Pod or gives no
        reason."""
        collection = self._collections.get(pod.metadata.namespace)
        if collection is None or pod.spec.node_name:
            return None
        own = collection.objects.get(f"{pod.metadata.namespace}/{kueue.group(allocation)}")
        return kueue.delay(own, collection.objects.values()) if own else None

    def handle_release(self, allocation: AllocationName, where: str) -> None:
        """Handle the release of a Pod. If it was the attempt's last Pod, delete the workload. Otherwise Kueue
        would keep the unsuccessful Pods and their quota for replacements."""
        name = kueue.group(allocation)
        if where in self._collections and not self._is_wanted(name):
            self._tasks.begin(self._delete_workload(where, name), f"kubernetes: ending workload {name}")

    async def _delete_workload(self, where: str, name: str) -> None:
        """Delete the workload of an attempt that has no Pods. Does nothing if the attempt requests a Pod
        within `_QUOTA_KEEP_SECONDS`."""
        path = f"{self._collections[where].path}/{name}"
        await asyncio.sleep(_QUOTA_KEEP_SECONDS)
        while not self._is_wanted(name):
            try:
                await self._client.delete(path)
            except (ApiFailure, ClusterUnavailable) as failure:
                log.info("kubernetes: cannot delete %s yet: %s", path, failure)
                await asyncio.sleep(_RETRY_INTERVAL)
            else:
                return

    async def _delete_strays(self) -> None:
        await asyncio.sleep(_STRAY_TIMEOUT)
        for where, collection in self._collections.items():
            for workload in tuple(collection.objects.values()):
                name = workload.metadata.name
                if kueue.is_own_workload(workload, self._service) and not self._is_wanted(name):
                    log.info("kubernetes: deleting workload %s without an attempt", name)
                    self._tasks.begin(
                        self._delete_workload(where, name), f"kubernetes: ending workload {name}"
                    )

    async def _version(self) -> str:
        try:
            group = await self._client.get(kueue.API, ApiGroup)
        except ApiFailure as failure:
            what = 'Kueue (install it, or set queue = "trainshed"; chart: kueue=true)'
            raise start_error(failure, what) from failure
        return group.preferred_version.version

    def _workload_changed(self, workload: Workload, *, gone: bool) -> None:
        self._changed()
