"""The checks of `trainshed doctor` for replicas in Pods: the settings, the cluster's API, the account's
rights, whether a Pod would be admitted, which nodes take Pods, and whether Pods can call the service."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainshed.core.capacity import MachineWanted
from trainshed.core.names import JobUid
from trainshed.engines.registry import Finding, bad, good, less
from trainshed_cluster.kubernetes import kueue, manifests
from trainshed_cluster.kubernetes.build import entry
from trainshed_cluster.kubernetes.objects import ClusterNode, Pod, Review, Version
from trainshed_cluster.kubernetes.routes import Routes
from trainshed_cluster.kubernetes.settings import KubernetesSettings, parse
from trainshed_cluster.remote.cluster import ClusterRefused, ClusterUnavailable, HoldName, NodeNeed
from trainshed_cluster.remote.options import examine_address

TESTED = "1.20.2"
"""The version of Kubernetes that `./dev test-kubernetes` runs."""
_IN_FILE = "The table [engines.kubernetes] of the configuration says so."
_SETTINGS = "Correct it there; docs/kubernetes.md lists all settings."
_RIGHTS = (
    "Give them by the chart deploy/chart (docs/kubernetes.md), where Kueue is used with kueue=true."
)
_MACHINE = "n1-standard-4"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Right:
    """A right that the account needs. `why`: what does not work without it."""

    verb: str
    resource: str
    why: str = "no job can run"
    #: API group; "" = that of Pods.
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"

    def asked(self, namespace: str) -> dict[str, Any]:
        """Return the access review to create; `namespace` "" = the whole cluster."""
        resource, _, part = self.resource.partition("/")
        wanted = {"verb": self.verb, "resource": resource, "subresource": part, "group": self.group}
        fields = {key: value for key, value in (wanted | {"namespace": namespace}).items() if value}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": fields},
        }


_EVERYWHERE = tuple(Right(verb, "nodes") for verb in ("list", "watch"))
_SEE_PODS = Right("list", "pods", "what others take of nodes is not counted")
_WATCH_PODS = Right("watch", "pods")
_IN_NAMESPACES = (
    *(Right(verb, "pods") for verb in ("get", "list", "watch", "create", "delete")),
    *(Right(verb, "pods/attach") for verb in ("get", "create")),
)
_OF_KUEUE = tuple(
    Right(verb, "workloads", why, "kueue.x-k8s.io")
    for verb, why in (
        ("list", "no job can run"),
        ("watch", "no job can run"),
        ("delete", "Kueue keeps the quota of jobs that are over"),
    )
)


def examine_kubernetes(table: Mapping[str, Any], cache: Path | None = None) -> Iterator[Finding]:
    """Yield the findings. `table`: `[engines.kubernetes]` of the configuration. Pods bring what they need:
    no cache is looked at. Blocks until the cluster has answered or failed to."""
    try:
        settings = parse(table)
    except ValueError as failure:
        text = str(failure).replace("\n", "; ") + "."
        yield bad("Kubernetes settings", text, cause=_IN_FILE, remedy=_SETTINGS)
        return
    yield from asyncio.run(_gathered(settings))
    yield examine_address("kubernetes", "Pods", settings.address)


async def _gathered(settings: KubernetesSettings) -> list[Finding]:
    try:
        from trainshed_cluster.kubernetes.client import ApiClient
    except ImportError as failure:
        return [
            bad(
                "Kubernetes packages",
                f"{failure.name} is not installed.",
                cause="They are an extra.",
                remedy="pip install 'trainshed[kubernetes]'",
            )
        ]
    try:
        client = ApiClient(settings)
    except ClusterRefused as failure:
        why = str(failure)
        return [bad("Kubernetes API", f"{why}.", cause=_IN_FILE, remedy=_SETTINGS)]
    try:
        return [finding async for finding in Examination(settings, client).findings()]
    finally:
        await client.close()


class Examination:
    """Examines one cluster through an `ApiClient`."""

    def __init__(self, settings: KubernetesSettings, client: Any) -> None:
        self._settings = settings
        self._client = client
        own = client.namespace or "default"
        #: The namespaces of jobs.
        self._namespaces = sorted(set(settings.namespaces.values()) or {own})

    async def findings(self) -> AsyncIterator[Finding]:
        from trainshed_cluster.kubernetes.client import ApiFailure

        try:
            yield await self._version()
            missing = [finding async for finding in self._missing_rights()]
            for finding in missing:
                yield finding
            if not missing:
                yield good("Kubernetes rights", "all that are needed.")
            for namespace in self._namespaces:
                yield await self._admission(namespace)
            async for finding in self._nodes():
                yield finding
        except (ApiFailure, ClusterUnavailable) as failure:
            yield bad(
                "Kubernetes API",
                f"{self._client.server}: {failure}.",
                cause="It is not there, not reached from here, or does not know who asks.",
                remedy="Look whether `kubectl get nodes` works with the kubeconfig and context of "
                "[engines.kubernetes].",
            )

    async def _version(self) -> Finding:
        version = (await self._client.get("/version", Version)).git_version.removeprefix("v")
        text = f"Kubernetes {version} at {self._client.server}."
        if version == TESTED:
            return good("Kubernetes API", text)
        return good("Kubernetes API", text, cause=f"It is tested on {TESTED} alone.")

    async def _missing_rights(self) -> AsyncIterator[Finding]:
        for right in _EVERYWHERE:
            if not await self._may(right, ""):
                yield _lacks(right, "of the cluster", final=True)
        if not await self._may(_SEE_PODS, ""):
            yield _lacks(_SEE_PODS, "of the whole cluster", final=False)
        elif not await self._may(_WATCH_PODS, ""):
            # Who may list them is not content with those of the namespaces.
            yield _lacks(_WATCH_PODS, "of the whole cluster", final=True)
        of_kueue = _OF_KUEUE if self._settings.queue == "kueue" else ()
        for namespace in self._namespaces:
            for right in (*_IN_NAMESPACES, *of_kueue):
                if not await self._may(right, namespace):
                    yield _lacks(right, f"of namespace {namespace}", final=True)

    async def _may(self, right: Right, namespace: str) -> bool:
        return (await self._client.create(_REVIEWS, right.asked(namespace), Review)).status.allowed

    async def _admission(self, namespace: str) -> Finding:
        """Check whether a Pod of a job would be admitted: the API checks it, and does not create it."""
        from trainshed_cluster.kubernetes.client import ApiFailure

        about = f"Pods in {namespace}"
        path = f"/api/v1/namespaces/{namespace}/pods"
        try:
            manifest = _example(self._settings, namespace)
            taken = await self._client.create(path, manifest, Pod, {"dryRun": "All"})
        except ApiFailure as failure:
            if failure.status not in (403, 404, 422) and not failure.is_final:
                raise
            return bad(
                about,
                f"Kubernetes would not take the Pod of a job: {failure}.",
                cause="A namespace or account that is not there, a quota, or a policy for Pods.",
                remedy="Make what is missing, or name another namespace in [engines.kubernetes].",
            )
        if self._settings.queue == "kueue" and not kueue.is_managed(taken):
            return bad(
                about,
                "Kueue would not take the Pod of a job in: it would start as it likes.",
                cause="Kueue is not there, or its integration pod is not enabled for this namespace.",
                remedy="Enable it (integrations.frameworks and managedJobsNamespaceSelector of Kueue's "
                'configuration), or set queue = "trainshed".',
            )
        return good(about, f"Kubernetes would take the Pod of a job ({_MACHINE}).")

    async def _nodes(self) -> AsyncIterator[Finding]:
        routes = Routes(self._settings)
        listed, _ = await self._client.list("/api/v1/nodes", ClusterNode)
        taking = [node for node in listed if routes.acceptance(node).open]
        if not taking:
            yield bad(
                "Kubernetes nodes",
                f"none of {len(listed)} nodes takes jobs.",
                cause="None has the labels of node_selector, or all have taints that are not tolerated.",
                remedy="Name labels that nodes have, or tolerate their taints, in [engines.kubernetes].",
            )
            return
        yield good("Kubernetes nodes", f"{len(taking)} of {len(listed)} take jobs.")
        for public, accelerator in self._settings.accelerators.items():
            having = [
                node
                for node in taking
                if (public, accelerator.resource) in routes.on(node)
                and accelerator.resource in (node.status.allocatable or {})
            ]
            if having:
                yield good(public, f"{accelerator.resource} on {len(having)} nodes.")
            else:
                yield less(
                    public,
                    f"no node that takes jobs has {accelerator.resource}.",
                    cause="Its device plugin does not run, or node_selector names others.",
                    remedy="Look at `kubectl describe nodes`: it is among what is allocatable.",
                )


def _lacks(right: Right, where: str, *, final: bool) -> Finding:
    make = bad if final else less
    text = f"the account may not {right} {where}: {right.why}."
    return make("Kubernetes rights", text, cause="No role of the account says so.", remedy=_RIGHTS)


def _example(settings: KubernetesSettings, namespace: str) -> dict[str, Any]:
    routes = Routes(settings)
    need = NodeNeed(
        "any",
        1,
        1.0,
        1 << 30,
        machine=_MACHINE,
        replica="doctor-0",
        hostname="trainshed-doctor",
        gang_size=1,
    )
    command: Sequence[str] = entry()
    hold = HoldName("doctor", JobUid(1), 1, 0)
    pod = manifests.pod(
        settings,
        routes.of(MachineWanted(_MACHINE, "")),
        None,
        hold,
        need,
        command=command,
        cache="/srv/trainshed/cache",
    )
    pod["metadata"]["namespace"] = namespace
    return pod
