"""Creates PodGroups (`scheduling.k8s.io`), so that Kubernetes' scheduler places the Pods that an attempt
begins with all at once, or none of them.

A replacement Pod is in no group: its peers run already, or have ended, and the scheduler would wait for all
of them again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

from trainshed.engines.kubernetes import manifests
from trainshed.engines.kubernetes.admission import end_unwanted
from trainshed.engines.kubernetes.client import ApiClient, ApiFailure
from trainshed.engines.kubernetes.kueue import group
from trainshed.engines.kubernetes.objects import ApiResources, PodGroup
from trainshed.engines.remote.cluster import ClusterRefused, ClusterUnavailable, HoldName, NodeNeed
from trainshed.eventloop.background import Crew

log = logging.getLogger(__name__)

API: Final = "/apis/scheduling.k8s.io/v1beta1"
MISSING: Final = (
    "the cluster has no PodGroups (scheduling.k8s.io/v1beta1, which Kubernetes 1.37 has where its feature "
    "gate GenericWorkload is on)"
)
_STRAY_SECONDS = 120.0
"""After which one of before this service's start is deleted that nobody came back for."""


class PodGroups:
    """The PodGroups of this service's attempts. `is_wanted`: tells whether anything of the attempt of a group
    is held or requested."""

    def __init__(self, client: ApiClient, service: str, is_wanted: Callable[[str], bool]) -> None:
        self._client = client
        self._service = service
        self._is_wanted = is_wanted
        #: Namespace of each existing group.
        self._made: dict[str, str] = {}
        self._making = asyncio.Lock()
        self._tasks = Crew()

    async def start(self, namespaces: Collection[str]) -> None:
        """Find the groups of an earlier service. Raises ClusterRefused (the cluster has no PodGroups, or they
        may not be read), ClusterUnavailable."""
        if not await are_served(self._client):
            raise ClusterRefused(
                f"[engines.kubernetes] pod_groups = true, and {MISSING}; turn it on, or take the setting "
                "away"
            )
        try:
            for where in namespaces:
                found, _ = await self._client.list(
                    _path(where),
                    PodGroup,
                    {"labelSelector": manifests.selector(self._service)},
                )
                self._made |= {one.metadata.name: where for one in found}
        except ApiFailure as failure:
            raise ClusterRefused(
                f"PodGroups may not be seen: {failure}; deploy/kubernetes/podgroups has the rights that the "
                "service's account needs"
            ) from failure
        self._tasks.begin(self._end_strays(), "kubernetes: ending PodGroups of before")

    async def close(self) -> None:
        await self._tasks.close()

    async def joined(self, hold: HoldName, need: NodeNeed, where: str, priority_class: str) -> str:
        """Return the group that a Pod is to join, created if needed; "" = none. Raises ClusterRefused,
        ClusterUnavailable."""
        if need.gang_size < 2 or hold.part >= need.gang_size:
            return ""
        name = group(hold)
        async with self._making:
            if name not in self._made:
                await self._make(hold, name, need, where, priority_class)
                self._made[name] = where
        return name

    def given_back(self, hold: HoldName) -> None:
        """Note that a Pod was given back; with the last one of its attempt the group is deleted."""
        name = group(hold)
        if name in self._made and not self._is_wanted(name):
            self._tasks.begin(self._end(name), f"kubernetes: deleting PodGroup {name}")

    async def _make(
        self, hold: HoldName, name: str, need: NodeNeed, where: str, priority_class: str
    ) -> None:
        manifest = _manifest(hold, name, need.gang_size, where, priority_class)
        try:
            await self._client.create(_path(where), manifest, PodGroup)
        except ApiFailure as failure:
            if failure.status == 409 and failure.reason == "AlreadyExists":
                return  # An earlier call made it whose answer was lost.
            if failure.is_final:
                raise ClusterRefused(
                    f"Kubernetes does not take PodGroup {name} in namespace {where}: {failure}"
                ) from failure
            raise ClusterUnavailable(f"PodGroup {name}: {failure}") from failure

    async def _end(self, name: str) -> None:
        where = self._made[name]
        if await end_unwanted(
            self._client, f"{_path(where)}/{name}", lambda: self._is_wanted(name)
        ):
            self._made.pop(name, None)

    async def _end_strays(self) -> None:
        before = tuple(self._made)
        await asyncio.sleep(_STRAY_SECONDS)
        for name in before:
            if name in self._made and not self._is_wanted(name):
                log.info("kubernetes: PodGroup %s is wanted by nobody: deleted", name)
                self._tasks.begin(self._end(name), f"kubernetes: deleting PodGroup {name}")


async def are_served(client: ApiClient) -> bool:
    """Whether the cluster has PodGroups. Raises ClusterRefused, ClusterUnavailable."""
    try:
        found = await client.get(API, ApiResources)
    except ApiFailure as failure:
        if failure.status == 404:
            return False
        raise ClusterRefused(
            f"it is not known whether the cluster has PodGroups: {failure}"
        ) from failure
    return any(one.name == "podgroups" for one in found.resources)


def _path(where: str) -> str:
    return f"{API}/namespaces/{where}/podgroups"


def _manifest(
    hold: HoldName, name: str, size: int, where: str, priority_class: str
) -> dict[str, Any]:
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": size}}}
    if priority_class:
        spec["priorityClassName"] = priority_class
    return {
        "apiVersion": API.removeprefix("/apis/"),
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": where, "labels": manifests.job_labels(hold)},
        "spec": spec,
    }
