"""Follows Kueue's workloads, one for each attempt, and deletes them when their attempt is over."""

import asyncio
import logging
from collections.abc import Callable, Collection

from trainshed.core.capacity import Delay
from trainshed.eventloop.background import Crew
from trainshed_cluster.kubernetes import kueue
from trainshed_cluster.kubernetes.client import ApiClient, ApiFailure, Followed, unstarted
from trainshed_cluster.kubernetes.objects import ApiGroup, Pod, Workload
from trainshed_cluster.remote.cluster import ClusterUnavailable, HoldName

log = logging.getLogger(__name__)

_LINGER_SECONDS = 5.0
"""For which an attempt keeps its quota of which nothing is left: a replica that moves is asked for again
within that."""
_AGAIN_SECONDS = 5.0
"""Between two tries to delete one."""
_STRAY_SECONDS = 120.0
"""After which one of before this service's start is deleted that nobody came back for."""


class Admission:
    """Kueue's view of this service's attempts. `changed`: called when a workload has changed. `is_wanted`:
    tells whether anything of the attempt of a workload is held or requested."""

    def __init__(
        self,
        client: ApiClient,
        service: str,
        changed: Callable[[], None],
        is_wanted: Callable[[str], bool],
    ) -> None:
        self._client = client
        self._service = service
        self._changed = changed
        self._is_wanted = is_wanted
        #: The watched workloads, by namespace.
        self._followed: dict[str, Followed[Workload]] = {}
        self._tasks = Crew()

    async def start(self, namespaces: Collection[str]) -> None:
        """Begin to watch the workloads. Raises ClusterRefused (there is no Kueue, or its workloads may not be
        read), ClusterUnavailable."""
        version = await self._version()
        for where in namespaces:
            path = f"{kueue.API}/{version}/namespaces/{where}/workloads"
            followed = self._followed[where] = Followed(self._client, path, Workload, self._learn)
            try:
                await followed.list()
            except ApiFailure as failure:
                raise unstarted(failure, "Kueue's workloads (chart: kueue=true)") from failure
            self._tasks.keep(followed.follow, f"kubernetes: watching {path}")
        self._tasks.begin(self._end_strays(), "kubernetes: ending workloads of before")

    async def close(self) -> None:
        await self._tasks.close()

    def delay(self, hold: HoldName, pod: Pod) -> Delay | None:
        """Return why Kueue makes a Pod wait; None = it does not, or gives no reason."""
        followed = self._followed.get(pod.metadata.namespace)
        if followed is None or pod.spec.node_name:
            return None
        own = followed.objects.get(f"{pod.metadata.namespace}/{kueue.group(hold)}")
        return kueue.delay(own, followed.objects.values()) if own else None

    def given_back(self, hold: HoldName, where: str) -> None:
        """Note that a Pod was given back. With the last Pod of its attempt the workload is deleted, because
        Kueue otherwise keeps the quota of Pods that did not succeed, and the Pods, for replacements."""
        name = kueue.group(hold)
        if where in self._followed and not self._is_wanted(name):
            self._tasks.begin(self._end(where, name), f"kubernetes: ending workload {name}")

    async def _end(self, where: str, name: str) -> None:
        """Delete the workload of an attempt of which nothing is left, unless something of it is soon
        requested again."""
        path = f"{self._followed[where].path}/{name}"
        await asyncio.sleep(_LINGER_SECONDS)
        while not self._is_wanted(name):
            try:
                await self._client.delete(path)
            except (ApiFailure, ClusterUnavailable) as failure:
                log.info("kubernetes: %s is not deleted yet: %s", path, failure)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return

    async def _end_strays(self) -> None:
        await asyncio.sleep(_STRAY_SECONDS)
        for where, followed in self._followed.items():
            for workload in tuple(followed.objects.values()):
                name = workload.metadata.name
                if kueue.is_ours(workload, self._service) and not self._is_wanted(name):
                    log.info("kubernetes: workload %s is wanted by nobody: deleted", name)
                    self._tasks.begin(self._end(where, name), f"kubernetes: ending workload {name}")

    async def _version(self) -> str:
        try:
            group = await self._client.get(kueue.API, ApiGroup)
        except ApiFailure as failure:
            what = 'Kueue (install it, or set queue = "trainshed"; chart: kueue=true)'
            raise unstarted(failure, what) from failure
        return group.preferred_version.version

    def _learn(self, workload: Workload, *, gone: bool) -> None:
        self._changed()
