"""The checks of `trainshed doctor` for replicas in Pods: the settings, the cluster's API, the account's
rights, the admission of a Pod, the nodes, and the address of the service."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainshed.core.capacity import MachineWanted
from trainshed.core.names import JobUid
from trainshed.engines.findings import Finding, finding_builder
from trainshed_cluster.kubernetes import kueue, manifests
from trainshed_cluster.kubernetes.build import pod_command
from trainshed_cluster.kubernetes.objects import ClusterNode, Pod, Review, Version
from trainshed_cluster.kubernetes.routes import Routes
from trainshed_cluster.kubernetes.settings import KubernetesSettings, parse
from trainshed_cluster.remote.cluster import AllocationName, ClusterRefused, ClusterUnavailable, NodeNeed
from trainshed_cluster.remote.options import check_address

TESTED = "1.20.2"
"""The version of Kubernetes that `./dev test-kubernetes` runs."""
_finding = finding_builder(__file__)
_MACHINE = "n1-standard-4"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Right:
    """A right in the cluster that the service's account needs. `why`: the consequence if the account lacks
    the right."""

    verb: str
    resource: str
    why: str = "no job can run"
    #: API group of the resource; None = the core group, which contains Pods.
    group: str | None = None

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"

    def access_review(self, namespace: str | None) -> dict[str, Any]:
        """Return the body of the API request that checks this right. `namespace`: None = the right applies to
        the whole cluster."""
        resource, _, part = self.resource.partition("/")
        wanted = {"verb": self.verb, "resource": resource, "subresource": part, "group": self.group}
        fields = {key: value for key, value in (wanted | {"namespace": namespace}).items() if value}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": fields},
        }


_CLUSTER_RIGHTS = tuple(Right(verb, "nodes") for verb in ("list", "watch"))
_LIST_PODS = Right("list", "pods", "resources of other Pods are not counted")
_WATCH_PODS = Right("watch", "pods")
_NAMESPACE_RIGHTS = (
    *(Right(verb, "pods") for verb in ("get", "list", "watch", "create", "delete")),
    *(Right(verb, "pods/attach") for verb in ("get", "create")),
)
_KUEUE_RIGHTS = tuple(
    Right(verb, "workloads", why, "kueue.x-k8s.io")
    for verb, why in (
        ("list", "no job can run"),
        ("watch", "no job can run"),
        ("delete", "Kueue keeps the quota of finished jobs"),
    )
)


def examine_kubernetes(table: Mapping[str, Any], cache: Path | None = None) -> Iterator[Finding]:
    """Check the configuration and the cluster, and yield the findings. Blocks until the cluster has responded
    or failed. `table`: `[engines.kubernetes]` of the configuration. `cache` is not used, because Pods receive
    all content from the service."""
    try:
        settings = parse(table)
    except ValueError as failure:
        yield _finding("settings", reason=str(failure).replace("\n", "; "))
        return
    yield from asyncio.run(_collect(settings))
    yield check_address("kubernetes", "Pods", settings.address)


async def _collect(settings: KubernetesSettings) -> list[Finding]:
    try:
        from trainshed_cluster.kubernetes.client import ApiClient
    except ImportError as failure:
        return [_finding("packages", name=failure.name)]
    try:
        client = ApiClient(settings)
    except ClusterRefused as failure:
        return [_finding("refused", failure=failure)]
    try:
        return [finding async for finding in Examination(settings, client).findings()]
    finally:
        await client.close()


class Examination:
    """Checks one cluster through an `ApiClient`."""

    def __init__(self, settings: KubernetesSettings, client: Any) -> None:
        self._settings = settings
        self._client = client
        own = client.namespace or "default"
        #: The namespaces of jobs.
        self._namespaces = sorted(set(settings.namespaces.values()) or {own})

    async def findings(self) -> AsyncIterator[Finding]:
        from trainshed_cluster.kubernetes.client import ApiFailure

        try:
            version = (await self._client.get("/version", Version)).git_version.removeprefix("v")
            row = "version" if version == TESTED else "other_version"
            yield _finding(row, version=version, server=self._client.server, tested=TESTED)
            missing = [finding async for finding in self._missing_rights()]
            for finding in missing:
                yield finding
            if not missing:
                yield _finding("rights")
            for namespace in self._namespaces:
                yield await self._admission(namespace)
            async for finding in self._nodes():
                yield finding
        except (ApiFailure, ClusterUnavailable) as failure:
            yield _finding("unavailable", server=self._client.server, failure=failure)

    async def _missing_rights(self) -> AsyncIterator[Finding]:
        for right in _CLUSTER_RIGHTS:
            if not await self._has_right(right, None):
                yield _finding("no_right", right=right, where="of the cluster")
        if not await self._has_right(_LIST_PODS, None):
            yield _finding("no_optional_right", right=_LIST_PODS, where="of the whole cluster")
        elif not await self._has_right(_WATCH_PODS, None):
            # An account that may list the Pods of the whole cluster must also be allowed to watch them.
            yield _finding("no_right", right=_WATCH_PODS, where="of the whole cluster")
        of_kueue = _KUEUE_RIGHTS if self._settings.queue == "kueue" else ()
        for namespace in self._namespaces:
            for right in (*_NAMESPACE_RIGHTS, *of_kueue):
                if not await self._has_right(right, namespace):
                    yield _finding("no_right", right=right, where=f"of namespace {namespace}")

    async def _has_right(self, right: Right, namespace: str | None) -> bool:
        return (await self._client.create(_REVIEWS, right.access_review(namespace), Review)).status.allowed

    async def _admission(self, namespace: str) -> Finding:
        """Check by a dry run of the API whether the cluster would admit a Pod of a job."""
        from trainshed_cluster.kubernetes.client import ApiFailure

        path = f"/api/v1/namespaces/{namespace}/pods"
        try:
            manifest = _example(self._settings, namespace)
            taken = await self._client.create(path, manifest, Pod, {"dryRun": "All"})
        except ApiFailure as failure:
            if failure.status not in (403, 404, 422) and not failure.is_final:
                raise
            return _finding("pods_refused", namespace=namespace, failure=failure)
        if self._settings.queue == "kueue" and not kueue.is_managed(taken):
            return _finding("pods_without_kueue", namespace=namespace)
        return _finding("pods", namespace=namespace, machine=_MACHINE)

    async def _nodes(self) -> AsyncIterator[Finding]:
        routes = Routes(self._settings)
        listed, _ = await self._client.list("/api/v1/nodes", ClusterNode)
        taking = [node for node in listed if routes.acceptance(node).open]
        if not taking:
            yield _finding("no_nodes", count=len(listed))
            return
        yield _finding("nodes", taking=len(taking), count=len(listed))
        for public, accelerator in self._settings.accelerators.items():
            having = [
                node
                for node in taking
                if (public, accelerator.resource) in routes.devices_on(node)
                and accelerator.resource in (node.status.allocatable or {})
            ]
            yield _finding(
                "accelerator" if having else "no_accelerator",
                public=public,
                resource=accelerator.resource,
                count=len(having),
            )


def _example(settings: KubernetesSettings, namespace: str) -> dict[str, Any]:
    machine, allocation = MachineWanted(_MACHINE), AllocationName("doctor", JobUid(1), 1, 0)
    need = NodeNeed("any", 1, 1.0, 1 << 30, machine=machine, replica="doctor-0", hostname="trainshed-doctor")
    route, cache = Routes(settings).of(machine), "/srv/trainshed/cache"
    pod = manifests.pod(settings, route, None, allocation, need, command=pod_command(), cache=cache)
    pod["metadata"]["namespace"] = namespace
    return pod
